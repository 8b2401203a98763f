//! Options of a cache.

use std::ffi::OsStr;

use samovar_cache::access::{Forwarded, RefuseWith, is_fingerprint, is_network};
use samovar_cache::{NarCoding, PublicKey, Sign, Stored};
use samovar_nix::Glob;
use samovar_storage::gc::RetentionRule;
use samovar_upstream::settings::WhenDown;

use super::Set::{
    Count, Each, Parsed, Path, Paths, Rules, Size, Switch, Text, Texts, TimeWithin, Word,
};
use super::Shown::{Effective, Value, Words};
use super::{Row, cache, seconds};
use crate::config::draft::CacheDraft;
use crate::config::{PRIORITY_MAX, RATE_MAX, Sources, Value as Toml, unit, value};

pub(in crate::config) static OPTIONS: &[Row<CacheDraft>] = &[
    cache(
        "prefix",
        Parsed(
            "a URL path, such as /team-a",
            |draft: &mut CacheDraft, text| {
                draft.prefix = Some(value::url_prefix(OsStr::new(text))?);
                Some(())
            },
        ),
        "URL path of the cache. Cannot be set for all caches at once if some caches are named.",
    )
    .defaults_to(Words("/, and /NAME for a named cache"))
    .nix_serve(&["path"])
    .nix_serve_default("/"),
    cache(
        "priority",
        Count(0, PRIORITY_MAX, |draft, count| {
            draft.cache.priority = u32::try_from(count).unwrap_or(u32::MAX);
        }),
        "Priority in nix-cache-info. Clients query caches with a lower number first; the priority \
         of cache.nixos.org is 40.",
    )
    .defaults_to(Value(|config| config.caches[0].priority.to_string()))
    .nix_serve(&[]),
    cache(
        "secret-key-files",
        Paths(|draft, paths| draft.secret_key_files = Some(paths)),
        "Files of the secret keys that sign narinfos, as nix-store --generate-binary-cache-key \
         writes them.",
    )
    .defaults_to(Effective("$NIX_SECRET_KEY_FILE, or none", |config| {
        let paths = config.caches[0].secret_key_files.iter();
        let texts = paths.map(|path| Toml::Text(path.display().to_string()));
        Some(Toml::List(texts.collect()).to_string())
    }))
    .nix_serve(&[]),
    cache(
        "access.users-file",
        Path(|draft, path| draft.cache.access.users_file = Some(path)),
        "File of users for HTTP Basic authentication, one NAME:HASH a line with an Argon2id or \
         bcrypt hash, as samovar password prints it. Nix takes user and password from its \
         netrc-file. Read again on reload.",
    ),
    cache(
        "access.tokens-file",
        Path(|draft, path| draft.cache.access.tokens_file = Some(path)),
        "File of access tokens, one NAME:SHA256 a line, as samovar token line prints it. Clients \
         send a token as Authorization: Bearer, or as the password of any user. Read again on \
         reload.",
    ),
    cache(
        "access.networks",
        Each(NETWORKS, |draft, values| {
            draft.cache.access.networks = each(values, is_network)?;
            Some(())
        }),
        "Client networks and addresses that may read, such as 192.0.2.0/24.",
    ),
    cache(
        "access.trusted-proxies",
        Each(
            "a list of networks and addresses, such as \"192.0.2.0/24\", and unix",
            |draft, values| {
                let is_valid = |text: &str| text == "unix" || is_network(text);
                draft.cache.access.trusted_proxies = each(values, is_valid)?;
                Some(())
            },
        ),
        "Networks and addresses of reverse proxies whose access.forwarded-header is trusted for \
         the client's address; unix for proxies that connect by a unix socket.",
    ),
    cache(
        "access.forwarded-header",
        Word(&["x-forwarded-for", "forwarded"], |draft, word| {
            draft.cache.access.forwarded = match word {
                "forwarded" => Forwarded::Forwarded,
                _ => Forwarded::XForwardedFor,
            };
        }),
        "Header in which the proxies of access.trusted-proxies report the client's address. The \
         other header is ignored.",
    ),
    cache(
        "access.uids",
        Each(IDS, |draft, values| {
            draft.cache.access.uids = ids(values)?;
            Some(())
        }),
        "User IDs of processes that may read over a unix socket.",
    ),
    cache(
        "access.gids",
        Each(IDS, |draft, values| {
            draft.cache.access.gids = ids(values)?;
            Some(())
        }),
        "Primary group IDs of processes that may read over a unix socket.",
    ),
    cache(
        "access.certificates.any",
        Switch(|draft, is_on| draft.cache.access.certificates.any = is_on),
        "Whether every client certificate that tls.client-authorities has issued may read.",
    )
    .defaults_to(Value(|config| {
        config.caches[0].access.certificates.any.to_string()
    })),
    cache(
        "access.certificates.fingerprints",
        Each(
            "a list of SHA-256 fingerprints, 64 hexadecimal digits each",
            |draft, values| {
                draft.cache.access.certificates.fingerprints = each(values, is_fingerprint)?;
                Some(())
            },
        ),
        "SHA-256 fingerprints of client certificates that may read.",
    ),
    cache(
        "access.certificates.common-names",
        Texts(|draft, texts| draft.cache.access.certificates.common_names = texts),
        "Subject common names (CN) of client certificates that may read.",
    ),
    cache(
        "access.certificates.dns-names",
        Texts(|draft, texts| draft.cache.access.certificates.dns_names = texts),
        "DNS names, among the subject alternative names, of client certificates that may read.",
    ),
    cache(
        "access.certificates.uris",
        Texts(|draft, texts| draft.cache.access.certificates.uris = texts),
        "URIs, among the subject alternative names, of client certificates that may read.",
    ),
    cache(
        "access.refuse-with",
        Word(&["fitting", "401", "403", "404"], |draft, word| {
            draft.cache.access.refuse_with = match word {
                "401" => RefuseWith::Unauthorized,
                "403" => RefuseWith::Forbidden,
                "404" => RefuseWith::NotFound,
                _ => RefuseWith::Fitting,
            };
        }),
        "Status of a request without access: fitting is 401 if credentials could help, else 403. \
         All versions of Nix treat 403 and 404 as a cache miss; from 2.35 on, 401 is an error.",
    ),
    cache(
        "access.realm",
        Text(|draft, text| draft.cache.access.realm = text),
        "Realm of HTTP authentication, which browsers show when they ask for a password.",
    )
    .defaults_to(Value(|config| config.caches[0].access.realm.clone())),
    cache(
        "access.rate",
        Count(1, RATE_MAX, |draft, count| {
            draft.rate = u32::try_from(count).ok()
        }),
        "Rate limit for each user or address, in requests per second on average. Requests beyond \
         it are answered with 429; builds of Nix clients fail if that lasts.",
    )
    .defaults_to(Words("no limit")),
    cache(
        "access.burst",
        Count(1, RATE_MAX, |draft, count| {
            draft.burst = u32::try_from(count).ok()
        }),
        "Requests that a user or address may send at once after a pause, with access.rate. Should \
         exceed the number of paths in the largest closure.",
    )
    .defaults_to(Words("60 times access.rate")),
    cache(
        "signing.sign",
        Word(&["all", "ultimate", "trusted", "none"], |draft, word| {
            draft.cache.sign = match word {
                "ultimate" => Sign::Ultimate,
                "trusted" => Sign::TrustedBy(Vec::new()),
                "none" => Sign::None,
                _ => Sign::All,
            };
        }),
        "Which paths the secret keys sign: all, ultimate (built on this machine), trusted (signed \
         by one of signing.trusted-keys), or none.",
    ),
    cache(
        "signing.trusted-keys",
        Each(
            "a list of public keys, NAME:BASE64, whose NAME has no blanks",
            |draft, values| {
                let key = |value: &Toml| PublicKey::parse(value.as_text()?).ok();
                draft.trusted_keys = values.iter().map(key).collect::<Option<_>>()?;
                Some(())
            },
        ),
        "Public keys, NAME:BASE64, for signing.sign = \"trusted\".",
    ),
    cache(
        "signing.stored",
        Word(&["replace", "keep"], |draft, word| {
            draft.cache.stored = match word {
                "keep" => Stored::Keep,
                _ => Stored::Replace,
            };
        }),
        "Signatures from the Nix database: keep sends them in addition to those of the cache; \
         replace sends them only for paths that the cache does not sign.",
    ),
    cache(
        "signing.content-addresses",
        Switch(|draft, is_on| draft.cache.emit_ca = is_on),
        "Whether narinfos of content-addressed paths have the field CA.",
    )
    .defaults_to(Value(|config| config.caches[0].emit_ca.to_string())),
    cache(
        "signing.realisations",
        Switch(|draft, is_on| draft.cache.signs_realisations = is_on),
        "Whether the cache signs realisations of content-addressed derivations. It signs the \
         realisations whose output path signing.sign covers.",
    )
    .defaults_to(Value(|config| {
        config.caches[0].signs_realisations.to_string()
    })),
    cache(
        "compression",
        Word(&["none", "zstd"], |draft, word| {
            draft.cache.coding = match word {
                "zstd" => NarCoding::Zstd,
                _ => NarCoding::Identity,
            };
        }),
        "Compression of the NARs of the Nix store. With zstd, a NAR of more than 64 KiB is \
         compressed at its first download and kept in the NAR cache; increase nar-cache.size \
         accordingly. Uploaded NARs are always served with the compression of the upload.",
    ),
    cache(
        "policy.allow",
        Rules(|draft, rules| draft.cache.policy.allow = rules),
        "Paths that may be read: those that match one of these rules. A rule is a table, and \
         matches if all of its conditions do: roots (path is in the closure of these store paths, \
         links, or directories of links), signed-by, ultimate, names (patterns with * and ?), \
         min-age, max-age.",
    )
    .defaults_to(Words("all paths")),
    cache(
        "policy.deny",
        Rules(|draft, rules| draft.cache.policy.deny = rules),
        "Paths that may not be read: those that match one of these rules, even if policy.allow \
         matches them. The conditions are those of policy.allow.",
    )
    .defaults_to(Words("no paths")),
    cache(
        "pages",
        Switch(|draft, is_on| draft.is_without_pages = !is_on),
        "Whether the cache has a web interface, which shows how to use the cache, and the metadata \
         and files of each path.",
    )
    .defaults_to(Value(|_| "true".to_owned()))
    .nix_serve(&[])
    .nix_serve_default("false"),
    cache(
        "title",
        Text(|draft, text| draft.pages.title = text),
        "Title of the cache in its web interface.",
    )
    .defaults_to(Words("the cache's name, or Samovar")),
    cache(
        "description",
        Text(|draft, text| draft.pages.description = text),
        "Description of the cache, in one or two sentences, on the start page of its web \
         interface.",
    ),
    cache(
        "public-url",
        Parsed(
            "a URL that begins with http:// or https://, without a login",
            |draft, text| {
                draft.pages.public_url = Some(value::public_url(text)?);
                Some(())
            },
        ),
        "URL of the cache for clients, in the instructions of the web interface. If it is set for \
         all caches at once, the prefix of each named cache is appended.",
    )
    .defaults_to(Words("the URL in the browser")),
    cache(
        "uploads.retention",
        Parsed("a time of at least 1h, such as 90d", |draft, text| {
            draft.cache.retention.time = Some(retention_time(text)?);
            Some(())
        }),
        "Time since the last use after which uploaded paths are deleted, at least 1h. Pinned paths \
         stay, and so does everything that the remaining paths refer to.",
    )
    .defaults_to(Words("for ever")),
    cache(
        "uploads.retention-rules",
        Each(
            "a list of rules such as \"*-debug=30d\", with a time of at least 1h or forever",
            |draft, values| {
                let rule = |value: &Toml| retention_rule(value.as_text()?);
                draft.cache.retention.rules = values.iter().map(rule).collect::<Option<_>>()?;
                Some(())
            },
        ),
        "Retention times of paths by name, PATTERN=TIME or PATTERN=forever. The first rule whose \
         pattern, with * and ?, matches the name without the hash part applies, otherwise \
         uploads.retention does.",
    ),
    cache(
        "uploads.retention-size",
        Size(1, u64::MAX, |draft, len| {
            draft.cache.retention.size = Some(len);
        }),
        "Total size of the files of uploaded paths above which the least recently used paths are \
         deleted. Pinned paths, and paths used within the last day, stay.",
    )
    .defaults_to(Words("no limit")),
    cache(
        "uploads.quota",
        Size(1, u64::MAX, |draft, len| draft.cache.quota = Some(len)),
        "Total size of all files, narinfos, build logs and realisations of the cache above which \
         uploads are refused with 413.",
    )
    .defaults_to(Words("no limit")),
    cache(
        "sources",
        Each(
            "a list with one or more of \"nix-store\", \"storage\" and \"upstreams\", each once \
             and in this order",
            |draft, values| {
                draft.cache.sources = Sources::parse(values)?;
                Some(())
            },
        ),
        "What the cache serves: paths of the Nix store, uploaded paths in the storage, and paths \
         that upstreams have. A path is looked up in this order. Without storage, the cache \
         accepts no uploads.",
    )
    .defaults_to(Words("all three")),
    cache(
        "upstreams",
        Texts(|draft, texts| draft.cache.upstreams = Some(texts)),
        "Names of the upstreams of the cache; an empty list for none. Can be set only for a named \
         cache.",
    )
    .defaults_to(Words("all upstreams"))
    .of_one(),
    cache(
        "upstream-budget",
        TimeWithin(50, 60_000, |draft, time| draft.cache.upstream_budget = time),
        "Time within which a request for a narinfo is answered, whatever the upstreams do.",
    )
    .defaults_to(Value(|config| seconds(config.caches[0].upstream_budget))),
    cache(
        "upstream-down",
        Word(&["miss", "error"], |draft, word| {
            draft.cache.upstream_down = match word {
                "error" => WhenDown::Error,
                _ => WhenDown::Miss,
            };
        }),
        "Answer for a path of which no upstream has said within upstream-budget whether it has it: \
         miss is 404, so clients build the path or ask another cache; error is 503, so they try \
         again, and then fail.",
    ),
    cache(
        "negative-ttl",
        TimeWithin(0, 3_600_000, |draft, time| draft.cache.negative_ttl = time),
        "Time for which the server remembers that no upstream has a path.",
    )
    .defaults_to(Value(|config| seconds(config.caches[0].negative_ttl))),
];

