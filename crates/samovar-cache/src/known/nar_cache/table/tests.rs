//! The NAR cache keeps its limits, evicts the least recently used entry, and survives bad disks.

use samovar_nix::PathInfo;
use samovar_store::Store;
use tempfile::TempDir;

use super::super::{Candidate, Recording};
use super::*;
use crate::known::row::Row;
use crate::tests::memory_store::MemoryStore;
use crate::tests::recorder::Recorder;

const KIB: u64 = 1024;

struct Fixture {
    dir: TempDir,
    events: Arc<Recorder>,
    cache: Arc<NarCache>,
}

impl Fixture {
    /// Makes a cache of at most `len_max` bytes and `count_max` entries.
    fn new(len_max: u64, count_max: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let directory = NarCacheDirectory::open(dir.path(), Some(len_max)).unwrap();
        let events = Arc::new(Recorder::default());
        let mut cache = NarCache::new(directory, Arc::<Recorder>::clone(&events));
        cache.count_max = count_max;
        Self {
            dir,
            events,
            cache: Arc::new(cache),
        }
    }

    fn start(&self, number: u8, len: u64) -> Option<Candidate> {
        Candidate::reserve(&self.cache, &hash(number), len)
    }

    /// Records a complete NAR of many small files. Returns whether it is cached.
    fn add(&self, number: u8, len: u64) -> bool {
        let recording = self.start(number, len);
        let bytes = vec![number; usize::try_from(len).unwrap()];
        let Some(recording) = recording.and_then(|recording| recording.write(&bytes, 1000)) else {
            return false;
        };
        recording.finish(None);
        self.has(number)
    }

    /// Whether the NAR is cached. This does not count as a use.
    fn has(&self, number: u8) -> bool {
        let state = self.cache.state.locked();
        state.entries.contains_key(&key(number))
    }

    fn len(&self) -> u64 {
        self.cache.status().len
    }
}

fn key(number: u8) -> Key {
    (hash(number), Form::Identity)
}

fn hash(number: u8) -> NarHash {
    NarHash::from_bytes([number; 32])
}

#[test]
fn a_nar_of_half_the_cache_is_cached_and_none_that_is_longer() {
    let fixture = Fixture::new(1024 * KIB, 10);
    assert!(fixture.start(1, 512 * KIB + 1).is_none());
    assert!(fixture.add(1, 512 * KIB));
}

#[test]
fn a_nar_that_fits_into_one_buffer_is_not_cached() {
    let fixture = Fixture::new(1024 * KIB, 10);
    assert!(fixture.start(1, NAR_LEN_MIN - 1).is_none());
    assert!(fixture.add(1, NAR_LEN_MIN));
}

#[test]
fn the_least_recently_used_entry_is_evicted_when_bytes_run_out() {
    let fixture = Fixture::new(1024 * KIB, 10);
    assert!(fixture.add(1, 512 * KIB) && fixture.add(2, 512 * KIB));
    assert_eq!(fixture.len(), 1024 * KIB, "full, and none evicted");
    assert!(fixture.cache.find(&key(1)).is_some());
    assert!(fixture.add(3, 300 * KIB));
    assert!(fixture.has(1) && !fixture.has(2));
    assert_eq!(fixture.len(), 812 * KIB);
    assert_eq!(fixture.cache.status().eviction_count, 1);
}

#[test]
fn the_least_recently_used_entry_is_evicted_when_there_are_too_many() {
    let fixture = Fixture::new(1 << 30, 2);
    assert!(fixture.add(1, 300 * KIB) && fixture.add(2, 300 * KIB));
    assert!(fixture.cache.find(&key(1)).is_some());
    assert!(fixture.add(3, 300 * KIB));
    assert!(fixture.has(1) && !fixture.has(2));
    assert_eq!(fixture.cache.status().entry_count, 2);
}

#[test]
fn an_entry_that_is_being_sent_is_not_evicted() {
    let fixture = Fixture::new(1024 * KIB, 2);
    assert!(fixture.add(1, 512 * KIB) && fixture.add(2, 512 * KIB));
    let sent = [1, 2].map(|number| fixture.cache.find(&key(number)).unwrap());
    assert!(!fixture.add(3, 300 * KIB));
    assert_eq!(fixture.len(), 1024 * KIB);
    assert_eq!(fixture.events.take(), [""; 0], "a full cache is no failure");
    drop(sent);
    assert!(fixture.add(3, 300 * KIB));
}

