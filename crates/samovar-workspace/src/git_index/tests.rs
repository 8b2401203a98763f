use proptest::prelude::*;

use super::*;

/// An entry of an index.
#[derive(Debug, Clone)]
struct Item {
    path: &'static [u8],
    stat: u32,
    nanoseconds: u32,
    size: u32,
    mode: u32,
    id: ObjectName,
    flags: u16,
    extended: u16,
}

fn item(path: &'static [u8]) -> Item {
    Item {
        path,
        stat: 7,
        nanoseconds: 9,
        size: 5,
        mode: 0o100_644,
        id: [1; 32],
        flags: 0,
        extended: 0,
    }
}

/// Writes an index, as git does.
fn write(version: u32, id_len: usize, items: &[Item], extensions: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut bytes = b"DIRC".to_vec();
    bytes.extend(version.to_be_bytes());
    bytes.extend(u32::try_from(items.len()).unwrap().to_be_bytes());
    let mut last: &[u8] = b"";
    for item in items {
        let start = bytes.len();
        let (stat, zero) = (item.stat, 0);
        let numbers = [
            stat,
            zero,
            stat,
            item.nanoseconds,
            1,
            2,
            item.mode,
            0,
            0,
            item.size,
        ];
        bytes.extend(numbers.iter().flat_map(|number: &u32| number.to_be_bytes()));
        bytes.extend(&item.id[..id_len]);
        let is_extended = item.extended != 0;
        let len = u16::try_from(item.path.len()).unwrap().min(0xfff);
        let flags = item.flags | len | if is_extended { EXTENDED } else { 0 };
        bytes.extend(flags.to_be_bytes());
        if is_extended {
            bytes.extend(item.extended.to_be_bytes());
        }
        if version == 4 {
            let same = last
                .iter()
                .zip(item.path)
                .take_while(|(a, b)| a == b)
                .count();
            let removed = last.len() - same;
            assert!(removed < 128 + 128, "two bytes are enough");
            if removed >= 128 {
                bytes.push(0x80);
            }
            bytes.push(u8::try_from(removed % 128).unwrap());
            bytes.extend(&item.path[same..]);
            bytes.push(0);
        } else {
            bytes.extend(item.path);
            bytes.push(0);
            let len = (bytes.len() - start).next_multiple_of(8);
            bytes.resize(start + len, 0);
        }
        last = item.path;
    }
    for (signature, data) in extensions {
        bytes.extend(*signature);
        bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
        bytes.extend(*data);
    }
    bytes.extend(vec![0xee; id_len]);
    bytes
}

