//! Unpacking withstands other processes that change its files, a full disk, and a lack of inodes
//! and descriptors: the destination is complete or absent, and nothing outside of it changes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "a test states why it is skipped")]

mod support;

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use rustix::process::{Resource, Rlimit, setrlimit};
use samovar_workspace::unpack::{UnpackError, unpack};
use samovar_workspace::{Root, Scanned};
use support::{
    FAST, Node, assert_attributes, manifest, names, read, tempdir, time, unpack_plain, usual,
};
use testkit::random::SplitMix64;

/// The work of a child process, and the directory for it.
const WORK: &str = "SAMOVAR_TEST_WORK";
const DIRECTORY: &str = "SAMOVAR_TEST_DIRECTORY";

/// A tree with nested directories, of which some are read-only, and a file of several batches.
fn tree() -> Node {
    let package = |number: usize| {
        let files = (0..8).map(|file| {
            let content = format!("{number} {file} ").repeat(1 + number % 7 * 90);
            (format!("file-{file}"), Node::file(content))
        });
        let sub = Node::dir([("f", Node::program("#!/bin/sh\n")), ("l", Node::link("f"))]);
        Node::dir(files.chain([("sub".to_owned(), sub)]))
    };
    let packages = (0..40).map(|number| (format!("package-{number:02}"), package(number)));
    let large = ("large".to_owned(), Node::file(vec![b'x'; 1 << 20]));
    let deep = (0..55).fold(Node::dir([("f", Node::file("f"))]), |node, _| {
        Node::dir([("d", node)])
    });
    Node::dir(packages.chain([large, ("deep".to_owned(), deep)]))
}

fn tree_manifest() -> samovar_workspace::Manifest {
    manifest(&tree(), &|path, node| match node {
        Node::Dir(_) if !path.is_empty() => (0o555, time(path.len() as i64)),
        _ => usual(path, node),
    })
}

/// Starts this program again for some work. The archive is its standard input.
fn start(work: &str, directory: &Path, configure: impl FnOnce(&mut Command)) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture"]);
    command.env(WORK, work).env(DIRECTORY, directory);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    configure(&mut command);
    command.spawn().unwrap()
}

/// The work of a child process. Does nothing in the test's own process.
#[test]
fn child() {
    let Ok(work) = std::env::var(WORK) else {
        return;
    };
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    if work == "few descriptors" {
        let limit = Some(64);
        let limits = Rlimit {
            current: limit,
            maximum: limit,
        };
        setrlimit(Resource::Nofile, limits).unwrap();
    }
    let into = directory.join("tree");
    if work == "current directory" {
        let refused = unpack(&mut io::stdin().lock(), None, &into, &FAST);
        assert!(
            matches!(refused, Err(UnpackError::CurrentDirectory { .. })),
            "{refused:?}"
        );
        return;
    }
    let manifest = tree_manifest();
    unpack(&mut io::stdin().lock(), Some(&manifest), &into, &FAST).unwrap();
    if work == "unprivileged" {
        support::remove(&directory, b"tree");
    }
}

#[test]
fn a_process_that_is_killed_leaves_the_complete_tree_or_none() {
    let dir = tempdir();
    let (nar, manifest) = (tree().nar(), tree_manifest());
    let into = dir.path().join("tree");
    let mut random = SplitMix64::new(20);
    for round in 0..20 {
        let mut child = start("unpack", dir.path(), |_| {});
        let mut stdin = child.stdin.take().unwrap();
        // In every fourth round, the process is killed while it finishes the tree, or later.
        let len = if round % 4 == 0 {
            nar.len()
        } else {
            random.index(nar.len())
        };
        stdin.write_all(&nar[..len]).unwrap();
        if round % 8 == 0 {
            drop(stdin);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if into.exists() {
            assert_attributes(&into, &manifest.entries);
            assert_eq!(read(&into).nar(), nar);
            support::remove(dir.path(), b"tree");
        }
    }
    unpack(&mut &*nar, Some(&manifest), &into, &FAST).unwrap();
    assert_eq!(names(dir.path()), [b"tree"], "the left-overs are removed");
    support::remove(dir.path(), b"tree");
}

/// A source that calls a function between two parts of an archive.
struct Interrupted<'a> {
    parts: [&'a [u8]; 2],
    between: Option<Box<dyn FnOnce() + 'a>>,
}

impl Read for Interrupted<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.parts[0].read(out)?;
        if len > 0 || out.is_empty() {
            return Ok(len);
        }
        if let Some(between) = self.between.take() {
            between();
        }
        self.parts[1].read(out)
    }
}

