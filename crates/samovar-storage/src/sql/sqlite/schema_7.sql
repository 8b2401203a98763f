-- Schema 7: the origin of a generation. Null: not stated; for token_name also: added by the operator.
alter table pin add column token_name text;
alter table pin add column host text;
alter table pin add column message text;

-- Newest generation that was removed from a pin, if the pin has no newer one. The next generation
-- gets a higher number: a number never stands for two generations.
create table removed_pin (
    cache_id   integer not null references cache (id),
    name       text not null,
    generation integer not null,
    removed_at integer not null,
    primary key (cache_id, name)
) strict, without rowid;
create trigger pin_removed after delete on pin
when not exists (
    select 1 from pin
    where cache_id = old.cache_id and name = old.name and generation > old.generation
) begin
    insert into removed_pin values (old.cache_id, old.name, old.generation, unixepoch())
    on conflict do update set
        generation = max(generation, excluded.generation), removed_at = excluded.removed_at;
end;
