//! A NAR becomes the files that it describes, with the attributes of the manifest, or nothing.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{PermissionsExt, symlink};

use proptest::prelude::*;
use samovar_workspace::unpack::{Options, Progress, UnpackError, unpack};
use support::{
    FAST, Node, assert_attributes, manifest, names, read, tempdir, time, unpack_plain, usual,
};
use testkit::nar::write_bytes;

fn example() -> Node {
    let large: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    Node::dir([
        ("a", Node::file("contents")),
        ("bin", Node::dir([("run", Node::program("#!/bin/sh\n"))])),
        ("empty", Node::file("")),
        ("hollow", Node::dir::<&str>([])),
        ("large", Node::file(large)),
        ("link", Node::link("bin/run")),
        ("z", Node::file("last")),
    ])
}

/// A reader that returns few bytes per call.
struct Slow<'a>(&'a [u8], usize);

impl Read for Slow<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = out.len().min(self.1);
        self.0.read(&mut out[..len])
    }
}

#[test]
fn files_directories_and_links_are_unpacked() {
    let dir = tempdir();
    let into = dir.path().join("tree");
    let nar = example().nar();
    let progress = Progress::default();
    let options = Options {
        progress: Some(&progress),
        nar_hash: Some(support::nar_hash(&nar)),
        nar_size_max: nar.len() as u64,
        entry_count_max: 8,
        ..FAST
    };
    let unpacked = unpack(&mut &*nar, None, &into, &options).unwrap();
    assert_eq!(read(&into).nar(), nar);
    assert_eq!(unpacked.nar_hash, support::nar_hash(&nar));
    assert_eq!(unpacked.nar_size, nar.len() as u64);
    assert_eq!((unpacked.file_count, unpacked.directory_count), (5, 2));
    assert_eq!(
        (unpacked.symlink_count, unpacked.content_size),
        (1, 1_200_022)
    );
    assert_eq!((progress.bytes(), progress.files()), (nar.len() as u64, 5));
    assert_eq!(names(dir.path()), [b"tree"]);
    let mode = |name: &str| fs::metadata(into.join(name)).unwrap().permissions().mode() & 0o777;
    fs::write(dir.path().join("umask"), "").unwrap();
    let umask = 0o666
        & !fs::metadata(dir.path().join("umask"))
            .unwrap()
            .permissions()
            .mode();
    assert_eq!(mode("a"), 0o644 & !umask);
    assert_eq!(
        (mode("bin"), mode("bin/run")),
        (0o755 & !umask, 0o755 & !umask)
    );
    assert_eq!(mode(""), 0o755 & !umask);
}

#[test]
fn pieces_of_any_length_give_the_same_tree() {
    let dir = tempdir();
    let nar = example().nar();
    for len in [1000, 4097, 300_000] {
        let into = dir.path().join(len.to_string());
        unpack(&mut Slow(&nar, len), None, &into, &FAST).unwrap();
        assert_eq!(read(&into).nar(), nar);
    }
}

#[test]
fn a_manifest_gives_permissions_and_times() {
    let dir = tempdir();
    let into = dir.path().join("tree");
    let tree = example();
    let manifest = manifest(&tree, &|path, node| {
        let mode = match (path, node) {
            (b"", _) => 0o555,
            (b"bin", _) => 0o500,
            (b"bin/run", _) => 0o750,
            (b"hollow", _) => 0,
            (b"a", _) => 0o400,
            (b"z", _) => 0o077,
            (_, node) => usual(path, node).0,
        };
        (mode, time(path.len() as i64 - 3))
    });
    let nar = tree.nar();
    unpack(&mut &*nar, Some(&manifest), &into, &FAST).unwrap();
    assert_attributes(&into, &manifest.entries);
    assert_eq!(names(dir.path()), [b"tree"]);
    support::remove(dir.path(), b"tree");
}

#[test]
fn a_single_file_or_link_is_unpacked() {
    let dir = tempdir();
    for (name, node) in [
        ("file", Node::program(vec![b'x'; 1 << 20])),
        ("link", Node::link("nowhere")),
    ] {
        let into = dir.path().join(name);
        unpack_plain(&node.nar(), &into).unwrap();
        assert_eq!(read(&into).nar(), node.nar());
        let again = unpack_plain(&node.nar(), &into);
        assert!(
            matches!(again, Err(UnpackError::Exists { .. })),
            "{again:?}"
        );
    }
    let into = dir.path().join("empty");
    fs::create_dir(&into).unwrap();
    let refused = unpack_plain(&Node::file("").nar(), &into);
    assert!(
        matches!(refused, Err(UnpackError::Exists { .. })),
        "{refused:?}"
    );
    assert_eq!(names(dir.path()), [&b"empty"[..], b"file", b"link"]);
}

