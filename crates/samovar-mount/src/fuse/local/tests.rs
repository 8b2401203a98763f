//! Tests of the files of a snapshot.

use samovar_nix::{NarHash, StorePath};
use samovar_workspace::Mtime;
use samovar_workspace::entries::Builder;

use super::*;

const LARGE_LEN: usize = 3 << 20;

const BLOCK: usize = 1 << 20;

/// A manifest of the files `a` (small), `b` (of several blocks) and `c` (empty), and the NAR.
fn example() -> (Manifest, Vec<u8>) {
    let time = Mtime::default();
    let contents = [b"aaa".to_vec(), vec![7; LARGE_LEN], Vec::new()];
    let mut tree = Builder::new(0o755, time);
    for (name, content) in ["a", "b", "c"].iter().zip(&contents) {
        let digest = Some(Sha256::digest(content).into());
        let size = content.len() as u64;
        tree.file(name.as_bytes(), 0o644, time, size, digest)
            .unwrap();
    }
    tree.leave().unwrap();
    let entries = tree.finish().unwrap();
    let mut nar = Vec::new();
    let mut framing = entries.framing();
    while let Some(file) = framing.next_file(&mut nar).unwrap() {
        nar.extend_from_slice(&contents[file - 1]);
    }
    let tree = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5-app";
    let manifest = Manifest {
        tree: StorePath::from_base_name(tree).unwrap(),
        nar_hash: NarHash::from_bytes(Sha256::digest(&nar).into()),
        entries,
    };
    (manifest, nar)
}

fn open(dir: &Path) -> Local {
    let (manifest, _) = example();
    prepare(dir, &manifest).unwrap();
    let lock = create(&dir.join("lock")).unwrap();
    Local::open(dir, lock, manifest).unwrap()
}

fn store_all(local: &Local, nar: &[u8]) {
    for (at, block) in nar.chunks(BLOCK).enumerate() {
        assert_eq!(block.len(), local.block_len(at));
        local.store(at, block).unwrap();
    }
}

fn data(read: Read) -> Vec<u8> {
    match read {
        Read::Data(data) => data,
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_are_read_once_all_their_blocks_are_here() {
    let dir = tempfile::tempdir().unwrap();
    let local = open(dir.path());
    let (_, nar) = example();
    assert_eq!(local.read(1, 0, 10).unwrap(), Read::Missing(0..1));
    assert_eq!(local.read(2, 0, 10).unwrap(), Read::Missing(0..4));
    assert_eq!(data(local.read(3, 0, 10).unwrap()), b"");
    local.store(0, &nar[..BLOCK]).unwrap();
    assert_eq!(data(local.read(1, 1, 10).unwrap()), b"aa");
    assert_eq!(data(local.read(1, 3, 10).unwrap()), b"");
    assert_eq!(data(local.read(1, u64::MAX, 10).unwrap()), b"");
    assert_eq!(local.read(2, 0, 10).unwrap(), Read::Missing(0..4));
    // Another mount of the same snapshot fetches the rest.
    store_all(&open(dir.path()), &nar);
    let end = LARGE_LEN as u64;
    assert_eq!(data(local.read(2, end - 5, 10).unwrap()), [7; 5]);
    assert!(local.verify_all().unwrap());
    assert!(open(dir.path()).is_whole());
}

#[test]
fn a_damaged_file_is_never_read() {
    let dir = tempfile::tempdir().unwrap();
    let local = open(dir.path());
    let (_, mut nar) = example();
    let at = usize::try_from(local.file(2).unwrap().0).unwrap() + LARGE_LEN - 1;
    nar[at] ^= 1;
    store_all(&local, &nar);
    for _ in 0..2 {
        assert_eq!(local.read(2, 0, 10).unwrap(), Read::Damaged);
    }
    assert_eq!(data(local.read(1, 0, 10).unwrap()), b"aaa");
    assert!(!local.verify_all().unwrap());
    // A block that is here is not replaced, because its other files may be verified.
    let (_, good) = example();
    store_all(&local, &good);
    assert_eq!(local.read(2, 0, 10).unwrap(), Read::Damaged);
    let contents = local.temporary().unwrap();
    contents.write_all_at(&[7; LARGE_LEN], 0).unwrap();
    local.repair(2, &contents).unwrap();
    assert_eq!(data(local.read(2, 0, 3).unwrap()), [7; 3]);
    assert!(local.verify_all().unwrap());
}

#[test]
fn after_a_restart_of_the_machine_files_are_verified_again() {
    let dir = tempfile::tempdir().unwrap();
    let (_, nar) = example();
    let local = open(dir.path());
    store_all(&local, &nar);
    assert_eq!(data(local.read(1, 0, 3).unwrap()), b"aaa");
    // The restart loses contents, and the header has another boot ID.
    let at = local.file(1).unwrap().0;
    local.nar.write_all_at(b"\0", at).unwrap();
    assert_eq!(data(open(dir.path()).read(1, 0, 3).unwrap()), b"\0aa");
    local.marks.write_all_at(b"another boot", 20).unwrap();
    assert_eq!(open(dir.path()).read(1, 0, 3).unwrap(), Read::Damaged);
    // Files that were verified and synced stay verified.
    local.nar.write_all_at(b"a", at).unwrap();
    assert!(local.verify_all().unwrap());
    local.marks.write_all_at(b"another boot", 20).unwrap();
    assert!(open(dir.path()).is_whole());
}

#[test]
fn marks_of_another_version_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let (_, nar) = example();
    store_all(&open(dir.path()), &nar);
    assert!(open(dir.path()).has(0));
    create(&dir.path().join("marks"))
        .unwrap()
        .write_all_at(b"s", 0)
        .unwrap();
    assert!(open(dir.path()).has(0));
    create(&dir.path().join("marks"))
        .unwrap()
        .write_all_at(b"S", 0)
        .unwrap();
    assert!(!open(dir.path()).has(0));
}