/// Returns the archive before and after the first occurrence of `text`.
fn cut<'a>(nar: &'a [u8], text: &[u8]) -> [&'a [u8]; 2] {
    let mut windows = nar.windows(text.len());
    let (before, after) = nar.split_at(windows.position(|window| window == text).unwrap());
    [before, after]
}

/// Returns the temporary directory in `parent`.
fn temporary(parent: &Path) -> Option<PathBuf> {
    let mut names = names(parent).into_iter();
    let name = names.find(|name| name.starts_with(b".tree.samovar-"))?;
    Some(parent.join(OsStr::from_bytes(&name)))
}

#[test]
fn the_directory_of_another_running_unpack_is_not_removed() {
    let dir = tempdir();
    let nar = tree().nar();
    let other = dir.path().join("other");
    let mut source = Interrupted {
        parts: cut(&nar, b"package-30"),
        between: Some(Box::new(|| {
            unpack_plain(&nar, &other).unwrap();
        })),
    };
    unpack(&mut source, None, &dir.path().join("tree"), &FAST).unwrap();
    assert_eq!(names(dir.path()), [&b"other"[..], b"tree"]);
    assert_eq!(read(&dir.path().join("tree")).nar(), nar);
}

#[test]
fn a_scan_leaves_out_incomplete_trees_and_files() {
    let dir = tempdir();
    let nar = tree().nar();
    let mut source = Interrupted {
        parts: cut(&nar, b"package-30"),
        between: Some(Box::new(|| {
            let root = Root::open(dir.path()).unwrap();
            let _incomplete = root.replace_file(b"file").unwrap();
            assert_eq!(names(dir.path()).len(), 2);
            let scanned = Scanned::scan(dir.path()).unwrap();
            assert_eq!(scanned.entries.list().len(), 1, "the root alone");
        })),
    };
    unpack(&mut source, None, &dir.path().join("tree"), &FAST).unwrap();
    assert_eq!(names(dir.path()), [b"tree"]);
}

#[test]
fn a_destination_that_appears_meanwhile_is_not_replaced() {
    let dir = tempdir();
    let nar = tree().nar();
    let into = dir.path().join("tree");
    let mut source = Interrupted {
        parts: cut(&nar, b"package-30"),
        between: Some(Box::new(|| fs::create_dir_all(into.join("mine")).unwrap())),
    };
    let refused = unpack(&mut source, None, &into, &FAST);
    assert!(
        matches!(refused, Err(UnpackError::Exists { .. })),
        "{refused:?}"
    );
    assert_eq!(names(dir.path()), [b"tree"]);
    assert_eq!(names(&into), [b"mine"]);
}

#[test]
fn a_directory_that_becomes_a_symbolic_link_is_not_followed() {
    let nar = Node::dir([(
        "d",
        Node::dir([("first", Node::file("1")), ("second", Node::file("2"))]),
    )])
    .nar();
    for text in [b"first".as_slice(), b"second"] {
        let (dir, outside) = (tempdir(), tempdir());
        let mut source = Interrupted {
            parts: cut(&nar, text),
            between: Some(Box::new(|| {
                let directory = temporary(dir.path()).unwrap().join("d");
                fs::rename(&directory, dir.path().join("moved")).unwrap();
                symlink(outside.path(), &directory).unwrap();
            })),
        };
        let refused = unpack(&mut source, None, &dir.path().join("tree"), &FAST).unwrap_err();
        assert!(refused.to_string().contains("tree/d/"), "{refused}");
        assert!(
            names(outside.path()).is_empty(),
            "{:?}",
            names(outside.path())
        );
        assert_eq!(names(dir.path()), [b"moved"]);
    }
}

