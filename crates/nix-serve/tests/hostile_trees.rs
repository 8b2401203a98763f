//! If a store path, or a file in one, is replaced in any way, a client gets the registered contents
//! or a visible failure. Nothing outside of the store is read, and other requests are not delayed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_hostile;
mod support_process;

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use support::{hash_part, local, output};
use support_hostile::{CANARY, Hostile, canary, fetch, fetch_settled, holds_canary, may};
use support_process::{Process, PublicBinary, is_root, make_public, once, public_store, set_mode};
use testkit::limit;
use testkit::sqlite::run as sqlite;

/// A replacement, with its name. The function creates it at the given path, where nothing exists
/// any more, and returns `false` if this machine cannot create it.
type Put = (&'static str, fn(&Path, &Path) -> bool);

fn mknod(at: &Path, words: &[&str]) -> bool {
    may(Command::new("mknod").arg(at).args(words))
}

const KINDS: &[Put] = &[
    ("nothing", |_, _| true),
    ("fifo", |at, _| mknod(at, &["p"])),
    ("socket", |at, _| UnixListener::bind(at).is_ok()),
    ("endless device", |at, _| mknod(at, &["c", "1", "5"])),
    ("blocking device", |at, _| mknod(at, &["c", "5", "2"])),
    ("device without driver", |at, _| {
        mknod(at, &["b", "240", "7"])
    }),
    ("link to a file", |at, elsewhere| {
        symlink(elsewhere.join("file"), at).is_ok()
    }),
    ("link to a directory", |at, elsewhere| {
        symlink(elsewhere, at).is_ok()
    }),
    ("relative link", |at, _| {
        symlink("../../../elsewhere/file", at).is_ok()
    }),
    ("dangling link", |at, _| symlink("/nonexistent", at).is_ok()),
    ("link to itself", |at, _| symlink(at, at).is_ok()),
    ("link to a process's file", |at, _| {
        symlink("/proc/self/environ", at).is_ok()
    }),
    ("longest link", |at, _| {
        symlink("x".repeat(4095), at).is_ok()
    }),
    ("empty file", |at, _| fs::write(at, "").is_ok()),
    ("shorter file", |at, _| {
        fs::write(at, vec![b'x'; 50_000]).is_ok()
    }),
    ("longer file", |at, _| {
        fs::write(at, vec![b'x'; 1_000_000]).is_ok()
    }),
    ("file without end", |at, _| {
        fs::File::create(at)
            .and_then(|file| file.set_len(1 << 40))
            .is_ok()
    }),
    ("empty directory", |at, _| fs::create_dir(at).is_ok()),
    ("another directory", |at, _| {
        fs::create_dir(at)
            .and_then(|()| fs::write(at.join("x"), vec![b'y'; 40_000]))
            .is_ok()
    }),
];

fn remove(at: &Path) {
    output(Command::new("rm").arg("-rf").arg(at));
}

/// Requests a path's files in every possible way.
#[track_caller]
fn ask_for_all(hostile: &Hostile, path: &str, nar: &[u8], what: &str) {
    let hash = hash_part(path);
    let url = format!("/nar/{hash}.nar");
    let half = nar.len() / 2;
    let range = fetch(
        hostile.addr,
        "GET",
        &url,
        &format!("Range: bytes={half}-\r\n"),
    );
    let whole = fetch(hostile.addr, "GET", &url, "");
    let listing = fetch(hostile.addr, "GET", &format!("/{hash}.ls"), "");
    let head = fetch(hostile.addr, "HEAD", &url, "");
    for outcome in [&whole, &range, &listing, &head] {
        assert!(
            matches!(outcome.status, 200 | 206 | 404 | 503 | 0),
            "{what}: {}",
            outcome.status
        );
        let is_known = nar.starts_with(&outcome.body) || nar[half..].starts_with(&outcome.body);
        assert!(is_known || !holds_canary(&outcome.body), "{what}");
    }
    if whole.status == 200 && whole.is_complete {
        assert!(whole.body == nar, "{what}");
    }
    if range.status == 206 && range.is_complete {
        assert!(range.body == nar[half..], "{what}");
    }
    // The narinfo comes from the database, so it is served until the files are found damaged.
    let narinfo = fetch(hostile.addr, "GET", &format!("/{hash}.narinfo"), "");
    assert!(matches!(narinfo.status, 200 | 404 | 503), "{what}");
}

/// Puts each replacement at one place in a path, before and after the path was served correctly.
/// Only trees of a mebibyte or more get a plan; smaller ones are walked each time.
#[track_caller]
fn everything_at(file_len: usize, place: &str) {
    let (hostile, (path, elsewhere)) = Hostile::with(&["--nar-cache-size", "0"], |store| {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("m")).unwrap();
        for name in ["a", "m/file", "z"] {
            fs::write(tree.join(name), vec![b'x'; file_len]).unwrap();
        }
        (store.add(&tree), canary(store, file_len).0)
    });
    let (store, real) = (&hostile.store, hostile.store.real(&path));
    let nar = store.dump(&real);
    let kept = store.root().join("kept");
    let at = real
        .join(place)
        .components()
        .collect::<std::path::PathBuf>();
    for after_success in [false, true] {
        for (what, put) in KINDS {
            if after_success {
                let hash = hash_part(&path);
                let good = fetch_settled(hostile.addr, &format!("/nar/{hash}.nar"));
                assert!(good.is_complete && good.body == nar, "before {what}");
                // From here on the server has a plan of the tree, so it reads no directory.
                let listing = fetch(hostile.addr, "GET", &format!("/{hash}.ls"), "");
                assert!(
                    listing.status == 200 && listing.is_complete,
                    "before {what}"
                );
            }
            fs::rename(&at, &kept).unwrap();
            if put(&at, &elsewhere) {
                ask_for_all(&hostile, &path, &nar, what);
            }
            remove(&at);
            fs::rename(&kept, &at).unwrap();
        }
    }
    let good = fetch_settled(hostile.addr, &format!("/nar/{}.nar", hash_part(&path)));
    assert!(good.status == 200 && good.is_complete && good.body == nar);
    let (lines, used) = hostile.end();
    let path_lines = lines
        .iter()
        .filter(|line| line.contains(hash_part(&path)))
        .count();
    assert!(path_lines > 0, "{lines:#?}");
    assert!(lines.len() < 100, "{} lines", lines.len());
    limit::memory_at_most("memory of the server", used.memory_len, 64 << 20);
}

