-- Schema 8: the lineage of a generation, 128 random bits. Generations of a pin with the same lineage were
-- added one after the other. Those of one pin get one lineage here.
alter table pin add column lineage blob not null default x'00000000000000000000000000000000';
create table new_lineage (
    cache_id integer not null,
    name     text not null,
    lineage  blob not null,
    primary key (cache_id, name)
) strict, without rowid;
insert into new_lineage select cache_id, name, randomblob(16) from pin group by cache_id, name;
update pin set lineage =
    (select its.lineage from new_lineage as its
     where its.cache_id = pin.cache_id and its.name = pin.name);
drop table new_lineage;

-- What counts towards the quota besides the files of NARs.
create table log (
    cache_id    integer not null references cache (id),
    name        text not null,              -- of the derivation, which is that of the file, too
    size        integer not null,
    uploaded_at integer not null,
    is_left     integer not null default 0, -- 1: a path that the derivation has built was deleted
    primary key (cache_id, name)
) strict, without rowid;
create index path_deriver on path (cache_id, deriver) where deriver is not null;
alter table extra add column recorded_at integer not null default 0;
update extra set recorded_at = unixepoch();

-- Size of a path without its NAR, in bytes: a block of the file system, its references and its
-- signatures.
alter table path add column own_bytes integer not null default 0;
update path set own_bytes = 4096 + length(sigs)
    + (select coalesce(sum(length(target.name) + 33), 0)
       from reference join path as target on target.id = reference where referrer = path.id)
    + (select coalesce(sum(length(base_name)), 0) from outer_reference where referrer = path.id);

-- Total size of the paths without their NARs, of the build logs and of the realisations of a cache.
-- The triggers keep it current.
alter table cache add column extra_bytes integer not null default 0;
update cache set extra_bytes =
    (select coalesce(sum(own_bytes), 0) from path where cache_id = cache.id)
    + (select coalesce(sum(4096 + length(key) + length(body) + length(sigs)), 0)
       from extra where cache_id = cache.id);
create trigger path_counted after insert on path begin
    update cache set extra_bytes = extra_bytes + new.own_bytes where id = new.cache_id;
end;
create trigger path_uncounted after delete on path begin
    update cache set extra_bytes = extra_bytes - old.own_bytes where id = old.cache_id;
    update log set is_left = 1 where cache_id = old.cache_id and name = old.deriver;
end;
create trigger path_recounted after update of own_bytes on path begin
    update cache set extra_bytes = extra_bytes - old.own_bytes + new.own_bytes
    where id = new.cache_id;
end;
create trigger extra_counted after insert on extra begin
    update cache set extra_bytes = extra_bytes
        + 4096 + length(new.key) + length(new.body) + length(new.sigs) where id = new.cache_id;
end;
create trigger extra_uncounted after delete on extra begin
    update cache set extra_bytes = extra_bytes
        - 4096 - length(old.key) - length(old.body) - length(old.sigs) where id = old.cache_id;
end;
create trigger extra_recounted after update of sigs on extra begin
    update cache set extra_bytes = extra_bytes - length(old.sigs) + length(new.sigs)
    where id = new.cache_id;
end;
create trigger log_counted after insert on log begin
    update cache set extra_bytes = extra_bytes + 4096 + new.size where id = new.cache_id;
end;
create trigger log_uncounted after delete on log begin
    update cache set extra_bytes = extra_bytes - 4096 - old.size where id = old.cache_id;
end;
create trigger log_recounted after update of size on log begin
    update cache set extra_bytes = extra_bytes - old.size + new.size where id = new.cache_id;
end;

-- Last use: a time. Older schemas had the day, since 1970.
alter table path rename column used_on to used_at;
update path set used_at = min(unixepoch(), used_at * 86400 + 86399);

-- 1: the client found the NAR by its right to read, and has not sent it.
alter table sent add column is_held integer not null default 0;
