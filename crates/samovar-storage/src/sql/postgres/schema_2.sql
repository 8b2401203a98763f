-- The machine of each node, by which an operator finds it.
alter table node add column if not exists host text collate "C";