#[test]
fn a_replaced_path_is_never_served_with_other_contents() {
    everything_at(70_000, "");
}

#[test]
fn a_replaced_small_path_is_never_served_with_other_contents() {
    everything_at(2000, "");
}

#[test]
fn a_path_with_a_replaced_directory_is_never_served_with_other_contents() {
    everything_at(400_000, "m");
}

#[test]
fn a_path_with_a_replaced_file_is_never_served_with_other_contents() {
    everything_at(400_000, "m/file");
}

/// A symbolic link that leads out of the store is served as its target text, and never followed.
#[test]
fn links_that_lead_out_of_the_store_are_not_followed() {
    let (hostile, paths) = Hostile::new(|store| {
        let (elsewhere, file) = canary(store, 50_000);
        let targets = [
            file,
            elsewhere,
            "/etc/passwd".into(),
            "/".into(),
            "..".into(),
            "/proc/self/fd/0".into(),
        ];
        let mut paths = Vec::new();
        for (number, target) in targets.iter().enumerate() {
            let path = format!("/nix/store/{}{number}-link", "0".repeat(31));
            symlink(target, store.real(&path)).unwrap();
            store.register(&path);
            paths.push(path);
            let path = format!("/nix/store/{}{number}-tree", "1".repeat(31));
            fs::create_dir(store.real(&path)).unwrap();
            for name in ["a", "b"] {
                symlink(target, store.real(&path).join(name)).unwrap();
            }
            store.register(&path);
            paths.push(path);
        }
        paths
    });
    for path in &paths {
        let reply = once(hostile.addr, &format!("/nar/{}.nar", hash_part(path)));
        assert!(reply.status == 200 && reply.body == hostile.store.dump(&hostile.store.real(path)));
        assert!(!holds_canary(&reply.body), "{path}");
        let listing = once(hostile.addr, &format!("/{}.ls", hash_part(path)));
        assert!(listing.status == 200 && listing.text().contains("\"symlink\""));
    }
    hostile.end();
}

/// Mode bits that a NAR cannot hold, and hard links, do not affect the NAR.
#[test]
fn modes_and_hard_links_do_not_change_a_nar() {
    let (hostile, path) = Hostile::new(|store| {
        let path = format!("/nix/store/{}-modes", "2".repeat(32));
        let real = store.real(&path);
        fs::create_dir(&real).unwrap();
        for mode in [0o4755, 0o2711, 0o6100, 0o1777, 0o4000, 0o0, 0o222, 0o7677] {
            let file = real.join(format!("{mode:o}"));
            fs::write(&file, format!("{mode:o}")).unwrap();
            fs::hard_link(&file, real.join(format!("{mode:o}-again"))).unwrap();
            set_mode(&file, mode);
        }
        fs::create_dir(real.join("sticky")).unwrap();
        set_mode(&real.join("sticky"), 0o7700);
        if is_root() {
            store.register(&path);
        }
        path
    });
    if is_root() {
        let reply = once(hostile.addr, &format!("/nar/{}.nar", hash_part(&path)));
        assert!(
            reply.status == 200 && reply.body == hostile.store.dump(&hostile.store.real(&path))
        );
    }
    hostile.end();
}

