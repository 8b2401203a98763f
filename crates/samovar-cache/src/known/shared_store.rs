//! The store, and the state that its caches share because it depends neither on policies nor on
//! keys.
//!
//! Nothing here decides whether a path may be read: a [`Reader`](crate::reader::Reader) checks that
//! first.

use std::fmt;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use samovar_metrics::{Event, Metrics, Observer};
use samovar_nix::{HashPart, PathInfo};
use samovar_store::{Catalog, Snapshot, Store, StoreError};

use crate::known::build_ids::BuildIds;
use crate::known::bulk_budget::{BulkBudget, ClosureSlots};
use crate::known::gc_lease::{LeaseConfig, Leases};
use crate::known::health::{Health, Trust, Watch};
use crate::known::names::{self, Names};
use crate::known::nar_cache::{NarCache, NarCacheDirectory};
use crate::known::outage::Outage;
use crate::known::pin_watch::PinWatch;
use crate::known::plans::Plans;
use crate::known::program::Program;
use crate::known::registration::Registration;
use crate::known::row::Row;
use crate::known::sharded::PathCache;
use crate::known::small_nars::{self, SmallNars};
use crate::known::zstd_frames::FrameEncoders;
use crate::refusal::{PreparedAnswers, Refusal};

/// The configuration of a [`SharedStore`].
#[derive(Debug)]
pub(crate) struct SharedConfig {
    /// Memory for the small-NAR cache, in bytes.
    pub(crate) small_nar_memory_len: usize,
    pub(crate) nar_cache: Option<NarCacheDirectory>,
    pub(crate) gc_lease: Option<LeaseConfig>,
    pub(crate) trust: Trust,
    pub(crate) program: Program,
    pub(crate) shown_metrics: Option<Arc<Metrics>>,
}

/// Counters of the packed narinfos of all caches since the start. A reload that replaces caches
/// does not reset them.
#[derive(Debug, Default)]
pub(crate) struct PackedCounts {
    /// Number of requests answered from a packed narinfo.
    pub(crate) hits: AtomicU64,
    /// Number of requests whose narinfo had to be rendered.
    pub(crate) misses: AtomicU64,
    pub(crate) evictions: Arc<AtomicU64>,
}

/// A store, and the caches, records and limits that all its caches share.
#[derive(Debug)]
pub(crate) struct SharedStore {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) observer: Arc<dyn Observer>,
    outage: Outage,
    pub(crate) leases: Leases,
    pub(crate) health: Arc<Health>,
    /// Threads that verify files. They end when this is dropped.
    pub(crate) watch: OnceLock<Watch>,
    pub(crate) plans: Plans,
    pub(crate) build_ids: BuildIds,
    pub(crate) small_nars: Arc<SmallNars>,
    /// Number of narinfos evicted from memory, by all caches since the start.
    pub(crate) narinfo_evictions: Arc<AtomicU64>,
    pub(crate) packed_counts: Arc<PackedCounts>,
    pub(crate) nar_cache: Option<Arc<NarCache>>,
    pub(crate) frame_encoders: FrameEncoders,
    pub(crate) closure_slots: ClosureSlots,
    pub(crate) bulk_budget: Arc<BulkBudget>,
    /// Names of recently requested paths, for access logs.
    pub(crate) names: Names,
    /// Requests that wait for changes of pins.
    pub(crate) pin_watch: Arc<PinWatch>,
    pub(crate) fixed: PreparedAnswers,
    pub(crate) program: Program,
    /// The metrics that the cache at the root serves; `None`: none.
    pub(crate) shown_metrics: Option<Arc<Metrics>>,
}

