//! Creates the caches from their configuration.

use std::sync::Arc;

use anyhow::bail;
use samovar_cache::access::{Access, AccessConfig, AccessError, CertificateConfig};
use samovar_cache::{
    CacheConfig, Oidc, PagesConfig, RootFault, Signing, Site, UpstreamConfig, Upstreams,
    faulty_roots, load_key,
};
use samovar_metrics::Observer;
use samovar_storage::gc::Retentions;
use samovar_storage::metadata::CacheSummary;
use samovar_storage::{Storage, StorageError, kept, mirrored};
use samovar_store::Store;
use samovar_text::counted;
use samovar_upstream::settings::UpstreamSettings;

use crate::config::{CacheSettings, Configuration, Pages};
use crate::log::ErrorLog;

/// Creates the caches, and reads the files that their configuration names.
pub(super) fn read(
    settings: &[CacheSettings],
    errors: &ErrorLog,
) -> anyhow::Result<Vec<CacheConfig>> {
    let (caches, warnings) = make(settings, |cache| Access::new(cache.access.clone()))?;
    warnings.iter().for_each(|warning| errors.warning(warning));
    Ok(caches)
}

/// Replaces the caches by the caches in `config` and returns warnings. `started` is the
/// configuration at the start of the process.
///
/// # Errors
///
/// An unusable part of the configuration. Nothing is changed then.
pub(super) fn replace(
    site: &Site,
    started: &Configuration,
    config: &Configuration,
) -> anyhow::Result<Vec<String>> {
    let asks_for_certificates =
        |cache: &CacheSettings| cache.access.certificates != CertificateConfig::default();
    if authorities(started) != authorities(config)
        && config.caches.iter().any(asks_for_certificates)
    {
        bail!(
            "tls.client-authorities takes effect only after a restart, and the options of \
             access.certificates depend on it: restart the server (USR2 does so without downtime)"
        );
    }
    let renew = |cache: &CacheSettings| site.access(&cache.prefix, cache.access.clone());
    let (mut caches, mut warnings) = make(&config.caches, renew)?;
    if let Some(storage) = site.storage() {
        add_uploads(&mut caches, &config.caches, storage)?;
        add_oidc(&mut caches, config, site.oidc().as_deref())?;
        storage.refresh()?;
        warnings.extend(upload_warnings(&config.caches, storage)?);
    }
    let had_root = site.has_prefix("");
    // Nothing refuses the configuration after the directory has changed.
    let mirror = mirror_first(&caches);
    let upstreams = match site.upstreams() {
        Some(same) if same.are_of(&config.upstreams, config.upstream_memory_len) => Some(same),
        _ => upstreams(
            config,
            site.store(),
            site.storage(),
            site.observer_of_events(),
        )?,
    };
    site.reconfigure(caches, upstreams, mirror)?;
    if let Some(storage) = site.storage() {
        storage.set_retentions(retentions(config));
        // The directory may have become the mirror of another cache.
        storage.check_mirror();
    }
    if had_root && !site.has_prefix("") {
        warnings.push(
            "the cache at / is no longer served: as soon as one cache is named, all caches must be \
             named; to serve it again, add [caches.default] with prefix = \"/\""
                .to_owned(),
        );
    }
    warnings.extend(root_warnings(&config.caches, site.store()));
    Ok(warnings)
}

/// Prepares the upstream caches; `None` if there are none.
pub(super) fn upstreams(
    config: &Configuration,
    store: &dyn Store,
    storage: Option<&Arc<Storage>>,
    observer: &Arc<dyn Observer>,
) -> anyhow::Result<Option<Arc<Upstreams>>> {
    if config.upstreams.is_empty() {
        return Ok(None);
    }
    let (settings, memory_len) = (config.upstreams.clone(), config.upstream_memory_len);
    let dir = store.store_dir().clone();
    Ok(Some(Upstreams::start(
        settings,
        memory_len,
        dir,
        storage,
        Arc::clone(observer),
    )?))
}

/// Returns warnings about roots in `policy.allow` that lead to no path, such as misspelled ones.
pub(super) fn root_warnings(settings: &[CacheSettings], store: &dyn Store) -> Vec<String> {
    let faults = root_faults(settings, store).into_iter();
    let harmless = faults.filter(|fault| !fault.denies);
    harmless
        .map(|fault| format!("{}; {}", fault.text, fault.fix))
        .collect()
}

