//! An index is trusted for files that have not changed since, and a damaged one is refused.

use std::fs;
use std::os::unix::fs::symlink;

use proptest::prelude::*;
use samovar_workspace::{CLOCK, Index, Scanned, prepare_clock, read_tree};
use sha2::{Digest, Sha256};

#[test]
fn a_file_with_a_stamp_from_the_time_of_the_scan_on_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "x").unwrap();
    let (mut scanned, _) = read_tree(dir.path(), None, false, 1).unwrap();
    let mut again = Scanned::scan(dir.path()).unwrap();
    scanned.settled = scanned.states[1].ctime;
    assert_eq!(Index::of(&scanned).apply(&mut again), [1]);
    scanned.settled.seconds += 1;
    assert_eq!(Index::of(&scanned).apply(&mut again), [0; 0]);
    // A program may set the mtime to any time.
    scanned.states[1].mtime = scanned.settled;
    assert_eq!(Index::of(&scanned).apply(&mut scanned.clone()), [0; 0]);
    let mut unknown = Scanned::scan(dir.path()).unwrap();
    unknown.states[1].mtime = scanned.settled;
    assert_eq!(Index::of(&scanned).apply(&mut unknown), [1]);
}

/// A file can have lost its last contents in a power loss, but not their time stamp.
#[test]
fn a_file_that_changed_in_the_minute_before_another_boot_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let state = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "x").unwrap();
    let (mut scanned, _) = read_tree(dir.path(), None, false, 1).unwrap();
    let changed = scanned.states[1].ctime;
    let mut unhashed = |seconds, forged: Option<&[u8; 36]>| {
        scanned.settled = changed;
        scanned.settled.seconds += seconds;
        Index::of(&scanned).write(state.path()).unwrap();
        if let Some(boot_id) = forged {
            let path = state.path().join("index");
            let mut bytes = fs::read(&path).unwrap();
            bytes.truncate(bytes.len() - 32);
            bytes[16..52].copy_from_slice(boot_id);
            bytes.extend(Sha256::digest(&bytes));
            fs::write(&path, bytes).unwrap();
        }
        let index = Index::read(state.path()).unwrap().unwrap();
        index.apply(&mut Scanned::scan(dir.path()).unwrap())
    };
    let other = b"00000000-1111-2222-3333-444444444444";
    assert_eq!(unhashed(1, None), [0; 0]);
    for boot_id in [other, &[0; 36]] {
        assert_eq!(unhashed(60, Some(boot_id)), [1]);
        assert_eq!(unhashed(61, Some(boot_id)), [0; 0]);
    }
}

#[test]
fn the_clock_of_the_file_system_separates_earlier_changes_from_later_ones() {
    let dir = tempfile::tempdir().unwrap();
    for is_prepared in [false, true] {
        let scanned = Scanned::scan(dir.path()).unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        let later = Scanned::scan(dir.path()).unwrap();
        assert!(later.states[1].ctime >= scanned.settled);
        if is_prepared {
            while Scanned::scan(dir.path()).unwrap().settled <= later.states[1].ctime {
                std::thread::yield_now();
            }
        }
        fs::remove_file(&file).unwrap();
        prepare_clock(dir.path()).unwrap();
    }
    // A scan changes nothing in the directory.
    let names = fs::read_dir(dir.path()).unwrap().flatten();
    let names: Vec<_> = names.map(|entry| entry.file_name()).collect();
    assert!(names.iter().all(|name| name == CLOCK), "{names:?}");
}

#[test]
fn a_damaged_index_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(dir.path().join("sub/file"), "x").unwrap();
    symlink("target", dir.path().join("link")).unwrap();
    assert!(Index::read(dir.path()).unwrap().is_none());
    let scanned = Scanned::scan(dir.path()).unwrap();
    let bytes = Index::of(&scanned).encode();
    assert_eq!(Index::decode(&bytes).unwrap().encode(), bytes);
    let body_len = bytes.len() - 32;
    for len in 0..bytes.len() {
        assert!(Index::decode(&bytes[..len]).is_err(), "{len}");
        // With a valid hash, so that the parser itself has to refuse it.
        let mut cut = bytes[..len.min(body_len)].to_vec();
        if len < body_len {
            cut.extend(Sha256::digest(&cut));
            assert!(Index::decode(&cut).is_err(), "{len}");
        }
    }
    fs::write(dir.path().join("index"), &bytes[..100]).unwrap();
    assert!(Index::read(dir.path()).is_err());
}

proptest! {
    #[test]
    fn an_index_with_other_bytes_is_refused_or_canonical(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("sub/file"), "x").unwrap();
        let mut scanned = Scanned::scan(dir.path()).unwrap();
        scanned.entries.set_digest(2, [3; 32]);
        let mut bytes = Index::of(&scanned).encode();
        bytes.truncate(bytes.len() - 32);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.extend(Sha256::digest(&bytes));
        if let Ok(index) = Index::decode(&bytes) {
            prop_assert_eq!(index.encode(), bytes);
        }
    }
}
