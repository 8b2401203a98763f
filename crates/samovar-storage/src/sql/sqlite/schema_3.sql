-- Schema 3: the push protocol.
create index nar_nar_hash on nar (nar_hash);

-- A push is a series of requests that share uploaded parts of NAR files.
create table push (
    id         text primary key not null,
    cache_id   integer not null references cache (id),
    token_id   integer not null references token (id) on delete cascade,
    expires_at integer not null
) strict, without rowid;
create index push_token on push (token_id);
