//! The caches as they are configured.

use samovar_cache::access::Access;
use samovar_cache::{CacheConfig, PagesConfig, Signing, Site, load_key};

use crate::config::{CacheSettings, Pages};
use crate::log::ErrorLog;

/// Makes the caches, with the files that they name.
pub(super) fn read(
    settings: &[CacheSettings],
    errors: &ErrorLog,
) -> anyhow::Result<Vec<CacheConfig>> {
    settings
        .iter()
        .map(|cache| read_one(cache, errors))
        .collect()
}

/// Reads the keys of all caches, and how they sign.
pub(super) fn signing(
    settings: &[CacheSettings],
    errors: &ErrorLog,
) -> anyhow::Result<Vec<Signing>> {
    settings
        .iter()
        .map(|cache| signing_of(cache, errors))
        .collect()
}

fn read_one(settings: &CacheSettings, errors: &ErrorLog) -> anyhow::Result<CacheConfig> {
    let (access, warnings) = Access::new(settings.access.clone())?;
    warnings.iter().for_each(|warning| errors.warning(warning));
    Ok(CacheConfig {
        path_prefix: settings.prefix.clone(),
        priority: settings.priority,
        signing: signing_of(settings, errors)?,
        policy: settings.policy.clone(),
        pages: settings.pages.as_ref().map(|of| pages(of, settings)),
        access: Some(access),
    })
}

fn signing_of(settings: &CacheSettings, errors: &ErrorLog) -> anyhow::Result<Signing> {
    let mut keys = Vec::new();
    for path in &settings.secret_key_files {
        let loaded = load_key(path)?;
        for warning in &loaded.warnings {
            errors.warning(warning);
        }
        keys.push(loaded.key);
    }
    Ok(Signing {
        keys,
        sign: settings.sign.clone(),
        stored: settings.stored,
        emit_ca: settings.emit_ca,
        realisations: settings.signs_realisations,
    })
}

/// Who may read changes for each cache whose rules can be read, and is as before for others. Where
/// what may be read was changed as well, which takes effect at the next start, who may read waits
/// for that: it may have been meant for less. `started`: what is served.
pub(super) fn change_access(
    site: &Site,
    started: &[CacheSettings],
    settings: &[CacheSettings],
    errors: &ErrorLog,
) {
    for served in started {
        let prefix = &*served.prefix;
        let is_same =
            |cache: &&CacheSettings| cache.prefix == prefix && cache.policy == served.policy;
        let outcome = match settings.iter().find(is_same) {
            Some(cache) => site.change_access(prefix, cache.access.clone()),
            None => {
                errors.warning(format_args!(
                    "who may read at {prefix}/ changes at the next start, together with what may \
                     be read there; users and tokens are read again"
                ));
                site.reload_access(prefix)
            }
        };
        match outcome {
            Ok(warnings) => warnings.iter().for_each(|warning| errors.warning(warning)),
            Err(error) => {
                let error = anyhow::Error::new(error);
                errors.error(format_args!(
                    "{error:#}; those who could read before still can"
                ));
            }
        }
    }
}

fn pages(settings: &Pages, cache: &CacheSettings) -> PagesConfig {
    PagesConfig {
        title: settings.title.clone(),
        description: settings.description.clone(),
        public_url: settings.public_url.clone(),
        has_passwords: cache.access.users_file.is_some(),
    }
}
