//! Reads the upstreams, which the option `upstream` and the tables `[upstreams.NAME]` name.

use std::collections::BTreeMap;

use samovar_nix::PublicKey;
use samovar_upstream::settings::{Resign, UpstreamSettings};

use super::draft::{UpstreamDraft, requires};
use super::error::{ConfigError, Origin};
use super::options::{self, FindCredential, Scope};
use super::read::{invalid_url, set_all};
use super::settings::Settings;
use super::{CacheSettings, Configuration, nearest};

/// The option with URLs alone.
const URLS: &str = "upstream";

/// Returns all upstreams, sorted by name: the upstreams in tables, and `of_urls`, the upstreams in
/// the option `upstream`, which have no names yet.
pub(super) fn upstreams(
    settings: &Settings,
    of_urls: Vec<UpstreamSettings>,
    has_storage: bool,
    credential: FindCredential<'_>,
) -> Result<Vec<UpstreamSettings>, ConfigError> {
    let mut upstreams = Vec::new();
    for (name, origin) in settings.named(Scope::Upstream) {
        let upstream = of_table(settings, name, origin, has_storage, credential)?;
        let url = without_login(&upstream.url);
        if let Some(other) = with_url(&upstreams, &url) {
            return Err(ConfigError::Conflict(format!(
                "{origin}: the upstreams {} and {name} have the same URL {url}: remove one of them",
                other.name
            )));
        }
        upstreams.push(upstream);
    }
    if let Some(setting) = settings.exactly(URLS) {
        let in_tables = upstreams.len();
        add_urls(&mut upstreams, of_urls, &setting.origin)?;
        let keep = has_storage.then_some(UpstreamSettings::KEEP_LEN);
        upstreams[in_tables..]
            .iter_mut()
            .for_each(|one| one.keep = keep);
    }
    upstreams.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(upstreams)
}

/// Reads the upstream of a table. `origin`: the place of the table.
fn of_table(
    settings: &Settings,
    name: &str,
    origin: &Origin,
    has_storage: bool,
    credential: FindCredential<'_>,
) -> Result<UpstreamSettings, ConfigError> {
    let mut draft = UpstreamDraft::default();
    let find = |option: &str| {
        let name = Scope::Upstream.full_name(name, option);
        let setting = settings.exactly(&name)?;
        Some((name, setting))
    };
    set_all(options::upstream::OPTIONS, &mut draft, find, credential)?;
    let table = format!("{}.{name}", Scope::Upstream.table());
    let keep = draft.keep(&table, has_storage)?;
    let mut upstream = draft.upstream;
    upstream.name = name.to_owned();
    upstream.keep = keep;
    if upstream.has_references && keep.is_none() {
        let needed = if has_storage {
            "keep = true"
        } else {
            "storage"
        };
        return Err(requires(&format!("{table}.references = true"), needed));
    }
    if upstream.url.is_empty() {
        return Err(ConfigError::Conflict(format!(
            "{origin}: {table} has no url: set {table}.url, or remove the table"
        )));
    }
    let url = without_login(&upstream.url);
    upstream.public_keys = draft.public_keys.unwrap_or_else(|| known_keys(&url));
    if upstream.is_unsigned {
        if upstream.resign != Resign::No {
            return Err(ConfigError::Conflict(format!(
                "{origin}: {table}.resign would sign narinfos that are not verified, because \
                 {table}.unsigned = true: remove one of them"
            )));
        }
    } else if upstream.public_keys.is_empty() {
        return Err(ConfigError::Conflict(format!(
            "{origin}: {table} has no public key, so its narinfos cannot be verified: set \
             {table}.public-keys to the key on the web page of the cache, which `samovar use \
             --print {url}` shows, too; or set unsigned = true to pass on unverified narinfos"
        )));
    }
    Ok(upstream)
}

/// Adds the upstreams of the option `upstream`, which was set at `origin`.
fn add_urls(
    upstreams: &mut Vec<UpstreamSettings>,
    of_urls: Vec<UpstreamSettings>,
    origin: &Origin,
) -> Result<(), ConfigError> {
    let in_tables = upstreams.len();
    for mut upstream in of_urls {
        let url = without_login(&upstream.url);
        if let Some(other) = with_url(upstreams, &url) {
            let twice = match other.name.is_empty() {
                true => format!("names {url} twice: remove one of them"),
                false => format!(
                    "names {url}, which is the URL of {}.{}, too: remove one of them",
                    Scope::Upstream.table(),
                    other.name
                ),
            };
            return Err(ConfigError::Conflict(format!("{origin}: {URLS} {twice}")));
        }
        upstream.public_keys = known_keys(&url);
        if upstream.public_keys.is_empty() {
            return Err(ConfigError::Conflict(format!(
                "{origin}: {URLS} names {url}, whose public key is not known: set \
                 upstreams.NAME.url and upstreams.NAME.public-keys instead, with a name of your \
                 choice and the key on the web page of the cache, which `samovar use --print \
                 {url}` shows, too"
            )));
        }
        upstreams.push(upstream);
    }
    name_by_urls(upstreams, in_tables);
    Ok(())
}

