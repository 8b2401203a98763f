//! What is known of the files of paths: which were found right, which were found wrong.
//!
//! # Theory of operation
//!
//! The first NAR of a path that is sent whole is hashed on its way, before its last piece leaves
//! (`nar_body.rs`). If it is right, that is remembered for this row and this root
//! ([`verified`]), and from then on its files are sent without being read. If it is wrong, the path
//! is *marked* ([`damaged`]): all that was rendered of it is dropped, and nothing more is served of
//! it until its row or its files change. A thread of low priority ([`keeper`]) looks a second time,
//! so that what was only wrong for a moment, while somebody repaired it, comes back by itself. It
//! also writes down what is known ([`state`]), where a directory was given for that.
//! Another ([`scrub`]), where it was asked for, verifies what nobody has asked for.
//!
//! Whoever keeps something rendered in memory adds it first and then asks whether the path is
//! marked; whoever marks it does so first and then drops what is rendered. So in whatever order
//! they come, nothing of a marked path stays where the I/O threads find it: they need not ask.

mod damaged;
mod keeper;
mod scrub;
mod stamp;
mod state;
mod verified;

use std::fmt;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use samovar_metrics::{Event, Observer, ScrubStatus};
use samovar_nix::{HashPart, PathInfo};
use samovar_store::{Damage, Fingerprint, Identity, Snapshot, Store};

use crate::known::sharded::PathCache;
use crate::refusal::Refusal;
use damaged::Damaged;
pub(crate) use keeper::Watch;
use keeper::Wishes;
use stamp::Stamp;
use state::State;
use verified::{Entry, Verified, minute_now};

/// How far the files of paths are trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    /// Whether a path is hashed the first time it is sent.
    pub is_first_hashed: bool,
    /// Where verdicts are kept from one start to the next; `None`: nowhere.
    pub state_directory: Option<PathBuf>,
    /// Bytes of paths that nobody asks for to be verified in a second; `None`: none are.
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

/// What is known, and who acts on it.
#[derive(Debug)]
pub(crate) struct Health {
    store: Arc<dyn Store>,
    observer: Arc<dyn Observer>,
    trust: Trust,
    verified: Verified,
    damaged: Damaged,
    /// The narinfos of all caches.
    rendered: RwLock<Vec<Arc<dyn PathCache>>>,
    small_nars: Arc<dyn PathCache>,
    wishes: Wishes,
    scrub: scrub::Told,
}