/// Returns an index that has these files with these contents and the time 0.
pub(crate) fn index_of(paths: &[&'static str], text: &str) -> Vec<u8> {
    let [id, _] = blob_names(text.len() as u64, &mut text.as_bytes()).unwrap();
    let items = paths.iter().map(|path| Item {
        stat: 0,
        nanoseconds: 0,
        size: u32::try_from(text.len()).unwrap(),
        id,
        ..item(path.as_bytes())
    });
    write(2, 20, &items.collect::<Vec<_>>(), &[])
}

fn fingerprint(version: u32, items: &[Item], extensions: &[(&[u8], &[u8])]) -> [u8; 32] {
    let index = GitIndex::parse(&write(version, 20, items, extensions));
    index.unwrap().fingerprint
}

const LONG: &[u8] = &[b'l'; 200];

fn items() -> Vec<Item> {
    [&b"a"[..], b"dir/a", b"dir/b", LONG, b"m"]
        .map(item)
        .to_vec()
}

#[test]
fn indexes_of_all_versions_and_kinds_of_names_are_read() {
    for version in 2..=4 {
        for id_len in [20, 32] {
            for count in 0..=5 {
                let bytes = write(version, id_len, &items()[..count], &[(b"TREE", b"x")]);
                let index = GitIndex::parse(&bytes).unwrap();
                assert_eq!(index.stats.len(), count, "{version} {id_len}");
                assert!(items()[..count].iter().all(|item| index.has(item.path)));
                assert!(!index.has(b"b"));
            }
        }
    }
}

#[test]
fn stat_data_and_caches_are_not_in_the_fingerprint() {
    let expected = fingerprint(2, &items(), &[]);
    let mut refreshed = items();
    for item in &mut refreshed {
        item.stat = 99;
        item.size = 0;
    }
    assert_eq!(fingerprint(2, &refreshed, &[]), expected);
    assert_eq!(fingerprint(4, &items(), &[]), expected);
    for cache in CACHES {
        assert_eq!(fingerprint(2, &items(), &[(cache, b"data")]), expected);
    }
}

#[test]
fn any_other_difference_is_in_the_fingerprint() {
    let expected = fingerprint(3, &items(), &[]);
    let edits: [fn(&mut Item); 6] = [
        |item| item.mode = 0o100_755,
        |item| item.id[0] = 2,
        |item| item.flags = 0x8000,
        |item| item.flags = 0x1000,
        |item| item.extended = 0x4000,
        |item| item.path = b"dir/aa",
    ];
    for edit in edits {
        let mut items = items();
        edit(&mut items[1]);
        assert_ne!(fingerprint(3, &items, &[]), expected);
    }
    assert_ne!(fingerprint(3, &items()[1..], &[]), expected);
    assert_ne!(fingerprint(3, &items(), &[(b"REUC", b"")]), expected);
}

#[test]
fn the_contents_of_a_file_with_the_same_stat_data_are_known() {
    let mut items = items();
    items[1].extended = INTENT_TO_ADD;
    items[2].flags = 0x2000;
    let index = GitIndex::parse(&write(3, 20, &items, &[])).unwrap();
    let time = |seconds, nanoseconds| Mtime {
        seconds,
        nanoseconds,
    };
    let has = |path: &[u8], size, mtime| {
        let blob = index.blob(path, size, mtime, time(8, 0));
        assert!(blob.is_none_or(|blob| blob == padded(&[1; 20])));
        blob.is_some()
    };
    assert!(has(b"a", 5, time(7, 9)));
    assert!(!has(b"a", 6, time(7, 9)));
    assert!(!has(b"a", 5, time(7, 8)));
    assert!(!has(b"b", 5, time(7, 9)));
    // Without contents, and in a conflict of git.
    assert!(!has(b"dir/a", 5, time(7, 9)));
    assert!(!has(b"dir/b", 5, time(7, 9)));
    // Changed in the moment in which the index was written.
    assert_eq!(index.blob(b"a", 5, time(7, 9), time(7, 9)), None);
}

#[test]
fn names_of_contents_are_those_of_git() {
    // printf 'a\n' | git hash-object --stdin, in repositories of both formats.
    let [sha1, sha256] = blob_names(2, &mut &b"a\n"[..]).unwrap();
    let hex = |name: &[u8]| -> String { name.iter().map(|byte| format!("{byte:02x}")).collect() };
    assert_eq!(hex(&sha1[..20]), "78981922613b2afb6025042ff6bd878ac1994e85");
    assert_eq!(sha1[20..], [0; 12]);
    let expected = "f8625e43f9e04f24291f77cdbe4c71b3c2a3b0003f60419b3ed06a058d766c8b";
    assert_eq!(hex(&sha256), expected);
}

#[test]
fn other_files_are_refused() {
    let good = write(3, 20, &items(), &[]);
    for len in 0..good.len() {
        assert_eq!(GitIndex::parse(&good[..len]), None, "{len}");
    }
    let good = write(3, 20, &items(), &[(b"TREE", b"data")]);
    assert_eq!(GitIndex::parse(&good[..good.len() - 1]), None);
    assert_eq!(
        GitIndex::parse(&write(2, 20, &items(), &[(b"link", b"")])),
        None
    );
    for (at, byte) in [(0, b'X'), (7, 1), (7, 5), (11, 4), (11, 6)] {
        let mut bad = good.clone();
        bad[at] = byte;
        assert_eq!(GitIndex::parse(&bad), None, "{at}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_or_refused(
        at in any::<proptest::sample::Index>(),
        bytes in proptest::collection::vec(any::<u8>(), 0..40),
        version in 2..=4_u32,
    ) {
        let mut index = write(version, 20, &items(), &[(b"TREE", b"data")]);
        let at = at.index(index.len());
        for (to, from) in index[at..].iter_mut().zip(bytes) {
            *to = from;
        }
        // The shortest entry.
        let entry_len = STAT_LEN + 20 + 2 + 2;
        let count = GitIndex::parse(&index).map_or(0, |index| index.stats.len());
        prop_assert!(count * entry_len <= index.len());
    }
}
