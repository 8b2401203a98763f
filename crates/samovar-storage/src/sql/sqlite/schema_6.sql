-- Schema 6: tokens for some names. The column cache of a token contains a pattern, too.
alter table token add column names text; -- null: all names
