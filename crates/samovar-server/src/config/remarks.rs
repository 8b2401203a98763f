//! Warnings about options that are valid, and hardly do what was meant.

use super::options::OptionSpec;
use super::settings::Settings;
use super::{CacheSettings, Configuration};
use crate::listener::ListenSpec;

/// Retention in days below which there is a warning: Nix caches narinfos that long.
const RETENTION_DAYS_MIN: u32 = 30;

/// Returns the warnings about a configuration, one line each.
pub(super) fn remarks(settings: &Settings, config: &Configuration) -> Vec<String> {
    let mut remarks = Vec::new();
    for cache in &config.caches {
        let of = match &*cache.name {
            "" => String::new(),
            name => format!(" of the cache {name}"),
        };
        let days = cache.retention.days;
        if let Some(days) = days.filter(|days| *days < RETENTION_DAYS_MIN) {
            let unit = if days == 1 { "day" } else { "days" };
            remarks.push(format!(
                "uploads.retention{of} is {days} {unit}: clients keep narinfos for 30 days, and \
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
    remarks
}