impl SharedStore {
    pub(crate) fn new(
        store: Box<dyn Store>,
        config: SharedConfig,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let store: Arc<dyn Store> = store.into();
        // If the keeper thread cannot be started, there are no leases. Requests are answered
        // nevertheless.
        let leases = config.gc_lease.and_then(|gc_lease| {
            Leases::start(gc_lease, Arc::clone(&store), Arc::clone(&observer)).ok()
        });
        let small_nars = Arc::new(SmallNars::new(
            small_nars::SHARD_COUNT,
            config.small_nar_memory_len,
            Arc::default(),
        ));
        let nar_cache = config
            .nar_cache
            .map(|directory| Arc::new(NarCache::new(directory, Arc::clone(&observer))));
        let mut nars: Vec<Arc<dyn PathCache>> = vec![Arc::<SmallNars>::clone(&small_nars)];
        nars.extend(nar_cache.clone().map(|cache| cache as Arc<dyn PathCache>));
        let health = Health::new(
            Arc::clone(&store),
            Arc::clone(&observer),
            config.trust,
            nars,
        );
        Self {
            outage: Outage::default(),
            leases: leases.unwrap_or_default(),
            health: Arc::new(health),
            watch: OnceLock::new(),
            plans: Plans::default(),
            build_ids: BuildIds::default(),
            small_nars,
            narinfo_evictions: Arc::default(),
            packed_counts: Arc::default(),
            frame_encoders: FrameEncoders::default(),
            nar_cache,
            closure_slots: ClosureSlots::default(),
            bulk_budget: Arc::default(),
            names: names::new(),
            pin_watch: Arc::default(),
            fixed: PreparedAnswers::new(),
            program: config.program,
            shown_metrics: config.shown_metrics,
            store,
            observer,
        }
    }

    pub(crate) fn lookup(&self, hash_part: HashPart) -> Result<Option<PathInfo>, StoreError> {
        let info = self.store.lookup(hash_part)?;
        self.recovered();
        Ok(info)
    }

    /// Makes the registration of a path from its row. The snapshot must not be newer than the row.
    pub(crate) fn registration(&self, row: Row, snapshot: Option<Arc<Snapshot>>) -> Registration {
        Registration {
            row,
            snapshot,
            store: Arc::clone(&self.store),
            observer: Arc::clone(&self.observer),
            health: Arc::clone(&self.health),
        }
    }

    /// Makes the refusal for a path whose files could not be read, before any byte was sent. If the
    /// path was garbage-collected or is damaged, the refusal says so; otherwise it says that the
    /// failure may be temporary.
    pub(crate) fn unreadable(&self, registration: &Registration, error: &io::Error) -> Refusal {
        let was = &registration.row;
        match self.lookup(was.path.hash_part()) {
            Ok(Some(now)) if now.nar_hash == was.nar_hash => {
                registration.report(error);
                registration.admit().err().unwrap_or(Refusal::Unreadable)
            }
            Ok(Some(_)) => Refusal::WrongHash,
            Ok(None) => Refusal::Absent,
            Err(error) => Refusal::Store(error),
        }
    }

    /// Returns the catalog's set of all hash parts in the store; `None` if the database may have
    /// changed since the set was read.
    pub(crate) fn fresh(&self) -> Option<Arc<Snapshot>> {
        let catalog = self.store.catalog()?;
        let mut snapshot = catalog.current();
        catalog.check_patiently(&mut snapshot).then_some(snapshot)
    }

    /// Returns the same as [`fresh`](Self::fresh) if that needs no wait for the disk, and `None`
    /// otherwise and during an outage.
    pub(crate) fn fresh_at_once(&self) -> Option<Arc<Snapshot>> {
        let catalog = self.store.catalog().filter(|_| !self.outage.is_on())?;
        let mut snapshot = catalog.current();
        catalog.check(&mut snapshot).then_some(snapshot)
    }

    /// Brings the catalog up to date and returns the snapshot; `None` if that is not possible at
    /// once. The store may be readable even then.
    pub(crate) fn refresh(&self) -> Option<Arc<Snapshot>> {
        // The catalog is usually current, which is checked without a lock.
        let fresh = self.fresh();
        fresh.or_else(|| self.store.catalog().map(Catalog::refresh)?.ok().flatten())
    }

    /// Reports a store error, once per outage.
    pub(crate) fn note(&self, error: StoreError) {
        if self.outage.note(error, Instant::now()) {
            self.observer.event(&Event::StoreFailed(error));
        }
    }

    /// Reports a refused request to the operator. `what` is the request or the store path.
    pub(crate) fn report(&self, what: &dyn fmt::Display, refusal: Refusal) {
        match refusal {
            Refusal::Store(error) if error.is_about_one_path() => {
                self.observer.event(&Event::PathFailed {
                    path: what,
                    error: &error,
                });
            }
            Refusal::Store(error) => self.note(error),
            Refusal::Quarantined => self.observer.event(&Event::QuarantinedPathRequested),
            _ => {}
        }
    }

    /// Records a successful store access; reports the end of an outage, and schema warnings.
    pub(crate) fn recovered(&self) {
        if self.outage.clear() {
            self.observer.event(&Event::StoreRecovered);
        }
        if let Some(remark) = self.store.take_schema_warning() {
            self.observer.event(&Event::StoreRemark(remark));
        }
    }
}
