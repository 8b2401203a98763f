//! Warnings about options that are valid, but probably not intended.

use samovar_cache::access::{RefuseWith, without_host_bits};
use samovar_storage::gc::retention_time;
use samovar_text::without_logins;

use super::options::OptionSpec;
use super::settings::Settings;
use super::{CacheSettings, ClientAddress, Configuration};
use crate::listener::ListenSpec;

/// Retention in seconds below which there is a warning: Nix caches narinfos that long.
const RETENTION_MIN: i64 = 30 * 86_400;

/// Returns the warnings about a configuration, one line each.
pub(super) fn remarks(settings: &Settings, config: &Configuration) -> Vec<String> {
    let mut remarks = Vec::new();
    for cache in &config.caches {
        let of = match &*cache.name {
            "" => String::new(),
            name => format!(" of the cache {name}"),
        };
        let time = cache.retention.time;
        if let Some(time) = time.filter(|time| *time < RETENTION_MIN) {
            let time = retention_time(time);
            remarks.push(format!(
                "uploads.retention{of} is {time}: clients keep narinfos for 30 days, and \
                 may request paths that are deleted by then"
            ));
        }
        if let (Some(size), Some(quota)) = (cache.retention.size, cache.quota)
            && size >= quota
        {
            remarks.push(format!(
                "uploads.retention-size{of} has no effect: uploads.quota is not larger, so uploads \
                 are refused before paths are deleted"
            ));
        }
        remarks.extend(of_access(cache, &of, config.client_address));
        let has_users = !cache.access.uids.is_empty() || !cache.access.gids.is_empty();
        let is_unix = |listener: &ListenSpec| matches!(listener, ListenSpec::Unix(_));
        // Otherwise the service manager may have passed a Unix socket.
        if has_users && config.listen_given && !config.listeners.iter().any(is_unix) {
            remarks.push(format!(
                "access.uids and access.gids{of} have no effect: the server listens on no Unix \
                 socket"
            ));
        }
    }
    remarks.extend(of_root(settings, config));
    remarks.extend(of_admin(config));
    let is_open = |cache: &CacheSettings| cache.access.lets_everybody_in();
    let clients = config.tls.as_ref().and_then(|tls| tls.clients.as_ref());
    if clients.is_some_and(|clients| !clients.required) && config.caches.iter().all(is_open) {
        remarks.push(
            "tls.client-authorities restricts no access: clients without a certificate may read. \
             Set access.certificates, or tls.client-certificates = \"required\""
                .to_owned(),
        );
    }
    if config.storage.is_none() {
        for spec in OptionSpec::all().filter(|spec| spec.name.starts_with("uploads.")) {
            let of_cache = |cache: &CacheSettings| {
                let name = (!cache.name.is_empty()).then_some(&*cache.name);
                settings.find(name, spec.name).map(|(name, _)| name)
            };
            if let Some(name) = config.caches.iter().find_map(of_cache) {
                remarks.push(format!(
                    "{name} has no effect without storage, which names the directory for uploads"
                ));
            }
        }
    }
    remarks.extend(of_upstreams(config));
    remarks
}

/// Returns the warnings about upstreams.
fn of_upstreams(config: &Configuration) -> Vec<String> {
    let mut remarks = Vec::new();
    for upstream in &config.upstreams {
        let name = &upstream.name;
        if !config.caches.iter().any(|cache| cache.uses(upstream)) {
            remarks.push(format!(
                "the upstream {name} is not asked: no cache has it in its list upstreams"
            ));
        }
        if upstream.is_unsigned {
            remarks.push(format!(
                "upstreams.{name}.unsigned = true: narinfos of {} are passed on unverified, so its \
                 operator, and each machine on the way to it, can change what clients download; if \
                 it signs narinfos, set public-keys instead",
                without_logins(&upstream.url)
            ));
        }
    }
    remarks
}

/// Returns the warnings about the options `access` of a cache. `of`: ` of the cache NAME`, or
/// empty.
fn of_access(cache: &CacheSettings, of: &str, client_address: ClientAddress) -> Vec<String> {
    let access = &cache.access;
    let mut remarks = Vec::new();
    if access.lets_everybody_in() {
        // Proxies also tell which clients are counted and logged.
        let are_used = access.rate_limit.is_some() || client_address != ClientAddress::Peer;
        let names = [
            (
                "access.refuse-with",
                access.refuse_with != RefuseWith::default(),
            ),
            (
                "access.trusted-proxies",
                !access.trusted_proxies.is_empty() && !are_used,
            ),
        ];
        for (name, _) in names.into_iter().filter(|(_, is_useless)| *is_useless) {
            remarks.push(format!(
                "{name}{of} restricts nothing: without access.users-file, tokens-file, networks or \
                 another method, all clients may read"
            ));
        }
    }
    let lists = [
        ("access.networks", &access.networks),
        ("access.trusted-proxies", &access.trusted_proxies),
    ];
    for (name, networks) in lists {
        for network in networks {
            if let Some(meant) = without_host_bits(network) {
                remarks.push(format!(
                    "{name}{of}: {network:?} means the whole network {meant:?}; write that, or an \
                     address without a prefix length"
                ));
            }
        }
    }
    remarks
}

/// Returns a remark if no cache is at the root, and a cache has the prefix that its name gives it.
/// Who has set all prefixes knows it.
fn of_root(settings: &Settings, config: &Configuration) -> Option<String> {
    let caches = &*config.caches;
    let is_named = |cache: &CacheSettings| {
        !cache.name.is_empty() && settings.find(Some(&cache.name), "prefix").is_none()
    };
    let is_at_root = |cache: &CacheSettings| cache.prefix.is_empty();
    if caches.iter().any(is_at_root) {
        return None;
    }
    let name = &caches.iter().find(|cache| is_named(cache))?.name;
    let (at, another) = match caches {
        [only] => (format!("the only cache is at {}/", only.prefix), "another"),
        caches => {
            let prefixes = caches.iter().map(|cache| format!("{}/", cache.prefix));
            let prefixes: Vec<_> = prefixes.collect();
            (
                format!("the caches are at {}", prefixes.join(", ")),
                "one more",
            )
        }
    };
    let which = match caches.len() {
        1 => "it".to_owned(),
        _ => format!("the cache {name}"),
    };
    Some(format!(
        "nothing is served at /: {at}; to serve {which} at /, set caches.{name}.prefix = \"/\"; to \
         serve {another} there, add [caches.default] with prefix = \"/\""
    ))
}

/// Returns the warning about the admin listener, which asks for no password.
fn of_admin(config: &Configuration) -> Option<String> {
    let is_any = |listener: &ListenSpec| {
        let address = listener.address();
        address.is_some_and(|address| address.is_unspecified())
    };
    if config.admin.listeners.iter().any(is_any) {
        return Some(
            "admin.listen is open on all interfaces: metrics and status page need no password, and \
             show paths and clients. Name an address of an internal network"
                .to_owned(),
        );
    }
    None
}