/// A root of a policy that does not have the effect that its rule promises.
#[derive(Debug)]
pub struct PolicyRootFault {
    /// The fault and its effect.
    pub text: String,
    /// How to fix it.
    pub fix: String,
    /// Whether the root is a missing one of `policy.deny`, so that the cache serves no path.
    pub denies: bool,
}

/// Finds the roots of policies that lead to no path.
pub fn root_faults(settings: &[CacheSettings], store: &dyn Store) -> Vec<PolicyRootFault> {
    let mut faults = Vec::new();
    for cache in settings {
        let prefix = &cache.prefix;
        for (root, fault) in faulty_roots(&cache.policy.allow, store) {
            faults.push(PolicyRootFault {
                text: format!(
                    "the root {root:?} in policy.allow {fault}: it adds no paths to {prefix}/"
                ),
                fix: format!("create {root:?}, or correct policy.allow"),
                denies: false,
            });
        }
        for (root, fault) in faulty_roots(&cache.policy.deny, store) {
            let (effect, fix, denies) = match fault {
                RootFault::Missing => (
                    format!(
                        "until it exists, the denied paths are unknown, and {prefix}/ answers 503"
                    ),
                    format!("create {root:?}, or correct policy.deny"),
                    true,
                ),
                // The references of the path are unknown, unless it was uploaded.
                RootFault::NotInStore(_) => (
                    format!(
                        "{prefix}/ denies that path, but its closure only if the path was \
                             uploaded"
                    ),
                    format!(
                        "let {root:?} lead to a path in the store, unless it is meant to lead \
                             to an uploaded path"
                    ),
                    false,
                ),
            };
            faults.push(PolicyRootFault {
                text: format!("the root {root:?} in policy.deny {fault}: {effect}"),
                fix,
                denies,
            });
        }
    }
    faults
}

/// Returns warnings about uploaded paths that clients cannot use.
pub(super) fn upload_warnings(
    settings: &[CacheSettings],
    storage: &Storage,
) -> anyhow::Result<Vec<String>> {
    let mut warnings = Vec::new();
    let stored = storage.caches()?;
    for cache in settings.iter().filter(|cache| !cache.sources.storage) {
        let name = cache.storage_name();
        let is_same = |stored: &&CacheSummary| stored.name == name && stored.path_count > 0;
        if let Some(stored) = stored.iter().find(is_same) {
            let paths = counted(stored.path_count, "path");
            warnings.push(format!(
                "the storage has {paths} of the cache {name:?}, which are not served: to serve \
                 them, add \"storage\" to its sources"
            ));
        }
    }
    for (name, text) in unserved(settings, stored) {
        warnings.push(format!(
            "{text}; name it in [caches.{name}], or run samovar cache delete"
        ));
    }
    for cache in settings {
        if cache.secret_key_files.is_empty() {
            warnings.push(format!(
                "the cache {:?} has no secret key: clients refuse uploaded paths without a \
                 signature; set secret-key-files",
                cache.storage_name()
            ));
        }
    }
    Ok(warnings)
}

/// Returns the caches that have paths in the storage and are not configured, each with a
/// description.
pub fn unserved(
    settings: &[CacheSettings],
    stored: Vec<CacheSummary>,
) -> impl Iterator<Item = (String, String)> {
    let is_unserved = move |cache: &CacheSummary| {
        let mut settings = settings.iter();
        cache.path_count > 0
            && !kept::is_of_upstream(&cache.name)
            && settings.all(|settings| settings.storage_name() != cache.name)
    };
    let describe = |cache: CacheSummary| {
        let paths = counted(cache.path_count, "path");
        let text = format!(
            "the storage has {paths} of the cache {:?}, which the configuration does not name: \
             they are not served",
            cache.name
        );
        (cache.name, text)
    };
    stored.into_iter().filter(is_unserved).map(describe)
}

/// Enables uploads into `storage` for the caches.
pub(super) fn add_uploads(
    caches: &mut [CacheConfig],
    settings: &[CacheSettings],
    storage: &Arc<Storage>,
) -> anyhow::Result<()> {
    for (cache, settings) in caches.iter_mut().zip(settings) {
        if !settings.sources.storage {
            continue;
        }
        let stored = storage.cache(settings.storage_name(), false)?;
        cache.uploads = Some(stored.with_quota(settings.quota));
    }
    Ok(())
}