/// An unprivileged server refuses a tree that only its owner may read, without calling it damaged.
#[test]
fn unreadable_files_fail_visibly() {
    if !is_root() {
        return;
    }
    let store = public_store();
    let path = store.add_file("file", &vec![b'x'; 70_000]);
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("m")).unwrap();
    fs::write(tree.join("m/file"), vec![b'x'; 70_000]).unwrap();
    let tree = store.add(&tree);
    // In WAL mode the database would need files that an unprivileged server cannot create.
    sqlite(&store.database(), "pragma journal_mode = delete");
    make_public(store.root());
    let binary = PublicBinary::new();
    let mut command = binary.as_nobody();
    command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
    let (server, addr) = Process::serving(&mut command);
    for (path, place, mode) in [
        (&path, "", 0o444),
        (&tree, "", 0o555),
        (&tree, "m", 0o555),
        (&tree, "m/file", 0o444),
    ] {
        let at = store
            .real(path)
            .join(place)
            .components()
            .collect::<std::path::PathBuf>();
        set_mode(&at, 0);
        let outcome = fetch(addr, "GET", &format!("/nar/{}.nar", hash_part(path)), "");
        assert!(
            outcome.status == 503 || !outcome.is_complete,
            "{place}: {outcome:?}"
        );
        set_mode(&at, mode);
        let outcome = fetch(addr, "GET", &format!("/nar/{}.nar", hash_part(path)), "");
        assert!(outcome.status == 200 && outcome.is_complete, "{place}");
    }
    server.wait_for("cannot be served");
    // Missing permissions are not damage that the operator should repair.
    assert_eq!(server.count("--repair"), 0);
}

/// Files of a file system that is mounted inside a path are served if their contents are right.
#[test]
fn a_mount_point_is_served_only_with_the_registered_contents() {
    let (hostile, path) = Hostile::new(|store| {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("m")).unwrap();
        fs::write(tree.join("m/file"), vec![b'x'; 70_000]).unwrap();
        store.add(&tree)
    });
    let real = hostile.store.real(&path);
    let nar = hostile.store.dump(&real);
    let url = format!("/nar/{}.nar", hash_part(&path));
    let (elsewhere, _) = canary(&hostile.store, 70_000);
    let copy = hostile.store.root().join("copy");
    output(Command::new("cp").arg("-a").arg(real.join("m")).arg(&copy));
    let at = real.join("m");
    let mounts: [(&[&str], &Path, bool); 4] = [
        (&["-t", "tmpfs"], Path::new("none"), false),
        (&["-t", "proc"], Path::new("none"), false),
        (&["--bind"], &elsewhere, false),
        (&["--bind", "-o", "ro"], &copy, true),
    ];
    for (words, source, is_same) in mounts {
        if may(Command::new("mount").args(words).arg(source).arg(&at)) {
            let outcome = fetch_settled(hostile.addr, &url);
            output(Command::new("umount").arg(&at));
            assert_eq!(
                outcome.status == 200 && outcome.is_complete,
                is_same,
                "{source:?}"
            );
            assert!(!is_same || outcome.body == nar);
        }
    }
    hostile.end();
}

/// A log must be a regular file in the log directory: a symbolic link out of it is not followed.
#[test]
fn only_regular_files_are_served_as_logs() {
    let (hostile, names) = Hostile::new(|store| {
        let (elsewhere, _) = canary(store, 50_000);
        let drvs = store.root().join("nix/var/log/nix/drvs");
        fs::create_dir_all(drvs.join("00")).unwrap();
        let mut names = Vec::new();
        for (number, (what, put)) in KINDS.iter().enumerate().take(13) {
            for suffix in ["", ".bz2"] {
                let name = format!("{}-{number}.drv", "0".repeat(32));
                remove(&drvs.join("00").join(format!("{}{suffix}", &name[2..])));
                if put(
                    &drvs.join("00").join(format!("{}{suffix}", &name[2..])),
                    &elsewhere,
                ) {
                    names.push((name, *what));
                }
            }
            // In very old stores, logs have this layout.
            let name = format!("{}-{number}.drv", "1".repeat(32));
            if put(&drvs.join(&name), &elsewhere) {
                names.push((name, *what));
            }
        }
        // The log directory itself may be a link: operators put logs on another disk.
        fs::create_dir(store.root().join("logs")).unwrap();
        fs::write(
            store
                .root()
                .join(format!("logs/{}-good.drv", "2".repeat(30))),
            "good\n",
        )
        .unwrap();
        symlink(store.root().join("logs"), drvs.join("22")).unwrap();
        names
    });
    for (name, what) in names {
        for field in ["", "Accept-Encoding: bzip2\r\n"] {
            let outcome = fetch(hostile.addr, "GET", &format!("/log/{name}"), field);
            assert_eq!((outcome.status, outcome.is_complete), (404, true), "{what}");
            assert!(!String::from_utf8(outcome.body).unwrap().contains(CANARY));
        }
    }
    let good = once(hostile.addr, &format!("/log/{}-good.drv", "2".repeat(32)));
    assert_eq!(good.text(), "good\n");
    hostile.end();
}