/// A thread replaces directories by links all the time. Whether an archive is unpacked depends on
/// the threads; the directory outside must remain empty in any case.
#[test]
fn links_that_appear_at_any_time_are_not_followed() {
    let (dir, outside) = (tempdir(), tempdir());
    let nar = tree().nar();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in (0..40).cycle() {
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                let Some(temporary) = temporary(dir.path()) else {
                    continue;
                };
                let package = temporary.join(format!("package-{number:02}"));
                if fs::rename(&package, temporary.join("moved")).is_ok() {
                    symlink(outside.path(), &package).ok();
                    fs::remove_file(&package).ok();
                    fs::rename(temporary.join("moved"), &package).ok();
                }
            }
        });
        for round in 0..10 {
            let into = dir.path().join(format!("tree-{round}"));
            // `temporary` looks for this destination.
            let into = if round % 2 == 0 {
                dir.path().join("tree")
            } else {
                into
            };
            if unpack_plain(&nar, &into).is_ok() {
                fs::remove_dir_all(&into).ok();
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert!(
        names(outside.path()).is_empty(),
        "{:?}",
        names(outside.path())
    );
}

#[test]
fn entries_that_exist_already_are_not_overwritten() {
    let dir = tempdir();
    let nar = Node::dir([("a", Node::file("a")), ("b", Node::file("b"))]).nar();
    let outside = dir.path().join("outside");
    fs::write(&outside, "outside").unwrap();
    let mut source = Interrupted {
        parts: cut(&nar, b"entry"),
        between: Some(Box::new(|| {
            symlink(&outside, temporary(dir.path()).unwrap().join("b")).unwrap();
        })),
    };
    let refused = unpack(&mut source, None, &dir.path().join("tree"), &FAST).unwrap_err();
    assert!(refused.to_string().contains("tree/b"), "{refused}");
    assert_eq!(fs::read_to_string(&outside).unwrap(), "outside");
    assert_eq!(names(dir.path()), [b"outside"]);
}

/// Its shell would remain in the removed directory.
#[test]
fn the_current_directory_is_not_replaced() {
    let dir = tempdir();
    let into = dir.path().join("tree");
    fs::create_dir(&into).unwrap();
    let mut child = start("current directory", dir.path(), |command| {
        command.current_dir(&into);
    });
    assert!(child.wait().unwrap().success(), "the child has failed");
    assert_eq!(names(dir.path()), [b"tree"]);
}

#[test]
fn few_descriptors_are_enough() {
    let dir = tempdir();
    let mut child = start("few descriptors", dir.path(), |_| {});
    child
        .stdin
        .take()
        .unwrap()
        .write_all(&tree().nar())
        .unwrap();
    assert!(child.wait().unwrap().success(), "the child has failed");
    assert_attributes(&dir.path().join("tree"), &tree_manifest().entries);
    support::remove(dir.path(), b"tree");
}

/// Root may write to read-only directories, other users may not.
#[test]
fn read_only_directories_are_written_and_removed_without_privileges() {
    let dir = tempdir();
    let nobody = 65_534;
    if chown(dir.path(), Some(nobody), Some(nobody)).is_err() {
        eprintln!("SKIPPED: the user cannot be changed here");
        return;
    }
    let program = std::env::current_exe().unwrap();
    let mut probe = Command::new(&program);
    probe
        .arg("--list")
        .uid(nobody)
        .gid(nobody)
        .stdout(Stdio::null());
    if !probe.status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: another user cannot run {program:?}");
        return;
    }
    let mut child = start("unprivileged", dir.path(), |command| {
        command.uid(nobody).gid(nobody);
    });
    child
        .stdin
        .take()
        .unwrap()
        .write_all(&tree().nar())
        .unwrap();
    assert!(child.wait().unwrap().success(), "the child has failed");
    assert!(names(dir.path()).is_empty(), "{:?}", names(dir.path()));
}

/// A small tmpfs.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(options: &std::ffi::CStr) -> Option<Self> {
        let dir = tempdir();
        match mount("none", dir.path(), "tmpfs", MountFlags::empty(), options) {
            Ok(()) => Some(Self(dir)),
            Err(error) => {
                eprintln!("SKIPPED: no file system can be mounted here: {error}");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        unmount(self.0.path(), UnmountFlags::DETACH).ok();
    }
}

