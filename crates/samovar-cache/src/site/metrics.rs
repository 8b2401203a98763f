//! The status of a site, for the metrics.

use samovar_metrics::{CacheStatus, Monitored, SiteStatus, StoreStatus};
use samovar_nix::HashPart;
use samovar_store::{Catalog, StoreError};

use crate::site::Site;
use crate::site::cache::Cache;
use crate::site::current::Caches;
use crate::site::front;
use crate::site::storage_status;

impl Monitored for Site {
    fn status(&self) -> SiteStatus {
        let shared = &self.shared;
        let catalog = shared.store.catalog();
        let snapshot = catalog.map(Catalog::current);
        let snapshot = snapshot.as_deref();
        let caches = &self.caches();
        let mut memory = vec![
            narinfo_status(caches),
            shared.small_nars.status("small_nars"),
            shared.plans.status(),
        ];
        memory.extend(packed_status(caches));
        memory.extend(
            shared
                .nar_cache
                .as_ref()
                .map(|nar_cache| nar_cache.status()),
        );
        SiteStatus {
            store: StoreStatus {
                store_dir: shared.store.store_dir().to_string(),
                path_count: snapshot
                    .filter(|snapshot| snapshot.is_loaded())
                    .map(|snapshot| snapshot.path_count() as u64)
                    .or(shared.store.is_none().then_some(0)),
                catalog_len: snapshot.map_or(0, |snapshot| snapshot.memory_len() as u64),
                epoch: snapshot.map_or(0, |snapshot| snapshot.epoch),
                load_s: catalog
                    .and_then(Catalog::load_time)
                    .map(|time| time.as_secs_f64()),
                uses_daemon: shared.store.is_left_to_daemon(),
                quarantined_count: shared.health.damaged_count(),
                scrub: shared.health.scrub_status(),
                ..StoreStatus::default()
            },
            storage: self
                .storage()
                .map(|storage| storage_status::status(storage, caches)),
            upstreams: self.upstreams().map(|all| all.status()).unwrap_or_default(),
            pages_url: pages_url(caches),
            caches: memory,
        }
    }

    fn probe_store(&self) -> Result<(), StoreError> {
        self.shared.store.probe()
    }

    fn not_ready(&self) -> Option<String> {
        let is_usable = self.storage().is_none_or(|storage| storage.is_usable());
        let reason = match (self.caches().know_policies(), is_usable) {
            (true, true) => return None,
            (true, false) => front::UNUSABLE_STORAGE,
            (false, _) => front::UNKNOWN_POLICY,
        };
        Some(reason.to_owned())
    }

    fn name_of(&self, hash_part: HashPart) -> Option<String> {
        let info = self.store().lookup(hash_part).ok()??;
        Some(info.path.name().to_owned())
    }
}

/// Returns the URL of the web interface that shows paths.
fn pages_url(caches: &Caches) -> Option<String> {
    let all: Vec<&Cache> = caches.iter().collect();
    let shown = match &*all {
        [only] => only,
        all => all.iter().find(|cache| cache.reader().policy.is_open())?,
    };
    let pages = shown.pages.as_ref()?;
    let path = || format!("{}/", shown.served().path_prefix);
    Some(pages.public_url.clone().unwrap_or_else(path))
}

/// Returns the status of all caches' narinfos in memory. Evictions include the evictions of
/// replaced caches.
fn narinfo_status(caches: &Caches) -> CacheStatus {
    let all = caches.narinfos().map(|one| one.rendered.status("narinfos"));
    all.reduce(sum).unwrap_or_default()
}

/// Returns the status of all caches' packed narinfos; `None` if there is no memory for them.
/// Counters include those of replaced caches.
fn packed_status(caches: &Caches) -> Option<CacheStatus> {
    let all = caches
        .narinfos()
        .filter_map(|one| Some(one.packed.as_ref()?.status()));
    all.reduce(sum)
}

/// Adds up the contents of two caches, which share their counters.
fn sum(one: CacheStatus, other: CacheStatus) -> CacheStatus {
    CacheStatus {
        entry_count: one.entry_count + other.entry_count,
        len: one.len + other.len,
        len_max: one.len_max + other.len_max,
        ..one
    }
}
