//! Tests of the build IDs of a store.

use std::fs;

use samovar_nix::PathInfo;

use super::*;
use crate::tests::memory_store::MemoryStore;

fn id(text: &str) -> BuildId {
    BuildId::parse(text.as_bytes()).unwrap()
}

/// Registers a path with files of these build IDs.
fn add(store: &MemoryStore, name: &str, ids: &[&str]) -> PathInfo {
    let info = store.add_directory(name, &[]);
    let directory = store.file(&info.path).join("lib/debug/.build-id");
    for id in ids {
        fs::create_dir_all(directory.join(&id[..2])).unwrap();
        fs::write(
            directory.join(format!("{}/{}.debug", &id[..2], &id[2..])),
            "",
        )
        .unwrap();
    }
    info
}

fn find(build_ids: &BuildIds, store: &MemoryStore, text: &str) -> Result<Vec<HashPart>, Refusal> {
    build_ids.in_store(store, &(), &id(text))
}

#[test]
fn paths_are_read_once_they_are_registered() {
    let (store, build_ids) = (MemoryStore::new(), BuildIds::default());
    assert_eq!(find(&build_ids, &store, "abcd"), Ok(vec![]));
    let one = add(&store, "one-debug", &["abcd", "abef"]).path.hash_part();
    add(&store, "two", &["abcd"]);
    assert_eq!(find(&build_ids, &store, "abcd"), Ok(vec![one]));
    // More than are read first, and more than are read at once.
    for count in [20, 600] {
        for number in 0..count {
            store.add_file(&format!("file-{count}-{number}"), b"");
        }
        let last = add(&store, &format!("last-{count}-debug"), &["abcd"]);
        add(&store, &format!("other-{count}"), &[]);
        let found = find(&build_ids, &store, "abcd").unwrap();
        assert_eq!(
            (found[0], found.last()),
            (last.path.hash_part(), Some(&one))
        );
    }
    assert_eq!(find(&build_ids, &store, "abef"), Ok(vec![one]));
}

#[test]
fn all_paths_are_read_again_if_the_newest_one_is_gone() {
    let (store, build_ids) = (MemoryStore::new(), BuildIds::default());
    let one = add(&store, "one-debug", &["abcd"]);
    let two = add(&store, "two-debug", &["abcd"]);
    assert_eq!(find(&build_ids, &store, "abcd").unwrap().len(), 2);
    store.unregister(&two.path);
    let found = find(&build_ids, &store, "abcd");
    assert_eq!(found, Ok(vec![one.path.hash_part()]));
}

#[test]
fn what_cannot_be_read_is_not_absent() {
    let (store, build_ids) = (MemoryStore::new(), BuildIds::default());
    let one = add(&store, "one-debug", &["abcd"]);
    assert_eq!(find(&build_ids, &store, "abcd").unwrap().len(), 1);
    // The file system of the store is not mounted.
    let two = add(&store, "two-debug", &["abef"]);
    let elsewhere = tempfile::tempdir().unwrap();
    let paths = [&one.path, &two.path];
    let places = paths.map(|path| (store.file(path), elsewhere.path().join(path.name())));
    for (mounted, unmounted) in &places {
        fs::rename(mounted, unmounted).unwrap();
    }
    assert_eq!(find(&build_ids, &store, "abef"), Err(Refusal::Unreadable));
    assert_eq!(find(&build_ids, &store, "abcd").unwrap().len(), 1);
    for (mounted, unmounted) in &places {
        fs::rename(unmounted, mounted).unwrap();
    }
    let found = find(&build_ids, &store, "abef");
    assert_eq!(found, Ok(vec![two.path.hash_part()]));
    store.fail(true);
    assert!(matches!(
        find(&build_ids, &store, "abcd"),
        Err(Refusal::Store(_))
    ));
}
