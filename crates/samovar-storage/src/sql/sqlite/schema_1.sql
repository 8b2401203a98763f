-- Schema 1. Times are Unix times in seconds; hashes are the bytes of SHA-256.
create table meta (
    key   text primary key not null,
    value text not null
) strict;

create table cache (
    id         integer primary key,
    name       text not null unique,
    store_dir  text not null,
    created_at integer not null
) strict;

create table token (
    id         integer primary key autoincrement,
    hash       blob not null unique,
    name       text not null,
    cache      text,             -- null: all caches
    rights     integer not null, -- 1 read, 2 push
    created_at integer not null,
    expires_at integer,
    revoked_at integer
) strict;

-- A file with a verified NAR. Two compressions of a NAR are two rows: sharing by the hash of the NAR
-- would tell a client that somebody else has it.
create table nar (
    id          integer primary key autoincrement,
    nar_hash    blob not null,
    nar_size    integer not null,
    file_hash   blob not null unique,
    file_size   integer not null,
    compression text not null,
    object_key  text not null unique,
    frames      blob,            -- index of zstd frames
    listing     blob,            -- JSON, compressed with zstd
    created_at  integer not null
) strict;

-- Who has sent a NAR: the holder of that token may publish paths with it.
create table sent (
    token_id integer not null references token (id) on delete cascade,
    nar_id   integer not null references nar (id) on delete cascade,
    sent_at  integer not null,
    primary key (token_id, nar_id)
) strict, without rowid;

create table path (
    id             integer primary key autoincrement,
    cache_id       integer not null references cache (id),
    hash_part      blob not null,
    name           text not null,
    nar_id         integer not null references nar (id),
    self_reference integer not null,
    deriver        text,
    ca             text,
    sigs           text not null,
    registered_at  integer not null,
    token_id       integer references token (id) on delete set null,
    unique (cache_id, hash_part)
) strict;
create index path_nar on path (nar_id);

-- The closure rule: a path cannot be deleted while another refers to it.
create table reference (
    referrer  integer not null references path (id) on delete cascade,
    reference integer not null references path (id) on delete restrict,
    primary key (referrer, reference)
) strict, without rowid;
create index reference_reference on reference (reference);

-- References to paths of the live Nix store, which has its own collector.
create table outer_reference (
    referrer  integer not null references path (id) on delete cascade,
    base_name text not null,
    primary key (referrer, base_name)
) strict, without rowid;
