-- Schema 9: tokens of OIDC are deleted after they have expired, unless a path was uploaded with them.
-- Without the index, the foreign key would read all paths for each of them.
create index path_token on path (token_id) where token_id is not null;