/// Gives names to all upstreams from that with this index on: the host, else the URL without its
/// scheme, else the URL.
fn name_by_urls(upstreams: &mut [UpstreamSettings], first: usize) {
    for form in [host, without_scheme, without_login] {
        let names = |upstream: &UpstreamSettings| match &*upstream.name {
            "" => form(&upstream.url),
            name => name.to_owned(),
        };
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for upstream in upstreams.iter() {
            *counts.entry(names(upstream)).or_default() += 1;
        }
        for upstream in upstreams.iter_mut().skip(first) {
            let name = names(upstream);
            if counts.get(&name) == Some(&1) {
                upstream.name = name;
            }
        }
    }
}

/// Finds the upstream with this URL, which has no login.
fn with_url<'a>(upstreams: &'a [UpstreamSettings], url: &str) -> Option<&'a UpstreamSettings> {
    let is_same = |other: &&UpstreamSettings| without_login(&other.url) == url;
    upstreams.iter().find(is_same)
}

fn known_keys(url: &str) -> Vec<PublicKey> {
    let key = UpstreamSettings::known_key(url).and_then(|key| PublicKey::parse(key).ok());
    key.into_iter().collect()
}

/// Returns a valid URL without its login.
fn without_login(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, _)) => format!("{scheme}://{}", without_scheme(url)),
        None => url.to_owned(),
    }
}

/// Returns a valid URL without its scheme and login.
fn without_scheme(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    format!("{host}{path}")
}

/// Returns the host of a valid URL, without the port.
fn host(url: &str) -> String {
    let rest = without_scheme(url);
    let authority = rest.split('/').next().unwrap_or_default();
    let port_at = authority
        .rfind(':')
        .filter(|at| !authority[*at..].contains(']'));
    authority[..port_at.unwrap_or(authority.len())].to_owned()
}

/// Checks which upstreams the caches use.
pub(super) fn check_uses(settings: &Settings, config: &Configuration) -> Result<(), ConfigError> {
    for cache in &config.caches {
        let full_name = Scope::Cache.full_name(&cache.name, "upstreams");
        for name in cache.upstreams.iter().flatten() {
            let names = || config.upstreams.iter().map(|upstream| &*upstream.name);
            if names().any(|known| known == name) {
                continue;
            }
            let expected = match (nearest(name, names()), names().collect::<Vec<_>>()) {
                (Some(near), _) => format!("a list with {near:?} instead of {name:?}"),
                (None, known) if known.is_empty() => "left out: there is no upstream".to_owned(),
                (None, known) => format!("a list of names among {}", known.join(", ")),
            };
            if let Some(setting) = settings.exactly(&full_name) {
                return Err(invalid_url(full_name, setting, expected));
            }
        }
        check_sources(cache, config)?;
        for upstream in config
            .upstreams
            .iter()
            .filter(|upstream| cache.uses(upstream))
        {
            let resign = match upstream.resign {
                Resign::No => continue,
                Resign::Add => "add",
                Resign::Only => "only",
            };
            if cache.secret_key_files.is_empty() {
                let option = format!("upstreams.{}.resign = {resign:?}", upstream.name);
                let of = match &*cache.name {
                    "" => String::new(),
                    name => format!(" of the cache {name}, which passes on what this upstream has"),
                };
                return Err(requires(&option, &format!("secret-key-files{of}")));
            }
        }
    }
    Ok(())
}

/// Checks that the server has one of the sources of a cache.
fn check_sources(cache: &CacheSettings, config: &Configuration) -> Result<(), ConfigError> {
    let sources = cache.sources;
    let has_upstream = config.upstreams.iter().any(|one| cache.uses(one));
    if sources.nix_store || sources.storage && config.storage.is_some() || has_upstream {
        return Ok(());
    }
    let of = match &*cache.name {
        "" => String::new(),
        name => format!(" of the cache {name}"),
    };
    let missing = match (sources.storage, sources.upstreams) {
        (true, true) => "storage or an upstream",
        (true, false) => "storage",
        _ => "an upstream",
    };
    Err(requires(
        &format!("sources = {}{of}", sources.list()),
        missing,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_short_as_they_are_unique() {
        let check = |urls: &[&str], expected: &[&str]| {
            let mut upstreams = vec![UpstreamSettings::new("a".to_owned(), "http://x".to_owned())];
            let unnamed = |url: &&str| UpstreamSettings::new(String::new(), (*url).to_owned());
            upstreams.extend(urls.iter().map(unnamed));
            name_by_urls(&mut upstreams, 1);
            let names = upstreams.iter().map(|upstream| &*upstream.name);
            assert_eq!(names.collect::<Vec<_>>()[1..], *expected);
        };
        check(&["https://u:p@b:1/c"], &["b"]);
        check(&["https://[::1]:1/c"], &["[::1]"]);
        check(&["https://b/c", "https://u:p@b:1"], &["b/c", "b:1"]);
        check(&["https://b", "https://b:1"], &["b", "b:1"]);
        check(&["http://b", "https://b"], &["http://b", "https://b"]);
        // The name of a table is taken.
        check(&["https://a:1"], &["a:1"]);
        check(&["https://u@a"], &["https://a"]);
    }
}
