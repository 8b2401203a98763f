-- Schema 4: realisations of content-addressed derivations.
create table extra (
    cache_id integer not null references cache (id),
    key      text not null,    -- URL, relative to the cache
    path_id  integer references path (id) on delete cascade, -- null: a path of the live Nix store
    body     text not null,    -- JSON, without signatures
    sigs     text not null,
    primary key (cache_id, key)
) strict, without rowid;
create index extra_path on extra (path_id);
