-- Schema 2: last use, collection and pins.
alter table nar add column state integer not null default 1;    -- 1 live, 2 condemned, 3 lost
alter table nar add column state_at integer not null default 0; -- time of the last change of state
create index nar_not_live on nar (state) where state <> 1;
create index sent_nar on sent (nar_id);

-- Last use: days since 1970. The use of paths of schema 1 was not recorded; it counts as today.
alter table path add column used_on integer not null default 0;
alter table path add column condemned_at integer;               -- null: not condemned
update path set used_on = unixepoch() / 86400;
create index path_condemned on path (condemned_at) where condemned_at is not null;

-- A pin is a named root. Each generation keeps one path with its closure.
create table pin (
    id         integer primary key autoincrement,
    cache_id   integer not null references cache (id),
    name       text not null,
    generation integer not null,
    path_id    integer not null references path (id) on delete restrict,
    created_at integer not null,
    expires_at integer,
    unique (cache_id, name, generation)
) strict;
create index pin_path on pin (path_id);

-- Keys of objects whose row was deleted. No new object gets such a key. done_at: time when the
-- object was removed; null: not yet.
create table garbage (
    object_key text primary key not null,
    since      integer not null,
    done_at    integer
) strict, without rowid;

-- Total length of the files that the paths of a cache use, each file counted once. The triggers
-- keep it current.
alter table cache add column file_bytes integer not null default 0;
update cache set file_bytes = (
    select coalesce(sum(file_size), 0) from nar
    where exists (select 1 from path where nar_id = nar.id and cache_id = cache.id)
);
create trigger path_added after insert on path
when not exists (
    select 1 from path where nar_id = new.nar_id and cache_id = new.cache_id and id <> new.id
) begin
    update cache set file_bytes = file_bytes + (select file_size from nar where id = new.nar_id)
    where id = new.cache_id;
end;
create trigger path_deleted after delete on path
when not exists (select 1 from path where nar_id = old.nar_id and cache_id = old.cache_id) begin
    update cache set file_bytes = file_bytes - (select file_size from nar where id = old.nar_id)
    where id = old.cache_id;
end;
create trigger path_changed after update of nar_id on path when old.nar_id <> new.nar_id begin
    update cache set file_bytes = file_bytes
        - coalesce((select file_size from nar where id = old.nar_id and not exists (
            select 1 from path where nar_id = old.nar_id and cache_id = new.cache_id)), 0)
        + coalesce((select file_size from nar where id = new.nar_id and not exists (
            select 1 from path
            where nar_id = new.nar_id and cache_id = new.cache_id and id <> new.id)), 0)
    where id = new.cache_id;
end;
