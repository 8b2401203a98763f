//! A path is suspect after one bad read, quarantined after two, and released by a repair.

use std::fs;

use samovar_nix::PathInfo;

use super::super::{Trust, damaged};
use super::*;
use crate::known::sharded::PathCache;
use crate::refusal::Refusal;
use crate::tests::memory_store::MemoryStore;
use crate::tests::recorder::{Recorder, shared};

/// A store's health, and a keeper that reads paths only when a test calls it.
struct Fixture {
    store: MemoryStore,
    events: Arc<Recorder>,
    health: Arc<Health>,
}

impl Fixture {
    fn new() -> Self {
        let store = MemoryStore::new();
        let (shared, events) = shared(&store, None);
        let health = Arc::clone(&shared.health);
        health.tasks.state.locked().thread_count = 1;
        Self {
            store,
            events,
            health,
        }
    }

    /// Registers a path and damages its file.
    fn damaged(&self) -> PathInfo {
        let info = self.store.add_file("damaged", b"right");
        self.write(&info, b"wrong");
        info
    }

    /// Replaces the file of a path atomically.
    fn write(&self, info: &PathInfo, contents: &[u8]) {
        let file = self.store.file(&info.path);
        let new = file.with_extension("new");
        fs::write(&new, contents).unwrap();
        fs::rename(new, file).unwrap();
    }

    fn note_damaged(&self, info: &PathInfo) {
        self.health.note_damaged(&Row::from(info), &"wrong hash");
    }

    /// Reads the queued paths a second time. Returns their number.
    fn read_again(&self) -> usize {
        let queue = std::mem::take(&mut self.health.tasks.state.locked().queue);
        let keeper = Keeper::new(&self.health);
        let count = queue.len();
        queue.into_iter().for_each(|one| keeper.verify(one));
        count
    }

    /// Reports a bad read of a path, and lets the keeper thread read the path a second time.
    fn quarantine(&self, info: &PathInfo) {
        self.note_damaged(info);
        assert_eq!(self.read_again(), 1);
        assert!(matches!(self.admit(info), Err(Refusal::Quarantined)));
        self.events.take();
    }

    fn admit(&self, info: &PathInfo) -> Result<(), Refusal> {
        self.health.admit(&Row::from(info), None)
    }

    fn fill_queue(&self) {
        let mut state = self.health.tasks.state.locked();
        for number in state.queue.len()..QUEUE_COUNT_MAX {
            state.queue.push_back(hash_part(number));
        }
    }
}

fn hash_part(number: usize) -> HashPart {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
    HashPart::from_bytes(bytes)
}

#[test]
fn a_path_is_suspect_after_one_bad_read_and_quarantined_after_two() {
    let fixture = Fixture::new();
    let info = fixture.damaged();
    assert!(fixture.admit(&info).is_ok());
    fixture.note_damaged(&info);
    assert!(matches!(fixture.admit(&info), Err(Refusal::Suspect)));
    assert_eq!(fixture.read_again(), 1);
    assert!(matches!(fixture.admit(&info), Err(Refusal::Quarantined)));
    assert_eq!(fixture.events.take(), ["path quarantined"], "reported once");
    assert_eq!(fixture.health.damaged_count(), 1);
}

#[test]
fn a_path_with_right_files_is_released_by_the_second_read() {
    let fixture = Fixture::new();
    let info = fixture.damaged();
    fixture.note_damaged(&info);
    fixture.write(&info, b"right");
    fixture.read_again();
    assert!(fixture.admit(&info).is_ok());
    let events = ["path quarantined", "path released", "path verified"];
    assert_eq!(fixture.events.take(), events);
    assert_eq!(fixture.health.damaged_count(), 0);
}

#[test]
fn a_repair_releases_a_quarantined_path_which_is_then_hashed_again() {
    let fixture = Fixture::new();
    let info = fixture.damaged();
    fixture.quarantine(&info);
    fixture.write(&info, b"right");
    assert!(fixture.admit(&info).is_ok());
    assert_eq!(fixture.events.take(), ["path released"]);
    let tree = samovar_store::Store::tree(&fixture.store, &info.path).unwrap();
    let root = tree.identity().unwrap();
    assert!(fixture.health.is_to_hash(&Row::from(&info), &root));
    fixture
        .health
        .note_verified(&Row::from(&info), &root, Moment::now());
    assert!(!fixture.health.is_to_hash(&Row::from(&info), &root));
}

#[test]
fn a_new_registration_releases_a_marked_path() {
    for is_confirmed in [false, true] {
        let fixture = Fixture::new();
        let mut info = fixture.damaged();
        fixture.note_damaged(&info);
        if is_confirmed {
            fixture.read_again();
        }
        assert!(fixture.admit(&info).is_err());
        info.registration = Some(100);
        assert!(fixture.admit(&info).is_ok());
        assert_eq!(fixture.health.damaged_count(), 0);
    }
}

#[test]
fn a_second_read_without_a_result_releases_a_suspect_path() {
    for is_collected in [false, true] {
        let fixture = Fixture::new();
        let info = fixture.damaged();
        fixture.note_damaged(&info);
        match is_collected {
            true => fixture.store.unregister(&info.path),
            false => fixture.store.fail(true),
        }
        fixture.read_again();
        assert!(fixture.admit(&info).is_ok());
        assert_eq!(fixture.health.damaged_count(), 0);
    }
}