#[test]
fn only_an_empty_directory_is_replaced() {
    let dir = tempdir();
    let nar = example().nar();
    for name in ["file", "full", "link", "dangling"] {
        let into = dir.path().join(name);
        match name {
            "file" => fs::write(&into, "mine").unwrap(),
            "full" => fs::create_dir_all(into.join("mine")).unwrap(),
            "link" => symlink("empty", &into).unwrap(),
            _ => symlink("nowhere", &into).unwrap(),
        }
        let before = read(&into).nar();
        let refused = unpack_plain(&nar, &into);
        assert!(
            matches!(refused, Err(UnpackError::Exists { .. })),
            "{refused:?}"
        );
        assert_eq!(read(&into).nar(), before);
    }
    let into = dir.path().join("empty");
    fs::create_dir(&into).unwrap();
    unpack_plain(&nar, &into).unwrap();
    assert_eq!(read(&into).nar(), nar);
    assert_eq!(names(dir.path()).len(), 5);
}

#[test]
fn a_destination_without_name_or_parent_is_refused() {
    let dir = tempdir();
    let nar = example().nar();
    for path in [dir.path().join(".."), ".".into(), "/".into()] {
        let refused = unpack_plain(&nar, &path);
        assert!(
            matches!(refused, Err(UnpackError::NoName { .. })),
            "{refused:?}"
        );
    }
    let refused = unpack_plain(&nar, &dir.path().join("missing/tree")).unwrap_err();
    assert!(refused.to_string().contains("missing"), "{refused}");
}

/// The source ends or fails at every byte of a small archive, and at some of a large one.
#[test]
fn nothing_remains_of_an_archive_that_is_cut_short() {
    let dir = tempdir();
    let into = dir.path().join("tree");
    let small = Node::dir([("a", Node::dir([("b", Node::file("b"))]))]).nar();
    let large = example().nar();
    let cuts = (0..small.len()).step_by(8).map(|len| &small[..len]);
    for cut in cuts.chain((0..large.len()).step_by(200_001).map(|len| &large[..len])) {
        let refused = unpack_plain(cut, &into);
        assert!(
            matches!(refused, Err(UnpackError::NotANar(_))),
            "{refused:?}"
        );
        assert!(names(dir.path()).is_empty(), "{}", cut.len());
        let mut failing = cut.chain(Failing);
        let failed = unpack(&mut failing, None, &into, &FAST);
        assert!(matches!(failed, Err(UnpackError::Source(_))), "{failed:?}");
        assert!(names(dir.path()).is_empty(), "{}", cut.len());
    }
}

struct Failing;

