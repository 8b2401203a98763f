//! Verification of store files against their registered hashes: records, quarantine, scrub.
//!
//! # Theory of operation
//!
//! The first complete NAR of a path is hashed while it is sent, and the hash is compared with the
//! registered hash before the last piece leaves (`nar_body.rs`). If the hashes match, a
//! verification record is stored for the path's row and the identity of its root directory or file
//! ([`verified`]), and from then on the files are sent without being hashed. Otherwise, the path is
//! *marked* ([`damaged`]): cached responses for the path are dropped, and it is not served until
//! its row or its files change. A low-priority thread ([`keeper`]) then reads the files a second
//! time, so that a path whose files were just being repaired is soon served again. The same thread
//! writes the verification records to the state directory, if one is configured ([`state`]).
//! Another thread ([`scrub`]), if configured, verifies the whole store in the background.
//!
//! One thread can cache a response while another marks the path. To cache a response, a thread
//! first adds the response and then checks for a mark. To mark a path, a thread first adds the mark
//! and then drops cached responses. So whatever the order, no response for a marked path stays in a
//! cache, and I/O threads need not check for marks before they send a cached response.

mod damaged;
mod keeper;
mod scrub;
mod stamp;
mod state;
mod verified;

use std::fmt;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use samovar_metrics::{Event, Observer, ScrubStatus};
use samovar_nix::HashPart;
use samovar_store::{Damage, Fingerprint, Identity, Snapshot, Store};

use crate::known::row::Row;
use crate::known::sharded::PathCache;
use crate::refusal::Refusal;
use crate::sync::{Locked, unpoisoned};
use damaged::Damaged;
use keeper::Tasks;
pub(crate) use keeper::Watch;
use stamp::Stamp;
use state::State;
pub(crate) use verified::Moment;
use verified::{Entry, Verified};

/// Settings for verifying store files against their registered NAR hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    /// Whether a NAR is hashed the first time it is sent.
    pub is_first_hashed: bool,
    /// The directory for verification records; if `None`, they are lost when the process ends.
    pub state_directory: Option<PathBuf>,
    /// Background verification rate, bytes per second; `None` turns it off.
    pub scrub_rate: Option<NonZeroU64>,
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            is_first_hashed: true,
            state_directory: None,
            scrub_rate: None,
        }
    }
}

/// The verification records and marks of all paths of a store.
#[derive(Debug)]
pub(crate) struct Health {
    store: Arc<dyn Store>,
    observer: Arc<dyn Observer>,
    trust: Trust,
    verified: Verified,
    damaged: Damaged,
    /// The narinfo caches of all binary caches.
    rendered: RwLock<Vec<Arc<dyn PathCache>>>,
    /// The small-NAR cache and the NAR cache.
    nars: Vec<Arc<dyn PathCache>>,
    tasks: Tasks,
    /// Number of calls of [`drop_rendered`](Self::drop_rendered).
    drop_count: AtomicU64,
    /// Progress of the background verification; `None` before its first round.
    scrub: Mutex<Option<ScrubStatus>>,
}

