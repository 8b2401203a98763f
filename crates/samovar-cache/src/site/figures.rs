//! The metrics of a site: the sizes and hits of its caches.

use samovar_metrics::{CacheStatus, Monitored, SiteStatus, StoreStatus};
use samovar_nix::HashPart;
use samovar_store::{Catalog, StoreError};

use crate::known::recent::Fill;
use crate::site::Site;

impl Monitored for Site {
    fn figures(&self) -> SiteStatus {
        let shared = &self.shared;
        let snapshot = shared.store.catalog().map(Catalog::current);
        let snapshot = snapshot.as_deref();
        let served = self.caches();
        let narinfos = served.narinfos();
        let is_loaded = |epoch: u64| epoch > 0;
        let mut caches = vec![
            in_memory(
                "narinfos",
                narinfos
                    .clone()
                    .map(|narinfos| narinfos.rendered().fill())
                    .fold(Fill::default(), Fill::and),
                narinfos.map(|narinfos| narinfos.rendered().len_max()).sum(),
                0,
            ),
            in_memory(
                "small_nars",
                shared.small_nars.entries.fill(),
                shared.small_nars.entries.len_max(),
                shared.small_nars.miss_count(),
            ),
            shared.plans.figures(),
        ];
        caches.extend(shared.nar_cache.as_ref().map(|kept| kept.figures()));
        SiteStatus {
            store: StoreStatus {
                store_dir: shared.store.store_dir().to_string(),
                path_count: snapshot
                    .filter(|snapshot| is_loaded(snapshot.epoch))
                    .map(|snapshot| snapshot.path_count() as u64),
                catalog_len: snapshot.map_or(0, |snapshot| snapshot.memory_len() as u64),
                epoch: snapshot.map_or(0, |snapshot| snapshot.epoch),
                load_s: shared
                    .store
                    .catalog()
                    .and_then(Catalog::load_time)
                    .map(|time| time.as_secs_f64()),
                uses_daemon: shared.store.is_left_to_daemon(),
                quarantined_count: shared.health.damaged_count(),
                scrub: shared.health.scrub_status(),
                ..StoreStatus::default()
            },
            caches,
        }
    }

    fn probe_store(&self) -> Result<(), StoreError> {
        self.shared.store.probe()
    }

    fn name_of(&self, hash_part: HashPart) -> Option<String> {
        let info = self.store().lookup(hash_part).ok()??;
        Some(info.path.name().to_owned())
    }
}

/// Hits are added later, from the request counters.
fn in_memory(name: &str, fill: Fill, len_max: u64, miss_count: u64) -> CacheStatus {
    CacheStatus {
        name: name.to_owned(),
        entry_count: fill.entry_count,
        len: fill.len,
        len_max,
        hit_count: 0,
        miss_count,
        eviction_count: fill.eviction_count,
    }
}
