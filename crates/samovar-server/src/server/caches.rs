//! The caches as they are configured.

use samovar_cache::{CacheConfig, load_key};

use crate::config::CacheSettings;
use crate::log::ErrorLog;

/// Reads the keys of all caches.
pub(super) fn read(
    settings: &[CacheSettings],
    errors: &ErrorLog,
) -> anyhow::Result<Vec<CacheConfig>> {
    settings
        .iter()
        .map(|cache| read_one(cache, errors))
        .collect()
}

fn read_one(settings: &CacheSettings, errors: &ErrorLog) -> anyhow::Result<CacheConfig> {
    let mut key = None;
    if let Some(path) = settings.secret_key_files.first() {
        let loaded = load_key(path)?;
        for warning in &loaded.warnings {
            errors.warning(warning);
        }
        key = Some(loaded.key);
    }
    Ok(CacheConfig {
        path_prefix: settings.prefix.clone(),
        priority: settings.priority,
        key,
    })
}