impl Health {
    /// Creates the records, and reads those in the state directory if one is configured.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        observer: Arc<dyn Observer>,
        trust: Trust,
        nars: Vec<Arc<dyn PathCache>>,
    ) -> Self {
        let health = Self {
            damaged: Damaged::default(),
            store,
            observer,
            trust,
            verified: Verified::default(),
            rendered: RwLock::default(),
            nars,
            tasks: Tasks::default(),
            drop_count: AtomicU64::new(0),
            scrub: Mutex::default(),
        };
        health.load();
        health
    }

    /// Sets the narinfo caches from which damaged paths are dropped. A new one must be empty.
    pub(crate) fn watch(&self, caches: Vec<Arc<dyn PathCache>>) {
        *unpoisoned(self.rendered.write()) = caches;
    }

    /// Returns an error if the path is quarantined or suspect. `row` is its row in the given
    /// epoch.
    pub(crate) fn admit(&self, row: &Row, epoch: Option<u64>) -> Result<(), Refusal> {
        self.damaged
            .admit(row, epoch, &*self.store, &*self.observer)
    }

    /// Returns the number of suspect and quarantined paths.
    pub(crate) fn damaged_count(&self) -> u64 {
        self.damaged.count()
    }

    /// Returns the progress of the background verification; `None` if it has not started.
    pub(crate) fn scrub_status(&self) -> Option<ScrubStatus> {
        self.scrub.locked().clone()
    }

    pub(crate) fn is_marked(&self, hash_part: &HashPart) -> bool {
        self.damaged.contains(hash_part)
    }

    /// Whether a NAR must be hashed while it is sent. `row` is the row of its path, and `root`
    /// identifies the directory or file from which it is read.
    pub(crate) fn is_to_hash(&self, row: &Row, root: &Identity) -> bool {
        self.trust.is_first_hashed && !self.is_verified(row, root)
    }

    /// Whether the files with this root have a verification record.
    pub(crate) fn is_verified(&self, row: &Row, root: &Identity) -> bool {
        self.verified_since(row, root).is_some()
    }

    /// Returns how many times responses for a marked path were dropped, for
    /// [`drop_if_marked_since`](Self::drop_if_marked_since).
    pub(crate) fn drop_count(&self) -> u64 {
        self.drop_count.load(Ordering::SeqCst)
    }

    /// Records that the files with this root have the registered hash. `began` is the time before
    /// the first of them was read.
    pub(crate) fn note_verified(&self, row: &Row, root: &Identity, began: Moment) {
        let hash_part = row.path.hash_part();
        self.remember(row, root, began);
        // This reader may have read the files before they were damaged. If another reader has
        // marked the path as damaged since then, the mark is newer and wins. Check for the mark
        // after adding the record: a mark set between a check and the addition would be missed.
        if self.damaged.contains(&hash_part) {
            self.verified.remove(&hash_part);
            self.suspect(row);
            return;
        }
        self.observer.event(&Event::PathVerified);
        self.tasks.note_change();
    }

    /// Removes the verification record of a path if a file has changed since the verification;
    /// returns `true` then, or if there is no record. `changed` is the latest change time of its
    /// files, in seconds and nanoseconds since 1970.
    pub(crate) fn forget_if_changed(&self, row: &Row, changed: (i64, u32)) -> bool {
        self.verified.remove_older(&row.path.hash_part(), changed)
    }

    /// Removes the mark of a path whose files had the registered hash at the second read, which
    /// began at this time.
    fn release(&self, row: &Row, root: &Identity, began: Moment) {
        self.remember(row, root, began);
        if self.damaged.unmark(&row.path.hash_part()) {
            self.observer.event(&Event::PathReleased(&row.path));
        }
        self.observer.event(&Event::PathVerified);
        self.tasks.note_change();
    }

    fn remember(&self, row: &Row, root: &Identity, began: Moment) {
        let entry = Entry {
            stamp: Stamp::of_files(row, root),
            began,
        };
        let snapshot = self.snapshot();
        self.verified
            .insert(row.path.hash_part(), entry, snapshot.as_deref());
    }

    /// Marks a path whose files do not have the registered hash. `row` is its present row.
    pub(crate) fn note_damaged(&self, row: &Row, error: &dyn fmt::Display) {
        let hash_part = row.path.hash_part();
        let was_marked = self.damaged.contains(&hash_part);
        self.verified.remove(&hash_part);
        // Without a second read the path would stay suspect, so the mark is removed.
        if self.damaged.suspect(row) && !self.tasks.add(hash_part) {
            self.damaged.drop_suspect(&hash_part);
        }
        self.drop_rendered(&hash_part);
        if !was_marked {
            self.observer.event(&Event::PathQuarantined {
                path: &row.path,
                error,
            });
        }
    }

    /// Queues a second read of a path whose files may be wrong, or may have changed while they were
    /// read.
    pub(crate) fn suspect(&self, row: &Row) {
        self.tasks.add(row.path.hash_part());
    }

    /// Quarantines a path: the second read found a wrong hash as well, and the fingerprint before
    /// and after it was the same.
    fn quarantine(&self, row: &Row, files: Fingerprint, damage: &Damage) {
        let hash_part = row.path.hash_part();
        let was_marked = self.damaged.contains(&hash_part);
        self.verified.remove(&hash_part);
        self.damaged.quarantine(row, files);
        self.drop_rendered(&hash_part);
        self.tasks.note_change();
        if !was_marked {
            self.observer.event(&Event::PathQuarantined {
                path: &row.path,
                error: damage,
            });
        }
    }

    /// Drops cached responses for a path. Must be called after marking it (see the theory of
    /// operation).
    fn drop_rendered(&self, hash_part: &HashPart) {
        self.drop_count.fetch_add(1, Ordering::SeqCst);
        let all = unpoisoned(self.rendered.read());
        for rendered in &*all {
            rendered.drop_path(hash_part);
        }
        drop(all);
        for nars in &self.nars {
            nars.drop_path(hash_part);
        }
    }

    /// Drops cached responses for a path if any path was marked since `drop_count`. Must be called
    /// after caching a response that was made of files read since then: its path may have been
    /// marked and released again meanwhile.
    pub(crate) fn drop_if_marked_since(&self, drop_count: u64, hash_part: &HashPart) {
        if self.drop_count() != drop_count {
            self.drop_rendered(hash_part);
        }
    }

    fn fingerprint_of(&self, row: &Row) -> Option<Fingerprint> {
        let tree = self.store.tree(&row.path).ok()?;
        tree.fingerprint().ok()
    }

    fn verified_since(&self, row: &Row, root: &Identity) -> Option<Moment> {
        let stamp = Stamp::of_files(row, root);
        self.verified.find(&row.path.hash_part(), stamp)
    }

    fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.store.catalog().map(samovar_store::Catalog::current)
    }

    fn load(&self) {
        let Some(directory) = &self.trust.state_directory else {
            return;
        };
        match state::load(directory) {
            Ok(None) => {}
            Ok(Some(state)) => {
                self.verified.restore(&state.verified);
                self.damaged.restore(&state.damaged);
            }
            Err(error) => self.report_state(&error),
        }
    }

    /// Reports that the state directory cannot be used.
    fn report_state(&self, error: &dyn fmt::Display) {
        if let Some(directory) = &self.trust.state_directory {
            self.observer
                .event(&Event::StateFailed { directory, error });
        }
    }

    fn save(&self) -> std::io::Result<()> {
        let Some(directory) = &self.trust.state_directory else {
            return Ok(());
        };
        let state = State {
            verified: self.verified.entries(self.snapshot().as_deref()),
            damaged: self.damaged.records(self.snapshot().as_deref()),
        };
        state::save(directory, &state)
    }
}