/// Parses a retention time. Returns it in seconds. Refuses times of less than an hour.
fn retention_time(text: &str) -> Option<i64> {
    let seconds = i64::try_from(unit::time(text)?.as_secs()).ok()?;
    (seconds >= 3600).then_some(seconds)
}

/// Parses `PATTERN=TIME`. The names of store paths may contain `=`, times do not.
fn retention_rule(text: &str) -> Option<RetentionRule> {
    let (names, time) = text.rsplit_once('=')?;
    let time = match time.trim() {
        "forever" => None,
        time => Some(retention_time(time)?),
    };
    let names = Some(names.trim()).filter(|names| !names.is_empty())?;
    Some(RetentionRule {
        names: Glob::new(names),
        time,
    })
}

const NETWORKS: &str = "a list of networks and addresses, such as \"192.0.2.0/24\"";

/// Converts values to texts; `None` if one is not a text or not valid.
fn each(values: &[Toml], is_valid: impl Fn(&str) -> bool) -> Option<Vec<String>> {
    let text = |value: &Toml| {
        value
            .as_text()
            .filter(|text| is_valid(text))
            .map(str::to_owned)
    };
    values.iter().map(text).collect()
}

const IDS: &str = "a list of numeric user or group IDs";

fn ids(values: &[Toml]) -> Option<Vec<u32>> {
    let id = |value: &Toml| match value {
        Toml::Count(number) => u32::try_from(*number).ok(),
        Toml::Text(text) => text.parse().ok(),
        _ => None,
    };
    values.iter().map(id).collect()
}