impl Health {
    /// With what was written down, if anything was.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        observer: Arc<dyn Observer>,
        trust: Trust,
        small_nars: Arc<dyn PathCache>,
    ) -> Self {
        let health = Self {
            damaged: Damaged::new(Arc::clone(&store), Arc::clone(&observer)),
            store,
            observer,
            trust,
            verified: Verified::default(),
            rendered: RwLock::default(),
            small_nars,
            wishes: Wishes::default(),
            scrub: scrub::Told::default(),
        };
        health.load();
        health
    }

    /// Drops damaged paths from these caches from now on. They are empty, or were watched before.
    pub(crate) fn watch(&self, caches: Vec<Arc<dyn PathCache>>) {
        let rendered = self.rendered.write();
        *rendered.unwrap_or_else(PoisonError::into_inner) = caches;
    }

    /// Refuses a path that is quarantined or suspect. `info` is its row in the epoch.
    pub(crate) fn admit(&self, info: &PathInfo, epoch: Option<u64>) -> Result<(), Refusal> {
        self.damaged.admit(info, epoch)
    }

    /// How many paths are marked as damaged, those in question included.
    pub(crate) fn damaged_count(&self) -> u64 {
        self.damaged.count()
    }

    /// Where verifying what nobody asks for stands; `None` where that was not begun.
    pub(crate) fn scrub_status(&self) -> Option<ScrubStatus> {
        self.scrub.status()
    }

    pub(crate) fn is_marked(&self, hash_part: &HashPart) -> bool {
        self.damaged.contains(hash_part)
    }

    /// Whether the NAR that these files make is to be hashed on its way.
    pub(crate) fn is_to_hash(&self, info: &PathInfo, root: &Identity) -> bool {
        self.trust.is_first_hashed && self.minute(info, root).is_none()
    }

    /// The files that had this root were found right.
    pub(crate) fn note_right(&self, info: &PathInfo, root: Option<&Identity>) {
        let hash_part = info.path.hash_part();
        self.remember(info, root);
        // What was read slowly may have been damaged behind the reader's back and found so by
        // others: whoever began before the mark does not know better. Asked behind the entry, as
        // at the top.
        if self.damaged.contains(&hash_part) {
            self.verified.remove(&hash_part);
            self.suspect(info);
            return;
        }
        self.observer.event(&Event::PathVerified);
        self.wishes.note_change();
    }

    /// The second look found the files right that had this root.
    fn acquit(&self, info: &PathInfo, root: Option<&Identity>) {
        self.remember(info, root);
        if self.damaged.unmark(&info.path.hash_part()) {
            self.observer.event(&Event::PathReleased(&info.path));
        }
        self.observer.event(&Event::PathVerified);
        self.wishes.note_change();
    }

    fn remember(&self, info: &PathInfo, root: Option<&Identity>) {
        let Some(root) = root else { return };
        let entry = Entry {
            stamp: Stamp::of_files(info, root),
            minute: minute_now(),
        };
        let snapshot = self.snapshot();
        self.verified
            .insert(info.path.hash_part(), entry, snapshot.as_deref());
    }

    /// The files were found wrong, and the path is registered as `info` says.
    pub(crate) fn note_wrong(&self, info: &PathInfo, error: &dyn fmt::Display) {
        let hash_part = info.path.hash_part();
        let was_marked = self.damaged.contains(&hash_part);
        self.verified.remove(&hash_part);
        // A daemon's have no look by which to tell when they are mended.
        let is_here = self
            .store
            .tree(&info.path)
            .is_ok_and(|tree| tree.path().is_some());
        // Without a second look the mark would stay as it is.
        if is_here && self.damaged.suspect(info) && !self.wishes.add(hash_part) {
            self.damaged.unmark(&hash_part);
        }
        self.drop_rendered(&hash_part);
        if !was_marked {
            self.observer.event(&Event::PathQuarantined {
                path: &info.path,
                error,
            });
        }
    }

    /// The files may be wrong, or may have been changed at the wrong moment.
    pub(crate) fn suspect(&self, info: &PathInfo) {
        self.wishes.add(info.path.hash_part());
    }

    /// The files were found wrong by the second look, and looked the same before and after.
    fn confirm(&self, info: &PathInfo, files: Fingerprint, damage: &Damage) {
        let hash_part = info.path.hash_part();
        let was_marked = self.damaged.contains(&hash_part);
        self.verified.remove(&hash_part);
        self.damaged.confirm(info, files);
        self.drop_rendered(&hash_part);
        self.wishes.note_change();
        if !was_marked {
            self.observer.event(&Event::PathQuarantined {
                path: &info.path,
                error: damage,
            });
        }
    }

    /// Behind a mark: see the top.
    fn drop_rendered(&self, hash_part: &HashPart) {
        let all = self.rendered.read().unwrap_or_else(PoisonError::into_inner);
        for rendered in &*all {
            rendered.drop_path(hash_part);
        }
        drop(all);
        self.small_nars.drop_path(hash_part);
    }

    fn look_of(&self, info: &PathInfo) -> Option<Fingerprint> {
        let tree = self.store.tree(&info.path).ok()?;
        tree.fingerprint().ok().flatten()
    }

    fn minute(&self, info: &PathInfo, root: &Identity) -> Option<u32> {
        let stamp = Stamp::of_files(info, root);
        self.verified.find(&info.path.hash_part(), stamp)
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
            Err(error) => self.observer.event(&Event::StateFailed(&error)),
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