#[test]
fn a_read_without_a_result_does_not_release_a_quarantined_path() {
    let fixture = Fixture::new();
    let info = fixture.damaged();
    fixture.quarantine(&info);
    // A slow reader read the files before they were damaged.
    let tree = samovar_store::Store::tree(&fixture.store, &info.path).unwrap();
    let root = tree.identity().unwrap();
    fixture
        .health
        .note_verified(&Row::from(&info), &root, Moment::now());
    fixture.store.fail(true);
    assert_eq!(fixture.read_again(), 1);
    fixture.store.fail(false);
    assert!(matches!(fixture.admit(&info), Err(Refusal::Quarantined)));
}

#[test]
fn a_full_queue_does_not_release_a_quarantined_path() {
    let fixture = Fixture::new();
    let info = fixture.damaged();
    fixture.quarantine(&info);
    fixture.fill_queue();
    // A slow reader read the damaged files before they were quarantined.
    fixture.note_damaged(&info);
    assert!(matches!(fixture.admit(&info), Err(Refusal::Quarantined)));
}

#[test]
fn a_path_that_no_thread_will_read_again_is_not_suspect() {
    let fixture = Fixture::new();
    let info = fixture.damaged();
    fixture.health.tasks.state.locked().thread_count = 0;
    fixture.note_damaged(&info);
    assert!(fixture.admit(&info).is_ok());
    fixture.health.tasks.state.locked().thread_count = 1;
    fixture.fill_queue();
    fixture.note_damaged(&info);
    assert!(fixture.admit(&info).is_ok());
    fixture.health.tasks.state.locked().queue.pop_back();
    fixture.note_damaged(&info);
    assert!(matches!(fixture.admit(&info), Err(Refusal::Suspect)));
    // A path that is queued already needs no second slot.
    fixture.note_damaged(&info);
    assert!(matches!(fixture.admit(&info), Err(Refusal::Suspect)));
}

#[test]
fn a_verification_does_not_release_a_marked_path_before_the_second_read() {
    let fixture = Fixture::new();
    let info = fixture.damaged();
    fixture.note_damaged(&info);
    let tree = samovar_store::Store::tree(&fixture.store, &info.path).unwrap();
    let root = tree.identity().unwrap();
    fixture
        .health
        .note_verified(&Row::from(&info), &root, Moment::now());
    assert!(matches!(fixture.admit(&info), Err(Refusal::Suspect)));
    assert!(fixture.health.is_to_hash(&Row::from(&info), &root));
    assert_eq!(fixture.events.take(), ["path quarantined"]);
}

#[test]
fn marking_a_path_drops_its_cached_responses() {
    #[derive(Debug, Default)]
    struct Dropped(Mutex<Vec<HashPart>>);

    impl PathCache for Dropped {
        fn drop_path(&self, hash_part: &HashPart) {
            self.0.lock().unwrap().push(*hash_part);
        }
    }

    let fixture = Fixture::new();
    let info = fixture.damaged();
    let cache = Arc::new(Dropped::default());
    fixture.health.watch(vec![Arc::<Dropped>::clone(&cache)]);
    let dropped = || std::mem::take(&mut *cache.0.lock().unwrap());
    fixture.note_damaged(&info);
    assert_eq!(dropped(), [info.path.hash_part()]);
    fixture.read_again();
    assert_eq!(dropped(), [info.path.hash_part()]);
}

#[test]
fn a_restart_keeps_quarantined_paths_and_verification_records_but_no_suspects() {
    let directory = tempfile::tempdir().unwrap();
    let store = MemoryStore::new();
    let names = ["verified", "suspect", "quarantined"];
    let infos = names.map(|name| store.add_file(name, b"x"));
    let [verified, suspect, quarantined] = &infos;
    let tree = samovar_store::Store::tree(&store, &verified.path).unwrap();
    let root = tree.identity().unwrap();
    let start = || {
        let trust = Trust {
            state_directory: Some(directory.path().to_owned()),
            ..Trust::default()
        };
        let (shared, events) = shared(&store, None);
        let small_nars = Arc::<crate::known::small_nars::SmallNars>::clone(&shared.small_nars);
        let health = Health::new(Arc::clone(&shared.store), events, trust, vec![small_nars]);
        health.tasks.state.locked().thread_count = 1;
        health
    };
    let health = start();
    health.note_verified(&Row::from(verified), &root, Moment::now());
    health.note_damaged(&Row::from(suspect), &"wrong hash");
    let files = health.fingerprint_of(&Row::from(quarantined)).unwrap();
    health.quarantine(&Row::from(quarantined), files, &samovar_store::Damage::Hash);
    Keeper::new(&health).save();
    let health = start();
    assert!(!health.is_to_hash(&Row::from(verified), &root));
    assert!(health.admit(&Row::from(suspect), None).is_ok());
    let refused = health.admit(&Row::from(quarantined), None);
    assert!(matches!(refused, Err(Refusal::Quarantined)));
}

#[test]
fn marks_are_bounded_and_releasing_a_path_frees_one() {
    let fixture = Fixture::new();
    let row = Row::from(&fixture.store.add_file("a", b"a"));
    let numbered = |number| {
        let name = format!("{}-a", hash_part(number));
        Row {
            path: samovar_nix::StorePath::from_base_name(&name).unwrap(),
            ..row.clone()
        }
    };
    let marks = damaged::Damaged::default();
    for number in 0..damaged::COUNT_MAX {
        assert!(marks.suspect(&numbered(number)), "{number}");
    }
    assert!(!marks.suspect(&numbered(damaged::COUNT_MAX)));
    assert!(marks.suspect(&numbered(0)), "marked before");
    assert_eq!(marks.count(), damaged::COUNT_MAX as u64);
    assert!(marks.unmark(&hash_part(0)));
    assert!(marks.suspect(&numbered(damaged::COUNT_MAX)));
}
