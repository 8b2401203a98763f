//! Converts settings to a configuration.

use std::path::{Path, PathBuf};

use samovar_cache::is_own_segment;
use samovar_text::without_logins;

use super::draft::{CacheDraft, ServerDraft};
use super::error::{ConfigError, Origin};
use super::oidc::issuers;
use super::options::{self, FindCredential, Kind, OptionSpec, Row, Scope};
use super::remarks::remarks;
use super::settings::{Setting, Settings};
use super::toml::Value;
use super::upstreams::{check_uses, upstreams};
use super::{CacheSettings, ClientAddress, Configuration};
use crate::listener::ListenSpec;

/// Prefix of a path that names a credential of the service manager.
const CREDENTIAL: &str = "credential:";

/// Options that restrict access by a list. An empty list would restrict nothing.
const ACCESS_LISTS: [&str; 7] = [
    "access.networks",
    "access.uids",
    "access.gids",
    "access.certificates.fingerprints",
    "access.certificates.common-names",
    "access.certificates.dns-names",
    "access.certificates.uris",
];

/// Reads all settings. `variable` looks up environment variables that are not options, such as
/// `CREDENTIALS_DIRECTORY`.
///
/// # Errors
///
/// [`ConfigError`] for the first invalid setting.
pub fn read(
    settings: &Settings,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Configuration, ConfigError> {
    let credential = |text: &str| path(text, &variable);
    let mut draft = ServerDraft::default();
    let find = |option: &str| settings.find(None, option);
    for rows in [options::server::OPTIONS, options::storage::OPTIONS] {
        set_all(rows, &mut draft, find, &credential)?;
    }
    let mut config = draft.finish()?;
    if let (Some(store), Some((_, setting))) = (&mut config.store, settings.find(None, "store")) {
        *store = resolve_store(store, &setting.origin);
    }
    let sockets = [
        ("listen", &mut config.listeners),
        ("admin.listen", &mut config.admin.listeners),
    ];
    for (option, specs) in sockets {
        let Some((_, setting)) = settings.find(None, option) else {
            continue;
        };
        for spec in specs {
            if let ListenSpec::Unix(path) = spec {
                *path = setting.origin.resolve(std::mem::take(path));
            }
        }
    }
    let first_directory = |name: &str| {
        let names = variable(name)?;
        let first = names.split(':').next().unwrap_or_default();
        (!first.is_empty()).then(|| PathBuf::from(first))
    };
    if let Some(directory) = first_directory("CACHE_DIRECTORY") {
        config.cache_directory = directory;
    }
    if config.state_directory.is_none() {
        config.state_directory = first_directory("STATE_DIRECTORY");
    }
    let key_file = variable("NIX_SECRET_KEY_FILE").map(PathBuf::from);
    config.caches = caches(settings, &config, key_file.as_deref(), &credential)?;
    let of_urls = std::mem::take(&mut config.upstreams);
    let has_storage = config.storage.is_some();
    config.upstreams = upstreams(settings, of_urls, has_storage, &credential)?;
    config.oidc = issuers(settings, has_storage, &credential)?;
    check_uses(settings, &config)?;
    check_shown_metrics(&config)?;
    config.files = settings.files().to_vec();
    config.remarks = remarks(settings, &config);
    let trusts_nobody = |cache: &CacheSettings| cache.access.trusted_proxies.is_empty();
    if config.client_address == ClientAddress::Forwarded && config.caches.iter().all(trusts_nobody)
    {
        let option = "log.client-address = \"forwarded\"";
        return Err(super::draft::requires(option, "access.trusted-proxies"));
    }
    Ok(config)
}

/// Resolves the directory of a store as [`Origin::resolve`] does, if the URI is that of a
/// directory.
fn resolve_store(uri: &str, origin: &Origin) -> String {
    let at = uri.find('?').unwrap_or(uri.len());
    let (base, query) = uri.split_at(at);
    match base.contains('/') && !base.contains("://") {
        true => format!("{}{query}", origin.resolve(base.into()).display()),
        false => uri.to_owned(),
    }
}

/// Sets all options of a draft for which `find` returns a setting, with its full name.
pub(super) fn set_all<'a, D>(
    rows: &[Row<D>],
    draft: &mut D,
    find: impl Fn(&str) -> Option<(String, &'a Setting)>,
    credential: FindCredential<'_>,
) -> Result<(), ConfigError> {
    for row in rows {
        if let Some((name, setting)) = find(row.spec.name) {
            let resolve = |text: &str| Ok(setting.origin.resolve(credential(text)?));
            row.set
                .apply(draft, &setting.value, &resolve)
                .map_err(|expected| of_kind(row.spec.kind, name, setting, expected))?;
        }
    }
    Ok(())
}

/// Creates the error for an invalid value of an option of this type.
fn of_kind(kind: Kind, name: String, setting: &Setting, expected: String) -> ConfigError {
    match kind {
        Kind::Url | Kind::UrlOf(_) | Kind::Urls => invalid_url(name, setting, expected),
        _ => invalid(name, setting, expected),
    }
}

fn caches(
    settings: &Settings,
    config: &Configuration,
    key_file: Option<&Path>,
    credential: FindCredential<'_>,
) -> Result<Vec<CacheSettings>, ConfigError> {
    let has_authorities = config.tls.as_ref().is_some_and(|tls| tls.clients.is_some());
    let one = |name: Option<&str>| {
        let key_file = key_file.map(Path::to_owned);
        let mut draft = CacheDraft::default();
        let find = |option: &str| settings.find(name, option);
        set_all(options::cache::OPTIONS, &mut draft, find, credential)?;
        let mut cache = draft.finish(name.unwrap_or_default(), key_file, has_authorities)?;
        check_access(settings, name, &cache)?;
        append_prefix_to_common_url(settings, &mut cache);
        separate_texts_of_server(settings, &mut cache);
        Ok(cache)
    };
    let named = settings.named(Scope::Cache);
    let names: Vec<&str> = named.map(|(name, _)| name).collect();
    if names.is_empty() {
        return Ok(vec![one(None)?]);
    }
    if let Some(setting) = settings.exactly("prefix") {
        let expected = "set for each cache in [caches.NAME], since some are named".to_owned();
        return Err(invalid("prefix".to_owned(), setting, expected));
    }
    let mut caches: Vec<CacheSettings> = Vec::new();
    for name in names {
        let cache = one(Some(name))?;
        if let Some(other) = caches.iter().find(|other| other.prefix == cache.prefix) {
            return Err(ConfigError::Conflict(format!(
                "the caches {} and {name} have the same prefix {}/: change one of them",
                other.name, cache.prefix
            )));
        }
        caches.push(cache);
    }
    for below in &caches {
        if let Some(above) = caches.iter().find(|above| hides_urls(below, above)) {
            return Err(ConfigError::Conflict(format!(
                "the prefix {}/ of the cache {} hides URLs of the cache {}: set another prefix",
                below.prefix, below.name, above.name
            )));
        }
    }
    Ok(caches)
}

/// Whether requests for URLs of the cache `above` would go to the cache `below`, because a request
/// goes to the cache with the longest prefix.
fn hides_urls(below: &CacheSettings, above: &CacheSettings) -> bool {
    let rest = below.prefix.strip_prefix(&above.prefix);
    let rest = rest.and_then(|rest| rest.strip_prefix('/'));
    let has_pages = above.pages.is_some();
    rest.is_some_and(|rest| is_own_segment(rest.split('/').next().unwrap_or(rest), has_pages))
}

/// Refuses to show the metrics, which are about all caches, to everybody if some caches have access
/// rules.
fn check_shown_metrics(config: &Configuration) -> Result<(), ConfigError> {
    const OPTION: &str = "admin.on-cache";
    if !config.admin.is_on_cache {
        return Ok(());
    }
    let root = config.caches.iter().find(|cache| cache.prefix.is_empty());
    let Some(root) = root else {
        return Err(ConfigError::Conflict(format!(
            "{OPTION} needs a cache with the prefix /, whose readers may see the metrics: add one, \
             or use admin.listen"
        )));
    };
    let is_private = |cache: &&CacheSettings| !cache.access.lets_everybody_in();
    match config.caches.iter().find(is_private) {
        Some(private) if !is_private(&root) => Err(ConfigError::Conflict(format!(
            "{OPTION} would show requests to the cache {}, which has access rules, to everybody, \
             since the cache {} has none: use admin.listen",
            private.name, root.name
        ))),
        _ => Ok(()),
    }
}

/// Refuses an empty list of clients for a cache that everyone may read, unless the list overrides
/// one that is set for all caches.
fn check_access(
    settings: &Settings,
    cache: Option<&str>,
    made: &CacheSettings,
) -> Result<(), ConfigError> {
    if !made.access.lets_everybody_in() {
        return Ok(());
    }
    for option in ACCESS_LISTS {
        let Some((name, setting)) = settings.find(cache, option) else {
            continue;
        };
        let is_override = name != option && settings.exactly(option).is_some();
        if setting.value == Value::List(Vec::new()) && !is_override {
            let expected = "left out, or name a client: without one, everybody may read";
            return Err(invalid(name, setting, expected.to_owned()));
        }
    }
    Ok(())
}

/// Appends the prefix of a cache to a `public-url` that is set for all caches, because that is the
/// URL of the server.
fn append_prefix_to_common_url(settings: &Settings, cache: &mut CacheSettings) {
    let is_own = cache.name.is_empty()
        || settings
            .exactly(&Scope::Cache.full_name(&cache.name, "public-url"))
            .is_some();
    let url = cache
        .pages
        .as_mut()
        .and_then(|pages| pages.public_url.as_mut());
    if let (false, Some(url)) = (is_own, url) {
        url.push_str(&cache.prefix);
    }
}

/// Makes the title and the description that are set for all caches those of the list of caches. A
/// named cache without texts of its own has its name as title, and no description.
fn separate_texts_of_server(settings: &Settings, cache: &mut CacheSettings) {
    let (name, Some(pages)) = (&cache.name, &mut cache.pages) else {
        return;
    };
    if name.is_empty() {
        return;
    }
    let text = |option: &str| match settings.exactly(option).map(|setting| &setting.value) {
        Some(Value::Text(text)) => text.clone(),
        _ => String::new(),
    };
    let is_own = |option: &str| {
        settings
            .exactly(&Scope::Cache.full_name(name, option))
            .is_some()
    };
    (pages.server_title, pages.server_description) = (text("title"), text("description"));
    if !is_own("title") {
        pages.title.clone_from(name);
    }
    if !is_own("description") {
        pages.description.clear();
    }
}

/// Resolves a configured path, which may name a credential of the service manager.
fn path(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<PathBuf, String> {
    match text.strip_prefix(CREDENTIAL) {
        None => Ok(PathBuf::from(text)),
        Some(name) if name.is_empty() || name.contains('/') => {
            Err("a credential's name, without a slash".to_owned())
        }
        Some(name) => match variable("CREDENTIALS_DIRECTORY") {
            Some(directory) => Ok(Path::new(&directory).join(name)),
            None => Err(
                "the path of a file: the service manager has passed no credentials \
                         (LoadCredential=)"
                    .to_owned(),
            ),
        },
    }
}

/// Creates the error for an invalid value in which a URL may be. If the URL may have a login, the
/// value is not shown, because the end of a login in an invalid URL is unknown.
pub(super) fn invalid_url(option: String, setting: &Setting, expected: String) -> ConfigError {
    let mut error = invalid(option, setting, expected);
    if let ConfigError::Value { found, .. } = &mut error
        && ["@", "password", "secret"]
            .iter()
            .any(|sign| found.contains(sign))
    {
        *found = "a value that is not shown, because it may contain a login".to_owned();
    }
    error
}

pub(super) fn invalid(option: String, setting: &Setting, expected: String) -> ConfigError {
    // A secret key may stand where a public one belongs.
    let found = match option.ends_with("public-keys") || option.ends_with("trusted-keys") {
        true => "something else, which is not shown".to_owned(),
        false => without_logins(&setting.value.to_string()),
    };
    ConfigError::Value {
        origin: setting.origin.clone(),
        option,
        expected,
        found,
    }
}

/// Formats the effective configuration as a file, with the origin of each value. An option that is
/// not set is a comment, `#NAME = VALUE`, if its default is a single value.
pub fn show(settings: &Settings, config: &Configuration) -> String {
    let mut text = String::new();
    for spec in OptionSpec::all() {
        text.push_str(&match settings.exactly(spec.name) {
            Some(setting) => line(spec.name, setting),
            None => match spec.effective(config) {
                Some((value, "")) => format!("#{} = {value}\n", spec.name),
                Some((value, remark)) => format!("#{} = {value}  # {remark}\n", spec.name),
                None => format!("# {}: {}\n", spec.name, spec.default()),
            },
        });
    }
    for scope in Scope::NAMED {
        for (thing, _) in settings.named(scope) {
            let start = text.len();
            for spec in OptionSpec::of(scope) {
                let name = scope.full_name(thing, spec.name);
                if let Some(setting) = settings.exactly(&name) {
                    text.push_str(&line(&name, setting));
                }
            }
            if text.len() == start {
                text.push_str(&format!("{}.{thing} = {{}}\n", scope.table()));
            }
        }
    }
    for upstream in &config.upstreams {
        let name = Scope::Upstream.full_name(&upstream.name, "public-keys");
        let is_in_table = settings.exactly(&Scope::Upstream.full_name(&upstream.name, "url"));
        if let (Some(_), None) = (is_in_table, settings.exactly(&name)) {
            let keys = upstream.public_keys.iter();
            let keys = keys.map(|key| Value::Text(key.to_string()));
            text.push_str(&format!("#{name} = {}\n", Value::List(keys.collect())));
        }
    }
    // So that nobody prints a login by mistake.
    without_logins(&text)
}

fn line(name: &str, setting: &Setting) -> String {
    format!("{name} = {}  # {}\n", setting.value, setting.origin)
}
