-- Schema 5: deletion of caches. 0: none. 1: in progress, the paths are hidden and their rows are being deleted.
-- 2: complete, the cache has no rows; the next upload into it sets this to 0.
alter table cache add column deletion integer not null default 0;