/// Lets caches that take uploads exchange ID tokens. `before`: the issuers that are replaced.
pub(super) fn add_oidc(
    caches: &mut [CacheConfig],
    config: &Configuration,
    before: Option<&Oidc>,
) -> anyhow::Result<()> {
    if config.oidc.is_empty() {
        return Ok(());
    }
    let oidc = Oidc::new(&config.oidc, before).map_err(anyhow::Error::msg)?;
    let oidc = Arc::new(oidc);
    for cache in caches.iter_mut().filter(|cache| cache.uploads.is_some()) {
        cache.oidc = Some(Arc::clone(&oidc));
    }
    Ok(())
}

/// Returns the function that lets the storage mirror the first cache, which changes the directory.
pub(super) fn mirror_first(
    caches: &[CacheConfig],
) -> impl FnOnce() -> Result<(), StorageError> + use<> {
    let first = caches.first().and_then(|cache| cache.uploads.clone());
    move || first.map_or(Ok(()), |first| mirrored::become_mirrored(&first))
}

/// Returns how long the storage keeps what the caches have, and what it keeps of upstreams.
pub fn retentions(config: &Configuration) -> Retentions {
    let of_cache =
        |cache: &CacheSettings| (cache.storage_name().to_owned(), cache.retention.clone());
    let of_upstream = |upstream: &UpstreamSettings| {
        let retention = kept::retention(upstream.keep);
        (kept::cache_name(&upstream.name), retention)
    };
    let of_caches = config.caches.iter().map(of_cache);
    of_caches
        .chain(config.upstreams.iter().map(of_upstream))
        .collect()
}

/// Returns the file with the certificate authorities of client certificates; `None` if clients are
/// not asked for certificates.
fn authorities(config: &Configuration) -> Option<&std::path::Path> {
    let clients = config.tls.as_ref()?.clients.as_ref()?;
    Some(&clients.authorities)
}

/// Creates the caches. Also returns warnings about the files that they name, each once.
fn make(
    settings: &[CacheSettings],
    access: impl Fn(&CacheSettings) -> Result<(Access, Vec<String>), AccessError>,
) -> anyhow::Result<(Vec<CacheConfig>, Vec<String>)> {
    let (mut caches, mut warnings) = (Vec::new(), Vec::new());
    for cache in settings {
        let (access, mut found) = access(cache)?;
        let signing = signing(cache, &mut found)?;
        // Report each warning once: caches may share files.
        found.retain(|warning| !warnings.contains(warning));
        warnings.extend(found);
        caches.push(CacheConfig {
            name: cache.storage_name().to_owned(),
            path_prefix: cache.prefix.clone(),
            priority: cache.priority,
            signing,
            policy: cache.policy.clone(),
            pages: cache.pages.as_ref().map(|of| pages(of, &cache.access)),
            access: Some(access),
            uploads: None,
            oidc: None,
            upstreams: UpstreamConfig {
                names: match cache.sources.upstreams {
                    true => cache.upstreams.clone(),
                    false => Some(Vec::new()),
                },
                budget: cache.upstream_budget,
                when_down: cache.upstream_down,
                negative_ttl: cache.negative_ttl,
            },
        });
    }
    Ok((caches, warnings))
}

/// Reads the signing keys of a cache. Adds warnings about their files.
///
/// # Errors
///
/// A file is not a secret key.
pub fn signing(settings: &CacheSettings, warnings: &mut Vec<String>) -> anyhow::Result<Signing> {
    let mut keys = Vec::new();
    for path in &settings.secret_key_files {
        let loaded = load_key(path)?;
        warnings.extend(loaded.warnings);
        keys.push(loaded.key);
    }
    Ok(Signing {
        keys,
        sign: settings.sign.clone(),
        stored: settings.stored,
        emit_ca: settings.emit_ca,
        realisations: settings.signs_realisations,
        coding: settings.coding,
    })
}

fn pages(settings: &Pages, access: &AccessConfig) -> PagesConfig {
    PagesConfig {
        title: settings.title.clone(),
        description: settings.description.clone(),
        server_title: settings.server_title.clone(),
        server_description: settings.server_description.clone(),
        public_url: settings.public_url.clone(),
        has_passwords: access.users_file.is_some(),
    }
}
