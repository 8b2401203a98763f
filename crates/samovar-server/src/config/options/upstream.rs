//! Options of an upstream cache.

use samovar_nix::PublicKey;
use samovar_upstream::settings::{Resign, UpstreamSettings};

use super::Set::{Count, Each, Path, Size, Switch, TimeWithin, Url, Word};
use super::Shown::{Value, Words};
use super::{Row, seconds, upstream};
use crate::config::draft::UpstreamDraft;
use crate::config::{PRIORITY_MAX, Value as Toml};

pub(in crate::config) static OPTIONS: &[Row<UpstreamDraft>] = &[
    upstream(
        "url",
        Url(|draft: &mut UpstreamDraft, url| draft.upstream.url = url),
        "URL of the cache. May contain a login, USER:PASSWORD@, which no output of the server \
         shows; netrc-file keeps it out of the configuration.",
    )
    .defaults_to(Words("none: it must be set")),
    upstream(
        "public-keys",
        Each(
            "a list of public keys, NAME:BASE64, whose NAME has no blanks",
            |draft, values| {
                let key = |value: &Toml| PublicKey::parse(value.as_text()?).ok();
                draft.public_keys = Some(values.iter().map(key).collect::<Option<_>>()?);
                Some(())
            },
        ),
        "Public keys of the cache, NAME:BASE64. A narinfo is passed on only if one of them has \
         signed it, or if its content address proves it.",
    )
    .defaults_to(Words(
        "the key of cache.nixos.org for this cache, else none",
    )),
    upstream(
        "priority",
        Count(0, PRIORITY_MAX, |draft, count| {
            draft.upstream.priority = u32::try_from(count).unwrap_or(u32::MAX);
        }),
        "Order of the upstreams: those with a lower number are asked first, those with equal \
         numbers at the same time.",
    )
    .defaults_to(Value(|_| UpstreamSettings::PRIORITY.to_string())),
    upstream(
        "netrc-file",
        Path(|draft, path| draft.upstream.netrc_file = Some(path)),
        "File in netrc format with the login for the host of the upstream.",
    ),
    upstream(
        "resign",
        Word(&["no", "add", "only"], |draft, word| {
            draft.upstream.resign = match word {
                "add" => Resign::Add,
                "only" => Resign::Only,
                _ => Resign::No,
            };
        }),
        "Signatures of the narinfos that are passed on, once that of the upstream is verified: its \
         own (no), its own and those by the secret keys of the cache (add), or those by the secret \
         keys of the cache alone (only).",
    ),
    upstream(
        "timeout",
        TimeWithin(100, 60_000, |draft, time| draft.upstream.timeout = time),
        "Time without progress after which a request to the upstream is given up.",
    )
    .defaults_to(Value(|_| seconds(UpstreamSettings::TIMEOUT))),
    upstream(
        "unsigned",
        Switch(|draft, is_on| draft.upstream.is_unsigned = is_on),
        "Whether narinfos that none of public-keys has signed are passed on, too.",
    )
    .defaults_to(Value(|_| "false".to_owned())),
    upstream(
        "bucket",
        Switch(|draft, is_on| draft.upstream.is_bucket = is_on),
        "Whether the upstream is a bucket, such as one of S3, that answers 403 for files that it \
         lacks. The answer then means that it lacks the path, and otherwise that it refuses this \
         server.",
    )
    .defaults_to(Value(|_| "false".to_owned())),
    upstream(
        "keep",
        Switch(|draft, is_on| draft.keep = Some(is_on)),
        "Whether the paths that clients fetch are kept in the storage, where later clients find \
         them, also while the upstream is down.",
    )
    .defaults_to(Words("true with a storage, else false")),
    upstream(
        "keep-size",
        Size(1, u64::MAX, |draft, len| draft.keep_size = Some(len)),
        "Total size of the files of kept paths. Above it, those that no client has used for the \
         longest time are deleted, but none that an uploaded path refers to.",
    )
    .defaults_to(Words("100 GiB")),
    upstream(
        "references",
        Switch(|draft, is_on| draft.upstream.has_references = is_on),
        "Whether pushes may leave out paths that the upstream has. Such a path is kept as long as \
         an uploaded path refers to it.",
    )
    .defaults_to(Value(|_| "false".to_owned())),
];