#[test]
fn the_bytes_of_a_dropped_entry_count_until_its_last_reader_ends() {
    let fixture = Fixture::new(1024 * KIB, 2);
    assert!(fixture.add(1, 512 * KIB));
    let sent = fixture.cache.find(&key(1)).unwrap();
    fixture.cache.fail(&sent, &io::Error::other("unreadable"));
    assert!(!fixture.has(1));
    assert_eq!(fixture.len(), 512 * KIB);
    drop(sent);
    assert_eq!(fixture.len(), 0);
}

#[test]
fn recordings_in_progress_are_bounded_and_each_nar_is_recorded_once() {
    let fixture = Fixture::new(1 << 30, 2);
    let recordings = [1, 2].map(|number| fixture.start(number, 300 * KIB).unwrap());
    assert!(fixture.start(3, 300 * KIB).is_none());
    drop(recordings);
    let recording = fixture.start(1, 300 * KIB).unwrap();
    assert!(fixture.start(1, 300 * KIB).is_none());
    drop(recording);
    assert!(fixture.add(1, 300 * KIB));
    assert!(fixture.start(1, 300 * KIB).is_none());
}

#[test]
fn an_aborted_recording_frees_its_space_and_may_be_repeated() {
    let fixture = Fixture::new(1024 * KIB, 2);
    let recording = fixture.start(1, 400 * KIB).unwrap();
    let recording = recording.write(&[1; 1000], 1).unwrap();
    assert_eq!(fixture.len(), 400 * KIB);
    // A recording that ends too early adds no entry.
    recording.finish(None);
    assert!(!fixture.has(1));
    assert_eq!(fixture.len(), 0);
    assert!(fixture.add(1, 400 * KIB));
}

#[test]
fn recording_a_nar_of_large_files_stops_and_is_not_started_again() {
    // The limit is 32 KiB, the average length of a file, times ten, plus 256 KiB, or plus a
    // sixteenth of a NAR of less than 4 MiB.
    for (nar_size, len_max) in [(64 << 20, 576 * KIB), (3 << 20, 512 * KIB)] {
        for (len, is_worth) in [(len_max, true), (len_max + 1, false)] {
            let fixture = Fixture::new(1 << 30, 2);
            let candidate = fixture.start(1, nar_size).unwrap();
            let recording = candidate.write(&[1; 1000], 10).unwrap();
            let bytes = vec![1; usize::try_from(len - 1000).unwrap()];
            let recording = recording.write(&bytes, 10);
            assert_eq!(recording.is_some(), is_worth, "{nar_size} {len}");
            drop(recording);
            assert_eq!(fixture.start(1, nar_size).is_some(), is_worth, "{len}");
        }
    }
}

#[test]
fn a_nar_of_few_files_is_not_cached_and_gets_no_file() {
    // The first 256 KiB of 1 MiB contain the start of a quarter of the files.
    for (file_count, is_worth) in [(16, true), (15, false)] {
        let fixture = Fixture::new(1 << 30, 2);
        let candidate = fixture.start(1, 1024 * KIB).unwrap();
        let recording = candidate.write(&vec![1; 256 * 1024], file_count);
        assert_eq!(recording.is_some(), is_worth, "{file_count}");
        assert_eq!(fixture.len() > 0, is_worth, "{file_count}");
        drop(recording);
        assert_eq!(fixture.start(1, 1024 * KIB).is_some(), is_worth);
    }
}

#[test]
fn a_copy_that_was_not_hashed_is_used_only_for_the_same_files() {
    let fixture = Fixture::new(2048 * KIB, 4);
    let store = MemoryStore::new();
    let mut infos = ["copied", "replaced"].map(|name| store.add_file(name, b"x"));
    let root_of = |info: &PathInfo| store.tree(&info.path).unwrap().identity().ok();
    for (number, info) in [1, 2].into_iter().zip(&mut infos) {
        (info.nar_hash, info.nar_size) = (hash(number), 300 * KIB);
        let candidate = fixture.start(number, 300 * KIB).unwrap();
        let recording = candidate.write(&vec![1; 300 * 1024], 1000).unwrap();
        let files = CopiedFiles {
            hash_part: info.path.hash_part(),
            root: root_of(info).unwrap(),
        };
        assert!(recording.finish(Some(files)).is_some());
    }
    let [copied, replaced] = &infos;
    let get = |info: &PathInfo| {
        fixture
            .cache
            .get_of(&Row::from(info), || root_of(info))
            .is_some()
    };
    assert!(get(copied) && get(replaced));
    std::fs::rename(store.file(&copied.path), store.file(&replaced.path)).unwrap();
    assert!(!get(replaced) && !fixture.has(2), "other files");
    assert!(fixture.add(3, 300 * KIB) && fixture.has(1));
    fixture.cache.drop_path(&copied.path.hash_part());
    assert!(!fixture.has(1) && fixture.has(3), "the hashed copy stays");
}