impl Read for Failing {
    fn read(&mut self, _out: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

struct Panicking;

impl Read for Panicking {
    fn read(&mut self, _out: &mut [u8]) -> io::Result<usize> {
        panic!("on purpose")
    }
}

#[test]
fn nothing_remains_after_a_panic() {
    let dir = tempdir();
    let into = dir.path().join("tree");
    let nar = example().nar();
    let caught = std::panic::catch_unwind(|| {
        let mut panicking = nar[..nar.len() / 2].chain(Panicking);
        unpack(&mut panicking, None, &into, &FAST)
    });
    assert!(caught.is_err(), "the panic is not swallowed");
    assert!(names(dir.path()).is_empty(), "{:?}", names(dir.path()));
}

#[test]
fn bytes_after_the_archive_are_refused() {
    let dir = tempdir();
    let into = dir.path().join("tree");
    let mut nar = example().nar();
    nar.push(0);
    let refused = unpack_plain(&nar, &into);
    assert!(
        matches!(refused, Err(UnpackError::BytesAfterNar { .. })),
        "{refused:?}"
    );
    let refused = unpack(&mut Slow(&nar, nar.len() - 1), None, &into, &FAST);
    assert!(
        matches!(refused, Err(UnpackError::BytesAfterNar { .. })),
        "{refused:?}"
    );
    assert!(names(dir.path()).is_empty(), "{:?}", names(dir.path()));
}

#[test]
fn limits_are_exact() {
    let dir = tempdir();
    let into = dir.path().join("tree");
    let nar = example().nar();
    let size = nar.len() as u64;
    let with = |nar_size_max, entry_count_max| Options {
        nar_size_max,
        entry_count_max,
        ..FAST
    };
    let refused = unpack(&mut &*nar, None, &into, &with(size - 1, 8));
    assert!(matches!(refused, Err(UnpackError::TooLarge { limit }) if limit == size - 1));
    let refused = unpack(&mut &*nar, None, &into, &with(size, 7));
    assert!(matches!(
        refused,
        Err(UnpackError::TooManyEntries { limit: 7 })
    ));
    // A lie about the size is refused before the contents arrive.
    let head = nar_with_entry(b"bomb", 1 << 61);
    let refused = unpack(&mut &*head, None, &into, &with(size, 8));
    assert!(matches!(refused, Err(UnpackError::TooLarge { .. })));
    // The size of the narinfo is neither a minimum nor a maximum only.
    let of_size = |nar_size| Options {
        nar_size: Some(nar_size),
        ..FAST
    };
    let refused = unpack(&mut &*nar, None, &into, &of_size(size - 1));
    assert!(matches!(refused, Err(UnpackError::TooLarge { limit }) if limit == size - 1));
    let refused = unpack(&mut &*nar, None, &into, &of_size(size + 1));
    assert!(
        matches!(refused, Err(UnpackError::NarSize { expected, found })
        if (expected, found) == (size + 1, size))
    );
    assert!(names(dir.path()).is_empty(), "{:?}", names(dir.path()));
    unpack(&mut &*nar, None, &into, &of_size(size)).unwrap();
    fs::remove_dir_all(&into).unwrap();
    unpack(&mut &*nar, None, &into, &with(size, 8)).unwrap();
}

/// The start of a NAR with one file of this name and stated size.
fn nar_with_entry(name: &[u8], size: u64) -> Vec<u8> {
    let mut nar = Vec::new();
    for text in [
        "nix-archive-1",
        "(",
        "type",
        "directory",
        "entry",
        "(",
        "name",
    ] {
        write_bytes(&mut nar, text.as_bytes()).unwrap();
    }
    write_bytes(&mut nar, name).unwrap();
    for text in ["node", "(", "type", "regular", "contents"] {
        write_bytes(&mut nar, text.as_bytes()).unwrap();
    }
    nar.extend(size.to_le_bytes());
    nar
}

#[test]
fn hostile_names_are_refused() {
    let dir = tempdir();
    let into = dir.path().join("tree");
    let long = [b'x'; 256];
    let names_refused: [&[u8]; 8] = [b"", b".", b"..", b"/", b"a/b", b"../a", b"a\0", &long];
    for name in names_refused {
        let mut nar = nar_with_entry(name, 0);
        for text in [")", ")", ")"] {
            write_bytes(&mut nar, text.as_bytes()).unwrap();
        }
        let refused = unpack_plain(&nar, &into);
        assert!(
            matches!(refused, Err(UnpackError::NotANar(_))),
            "{name:?}: {refused:?}"
        );
    }
    // Names in the wrong order, and twice.
    let nar = Node::dir([("aaaa", Node::link("/etc")), ("bbbb", Node::file(""))]).nar();
    for to in [b"0000", b"aaaa"] {
        let at = nar.windows(4).position(|window| window == b"bbbb").unwrap();
        let mut changed = nar.clone();
        changed[at..at + 4].copy_from_slice(to);
        let refused = unpack_plain(&changed, &into);
        assert!(
            matches!(refused, Err(UnpackError::NotANar(_))),
            "{refused:?}"
        );
    }
    assert!(names(dir.path()).is_empty(), "{:?}", names(dir.path()));
}

#[test]
fn another_hash_is_refused() {
    let dir = tempdir();
    let into = dir.path().join("tree");
    let nar = example().nar();
    let options = Options {
        nar_hash: Some(support::nar_hash(b"")),
        ..FAST
    };
    let refused = unpack(&mut &*nar, None, &into, &options);
    assert!(
        matches!(refused, Err(UnpackError::NarHash { .. })),
        "{refused:?}"
    );
    let mut manifest = manifest(&example(), &usual);
    manifest.nar_hash = support::nar_hash(b"");
    let refused = unpack(&mut &*nar, Some(&manifest), &into, &FAST);
    assert!(
        matches!(refused, Err(UnpackError::NarHash { .. })),
        "{refused:?}"
    );
    assert!(names(dir.path()).is_empty(), "{:?}", names(dir.path()));
}

#[test]
fn an_archive_that_differs_from_the_manifest_is_refused() {
    let dir = tempdir();
    let into = dir.path().join("tree");
    let tree = |content: &str, target: &str, name: &str| {
        Node::dir([
            ("d", Node::dir([(name, Node::file(content))])),
            ("l", Node::link(target)),
        ])
    };
    let stated = manifest(&tree("contents", "target", "file"), &usual);
    let replace = |name: &'static str, node| {
        let Node::Dir(mut entries) = tree("contents", "target", "file") else {
            unreachable!()
        };
        entries.insert(name.into(), node);
        Node::Dir(entries)
    };
    for (path, found) in [
        ("d/file", tree("CONTENTS", "target", "file")),
        ("d/file", tree("content", "target", "file")),
        ("d/fila", tree("contents", "target", "fila")),
        ("l", tree("contents", "TARGET", "file")),
        ("l", replace("l", Node::file("target"))),
        ("l", replace("l", Node::dir::<&str>([]))),
        ("m", replace("m", Node::link("m"))),
        ("a", replace("a", Node::file(""))),
        ("d", replace("d", Node::link("target"))),
        ("d", replace("d", Node::dir::<&str>([]))),
        (
            "d/file",
            replace("d", Node::dir([("file", Node::program("contents"))])),
        ),
        (
            "",
            Node::dir([("d", Node::dir([("file", Node::file("contents"))]))]),
        ),
        ("", Node::link("d")),
    ] {
        let refused = unpack(&mut &*found.nar(), Some(&stated), &into, &FAST).unwrap_err();
        // A longer archive is refused with or without its first difference.
        let is_too_large = matches!(refused, UnpackError::TooLarge { .. });
        let expected = format!(
            "{:?}",
            if path.is_empty() {
                into.clone()
            } else {
                into.join(path)
            }
        );
        let text = refused.to_string();
        assert!(
            text.starts_with(&expected) || is_too_large,
            "{path}: {text}"
        );
        assert!(names(dir.path()).is_empty(), "{path}");
    }
}

#[test]
fn a_snapshot_with_the_state_of_a_workspace_is_refused() {
    let dir = tempdir();
    let into = dir.path().join("tree");
    let tree = Node::dir([(".samovar", Node::dir([("remote", Node::file("hostile"))]))]);
    let manifest = manifest(&tree, &usual);
    let refused = unpack(&mut &*tree.nar(), Some(&manifest), &into, &FAST);
    assert!(
        matches!(refused, Err(UnpackError::Differs { .. })),
        "{refused:?}"
    );
    assert!(names(dir.path()).is_empty(), "{:?}", names(dir.path()));
}

#[test]
fn the_deepest_paths_exceed_no_limit_of_the_system() {
    let dir = tempdir();
    let into = dir.path().join("tree");
    let name = vec![b'd'; 255];
    let leaf = Node::dir([
        (name.clone(), Node::file("deep")),
        (b"l".to_vec(), Node::link("x")),
    ]);
    let tree = (0..62).fold(leaf, |node, _| Node::dir([(name.clone(), node)]));
    let nar = tree.nar();
    let manifest = manifest(&tree, &|path, node| match node {
        Node::Dir(_) if !path.is_empty() => (0o555, time(7)),
        _ => usual(path, node),
    });
    unpack(&mut &*nar, Some(&manifest), &into, &FAST).unwrap();
    support::remove(dir.path(), b"tree");
    assert!(names(dir.path()).is_empty(), "{:?}", names(dir.path()));
}

fn node() -> impl Strategy<Value = Node> {
    let size = prop_oneof![8 => 0..2000_usize, 1 => 200_000..600_000_usize];
    let leaf = prop_oneof![
        4 => (size, any::<u8>(), any::<bool>()).prop_map(|(size, byte, executable)| {
            let content = vec![byte; size];
            if executable { Node::program(content) } else { Node::file(content) }
        }),
        1 => "[^\0]{1,20}".prop_map(Node::link),
    ];
    let name = proptest::collection::vec(1..=255_u8, 1..12).prop_filter("a name", |name| {
        !name.contains(&b'/') && !matches!(name[..], [b'.'] | [b'.', b'.'])
    });
    leaf.prop_recursive(5, 60, 8, move |inner| {
        proptest::collection::btree_map(name.clone(), inner, 0..8).prop_map(Node::Dir)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn random_trees_are_unpacked(
        tree in proptest::collection::btree_map("[a-z]{1,3}", node(), 0..8),
        seed in any::<u16>(),
    ) {
        let tree = Node::dir(tree);
        let dir = tempdir();
        let nar = tree.nar();
        let manifest = manifest(&tree, &|path, node| {
            let random = seed ^ path.iter().fold(7_u16, |hash, byte| {
                hash.wrapping_mul(31).wrapping_add(u16::from(*byte))
            });
            let executable = matches!(node, Node::File { executable: true, .. });
            let mode = match node {
                Node::Dir(_) => random & 0o777 | 0o500,
                _ => random & 0o677 | 0o400 | if executable { 0o100 } else { 0 },
            };
            (mode, time(i64::from(random) * 1000))
        });
        let plain = dir.path().join("plain");
        prop_assert_eq!(unpack_plain(&nar, &plain).unwrap().nar_size, nar.len() as u64);
        prop_assert_eq!(read(&plain).nar(), nar.clone());
        let exact = dir.path().join("exact");
        unpack(&mut &*nar, Some(&manifest), &exact, &FAST).unwrap();
        assert_attributes(&exact, &manifest.entries);
        prop_assert_eq!(read(&exact).nar(), nar);
        support::remove(dir.path(), b"exact");
    }
}
