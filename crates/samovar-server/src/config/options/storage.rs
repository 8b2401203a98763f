//! Options of the storage in a bucket and a database, and of this node of several.

use super::Set::{Parsed, Path, Size, Switch, UrlOf, Word};
use super::Shown::{Effective, Words};
use super::{Row, server};
use crate::config::draft::ServerDraft;
use crate::config::storage::{check_bucket_url, check_database_url, is_node_name};

const NODE_NAME: &str = "a name of at most 64 letters, digits, dots, dashes and underscores";

/// Minimum of `bucket.cache-size`, bytes: room for the NARs that are read at the same time.
const CACHE_LEN_MIN: u64 = 64 << 20;

pub(in crate::config) static OPTIONS: &[Row<ServerDraft>] = &[
    server(
        "bucket.url",
        UrlOf(
            "a URL that begins with s3://",
            |draft: &mut ServerDraft, url| {
                check_bucket_url(&url)?;
                draft.bucket.url = Some(url);
                Ok(())
            },
        ),
        "Bucket of an S3 engine that has the files of uploaded paths: s3://BUCKET/PREFIX, with the \
         parameters region, endpoint and style, as in \
         s3://cache/nix?region=eu&endpoint=https://s3.example.org&style=path. Needs \
         storage, whose directory then has temporary files and the disk cache.",
    )
    .defaults_to(Words("none: the files are in storage")),
    server(
        "bucket.credentials-file",
        Path(|draft, path| draft.bucket.credentials_file = Some(path)),
        "File with the access key of the bucket: two lines, the ID and the secret, or an ini file \
         such as ~/.aws/credentials.",
    )
    .defaults_to(Words(
        "none: the environment, ~/.aws/credentials, or the role of the machine",
    )),
    server(
        "bucket.ca-file",
        Path(|draft, path| draft.bucket.ca_file = Some(path)),
        "PEM file with the certificate authorities of the S3 engine. Read at the start only.",
    )
    .defaults_to(Words("none: those of the system")),
    server(
        "bucket.cache-size",
        Size(CACHE_LEN_MIN, u64::MAX, |draft, len| {
            draft.bucket.cache_len = Some(len)
        }),
        "Maximum size of the disk cache, which has files of the bucket in the directory of \
         storage. Those that were not used for the longest time are deleted.",
    )
    .defaults_to(Effective("10 GiB", |config| {
        Some(format!("{} MiB", config.bucket.as_ref()?.cache_len >> 20))
    })),
    server(
        "bucket.deliver",
        Word(&["through", "redirect"], |draft, word| {
            draft.bucket.is_redirected = word == "redirect";
        }),
        "How clients get NARs of the bucket: through this server and its disk cache, or by a \
         redirect to a URL of the bucket, which is valid for an hour. Clients must reach the \
         endpoint of the bucket then.",
    ),
    server(
        "bucket.redirect-over",
        Size(0, u64::MAX, |draft, len| {
            draft.bucket.redirect_over = Some(len)
        }),
        "Size of a file above which clients are redirected. Needs bucket.deliver = \"redirect\".",
    )
    .defaults_to(Effective("0", |config| {
        Some(config.bucket.as_ref()?.redirect_over?.to_string())
    })),
    server(
        "bucket.pack",
        Switch(|draft, is_on| draft.bucket.packs = Some(is_on)),
        "Whether small NARs that are uploaded together share an object of the bucket, which needs \
         fewer requests. Without it, the bucket is a plain binary cache, which Nix can read \
         without this server.",
    )
    .defaults_to(Effective("true", |config| {
        Some(config.bucket.as_ref()?.packs.to_string())
    })),
    server(
        "database.url",
        UrlOf(
            "a URL that begins with postgresql://",
            |draft: &mut ServerDraft, url| {
                check_database_url(&url)?;
                draft.database.url = Some(url);
                Ok(())
            },
        ),
        "PostgreSQL database of uploaded paths, as the programs of PostgreSQL name it, such as \
         postgresql://samovar@db1,db2/samovar?sslmode=verify-full. Several servers can use one \
         database and one bucket. Needs bucket.url. May contain a password, USER:PASSWORD@, which \
         no output of the server shows; database.password-file keeps it out of the configuration.",
    )
    .defaults_to(Words("none: SQLite in the directory of storage")),
    server(
        "database.password-file",
        Path(|draft, path| draft.database.password_file = Some(path)),
        "File with the password for the database in its first line.",
    )
    .defaults_to(Words("none: that of database.url, or $PGPASSWORD")),
    server(
        "node.name",
        Parsed(NODE_NAME, |draft, name| {
            is_node_name(name).then(|| draft.node = Some(name.to_owned()))
        }),
        "Name of this server among those that use the database. A server whose name another one \
         has does not start.",
    )
    .defaults_to(Effective("the name of the machine", |config| {
        config.database.as_ref()?;
        Some(config.node_name())
    })),
];