/// Also a bind mount, which belongs to the same file system as its parent.
#[test]
fn a_mount_point_is_refused() {
    let Some(disk) = SmallDisk::new(c"size=1m") else {
        return;
    };
    let nar = tree().nar();
    let refused = unpack_plain(&nar, disk.0.path());
    assert!(
        matches!(refused, Err(UnpackError::MountPoint { .. })),
        "{refused:?}"
    );
    let (from, into) = (disk.0.path().join("from"), disk.0.path().join("into"));
    fs::create_dir(&from).unwrap();
    fs::create_dir(&into).unwrap();
    mount_bind(&from, &into).unwrap();
    let refused = unpack_plain(&Node::dir([("a", Node::file("a"))]).nar(), &into);
    unmount(&into, UnmountFlags::DETACH).unwrap();
    assert!(
        matches!(refused, Err(UnpackError::MountPoint { .. })),
        "{refused:?}"
    );
    assert_eq!(names(disk.0.path()), [&b"from"[..], b"into"]);
}

fn assert_disk_full(options: &std::ffi::CStr, tree: &Node, fits: &Node) {
    let Some(disk) = SmallDisk::new(options) else {
        return;
    };
    let dir = disk.0.path();
    let into = dir.join("tree");
    let failed = unpack_plain(&tree.nar(), &into).unwrap_err();
    let UnpackError::File { path, source, .. } = &failed else {
        unreachable!("{failed:?}");
    };
    assert_eq!(source.kind(), io::ErrorKind::StorageFull, "{failed:?}");
    assert!(path.starts_with(&into) && *path != into, "{failed}");
    assert!(names(dir).is_empty(), "{:?}", names(dir));
    unpack_plain(&fits.nar(), &into).unwrap();
}

#[test]
fn a_full_disk_is_an_error_that_names_the_file() {
    let files = |count: usize| {
        Node::dir((0..count).map(|file| (format!("file-{file:03}"), Node::file(vec![1; 50_000]))))
    };
    assert_disk_full(c"size=1m", &files(40), &files(10));
    let large = Node::dir([("large", Node::file(vec![1; 3 << 20]))]);
    assert_disk_full(c"size=1m", &large, &files(10));
}

#[test]
fn a_lack_of_inodes_is_an_error_that_names_the_file() {
    let files = |count: usize| {
        Node::dir((0..count).map(|file| (format!("file-{file:03}"), Node::file(""))))
    };
    assert_disk_full(c"nr_inodes=100", &files(500), &files(50));
    let directories = (0..500).map(|number| (format!("{number:03}"), Node::dir::<&str>([])));
    assert_disk_full(c"nr_inodes=100", &Node::dir(directories), &files(50));
}

#[test]
fn a_directory_may_have_100_000_entries() {
    let dir = tempdir();
    let into = dir.path().join("tree");
    let entries = (0..100_000).map(|number| (format!("{number:05}"), Node::file("")));
    let unpacked = unpack_plain(&Node::dir(entries).nar(), &into).unwrap();
    assert_eq!(unpacked.file_count, 100_000);
    assert_eq!(fs::read_dir(&into).unwrap().count(), 100_000);
    support::remove(dir.path(), b"tree");
}

/// A directory of another host remains, and so do those that only look like left-overs.
#[test]
fn only_left_overs_are_removed() {
    let dir = tempdir();
    let nar = tree().nar();
    let mut source = Interrupted {
        parts: cut(&nar, b"package-30"),
        between: Some(Box::new(|| {
            let name = temporary(dir.path()).unwrap();
            let name = name.file_name().unwrap().as_bytes().to_vec();
            // The last eight digits are a random number, and those before it name the host.
            let random = name.len() - 8;
            let mut leftover = name.clone();
            leftover[random..].copy_from_slice(b"00000000");
            let mut other_host = name.clone();
            other_host[random - 8..].copy_from_slice(b"0000000000000000");
            let mut file = name.clone();
            file[random..].copy_from_slice(b"00000001");
            fs::write(dir.path().join(OsStr::from_bytes(&file)), "").unwrap();
            for name in [
                &leftover[..],
                &other_host,
                &leftover[1..],
                &leftover[..random],
            ] {
                let path = dir.path().join(OsStr::from_bytes(name));
                fs::create_dir_all(path.join("d")).unwrap();
                let mode = fs::Permissions::from_mode(0o555);
                fs::set_permissions(path, mode).unwrap();
            }
        })),
    };
    unpack(&mut source, None, &dir.path().join("tree"), &FAST).unwrap();
    assert_eq!(names(dir.path()).len(), 6);
    unpack_plain(&nar, &dir.path().join("other")).unwrap();
    assert_eq!(names(dir.path()).len(), 6, "one is removed, one is new");
}