#[test]
fn a_nar_longer_than_registered_is_not_cached() {
    let fixture = Fixture::new(1024 * KIB, 2);
    let recording = fixture.start(1, 300 * KIB).unwrap();
    let recording = recording.write(&vec![1; 300 * 1024], 1000).unwrap();
    assert!(recording.write(&[1], 1000).is_none());
    assert!(!fixture.has(1));
    assert_eq!(fixture.len(), 0);
}

#[test]
fn an_unreadable_entry_is_dropped_and_not_written_again() {
    let fixture = Fixture::new(1024 * KIB, 2);
    assert!(fixture.add(1, 300 * KIB) && fixture.add(2, 300 * KIB));
    let cached = fixture.cache.find(&key(1)).unwrap();
    // Two readers notice the error; only the first one is reported.
    for _ in 0..2 {
        fixture.cache.fail(&cached, &io::Error::other("unreadable"));
    }
    drop(cached);
    assert_eq!(fixture.events.take(), ["NAR cache failed"], "reported once");
    assert!(!fixture.has(1) && fixture.has(2));
    assert!(fixture.start(1, 300 * KIB).is_none());
}

#[test]
fn a_directory_that_vanished_pauses_writing_for_a_minute_and_is_reported_once() {
    let Fixture { dir, events, cache } = Fixture::new(1024 * KIB, 4);
    let bytes = vec![1; 300 * 1024];
    let (first, rest) = bytes.split_at(1000);
    let start = |number| {
        let candidate = Candidate::reserve(&cache, &hash(number), 300 * KIB);
        candidate.and_then(|candidate| candidate.write(first, 1000))
    };
    start(1).unwrap().write(rest, 1000).unwrap().finish(None);
    let in_progress = start(2).unwrap();
    dir.close().unwrap();
    assert!(start(3).is_none());
    assert_eq!(events.take(), ["NAR cache failed"]);
    // The file of a copy was open when the directory vanished, so it can still be read.
    assert!(cache.find(&key(1)).is_some());
    let fail_at = |time| cache.state.locked().failed_at = Instant::now().checked_sub(time);
    fail_at(PAUSE);
    assert!(start(3).is_none());
    assert_eq!(events.take(), [""; 0]);
    let failed_at = cache.state.locked().failed_at.unwrap();
    assert!(failed_at.elapsed() < PAUSE, "tried again after the pause");
    in_progress.write(rest, 1000).unwrap().finish(None);
    assert!(
        cache.state.locked().failed_at.is_none(),
        "a write succeeded"
    );
    assert!(start(3).is_none());
    assert_eq!(events.take(), ["NAR cache failed"]);
}

#[test]
fn a_compressed_copy_is_cached_beside_the_nar_and_takes_its_final_length() {
    let fixture = Fixture::new(1024 * KIB, 10);
    assert!(fixture.add(1, 300 * KIB));
    let zstd = (hash(1), Form::Zstd);
    let start = |len_max| Recording::start_zstd(&fixture.cache, &hash(1), 300 * KIB, len_max);
    assert!(start(512 * KIB + 1).is_none());
    let recording = start(512 * KIB).unwrap();
    assert!(fixture.cache.is_in_progress(&zstd) && !fixture.cache.has(&zstd));
    let recording = recording.append(&[1; 1000]).unwrap();
    assert_eq!(fixture.len(), 812 * KIB);
    let cached = recording.finish(None).unwrap();
    assert_eq!((cached.len(), fixture.len()), (1000, 300 * KIB + 1000));
    assert!(fixture.cache.has(&zstd) && !fixture.cache.is_in_progress(&zstd));
    assert!(fixture.cache.get(&zstd, 300 * KIB).is_some());
    assert!(
        fixture.cache.get(&zstd, 300 * KIB + 1).is_none(),
        "the size in the row is another"
    );
}
