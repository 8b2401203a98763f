//! While an attacker keeps changing the files of a store, every complete NAR equals the registered
//! one, nothing outside of the store is sent, and no request hangs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "says how often what happened")]

mod support;
mod support_hostile;
mod support_process;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::{hash_part, output};
use support_hostile::{Hostile, canary, fetch, fetch_settled, holds_canary, may};

/// Length of a file, bytes. Makes the trees larger than a mebibyte: smaller ones get no plan.
const FILE_LEN: usize = 12_000;

/// Minimum duration of each attack.
const TIME: Duration = Duration::from_millis(1200);

/// Counts responses by outcome.
#[derive(Debug, Default)]
struct Tally {
    whole: AtomicUsize,
    refused: AtomicUsize,
    broken: AtomicUsize,
}

impl Tally {
    fn add(count: &AtomicUsize) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A replacement of a file or directory in the tree.
struct Harm<'a> {
    what: &'a str,
    /// Path in the tree; empty for the root.
    place: &'a str,
    /// Creates the replacement at the first path; the second is a directory outside of the store.
    /// Returns `false` if this machine cannot create it.
    make: &'a dyn Fn(&Path, &Path) -> bool,
}

fn mknod(at: &Path, words: &[&str]) -> bool {
    may(Command::new("mknod").arg(at).args(words))
}

/// Sends requests of all kinds until `is_over`.
fn ask(hostile: &Hostile, hash: &str, nar: &[u8], tally: &Tally, is_over: &AtomicBool) {
    let url = format!("/nar/{hash}.nar");
    let half = nar.len() / 2;
    let range = format!("Range: bytes={half}-\r\n");
    while !is_over.load(Ordering::Acquire) {
        for (url, field, due) in [
            (&url, "", Some(nar)),
            (&url, &*range, Some(&nar[half..])),
            (&format!("/{hash}.ls"), "", None),
        ] {
            let outcome = fetch(hostile.addr, "GET", url, field);
            let is_known = due.is_some_and(|due| due.starts_with(&outcome.body));
            assert!(is_known || !holds_canary(&outcome.body), "{url} {field}");
            match (outcome.status, outcome.is_complete) {
                (200 | 206, true) => {
                    assert!(due.is_none_or(|due| outcome.body == due), "{url} {field}");
                    Tally::add(&tally.whole);
                }
                (404 | 503, true) => Tally::add(&tally.refused),
                (200 | 206 | 0, false) => Tally::add(&tally.broken),
                other => unreachable!("{other:?}"),
            }
        }
    }
}

/// Repeats the attack for a while under load by clients, then restores the tree.
fn while_harmed(hostile: &Hostile, path: &str, nar: &[u8], once: &(dyn Fn() + Sync)) -> usize {
    let (is_over, tally) = (AtomicBool::new(false), Tally::default());
    let mut count = 0;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // If a client fails, end the test at once.
                let over = OnDrop(&is_over);
                ask(hostile, hash_part(path), nar, &tally, &is_over);
                drop(over);
            });
        }
        let start = Instant::now();
        let is_hit = || {
            [&tally.broken, &tally.refused]
                .iter()
                .any(|count| is_some(count))
        };
        // Continue until enough has happened, which takes longer on a busy machine. Not every
        // change can be hit.
        let is_enough = |count| {
            count >= 5 && start.elapsed() >= TIME && (is_hit() || start.elapsed() >= 8 * TIME)
        };
        while !is_enough(count) && !is_over.load(Ordering::Acquire) {
            once();
            count += 1;
        }
        is_over.store(true, Ordering::Release);
    });
    println!("{count} times, {tally:?}");
    let whole = fetch_settled(hostile.addr, &format!("/nar/{}.nar", hash_part(path)));
    assert!(whole.status == 200 && whole.is_complete && whole.body == nar);
    tally.broken.into_inner() + tally.refused.into_inner()
}

fn is_some(count: &AtomicUsize) -> bool {
    count.load(Ordering::Relaxed) > 0
}

struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Creates a store with a tree that takes a while to send and is read from its files each time.
fn of_tree() -> (Hostile, String) {
    let (hostile, path) = Hostile::with(&["--nar-cache-size", "0"], |store| {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        for number in 0..30 {
            let folder = tree.join(format!("d{number:02}"));
            fs::create_dir_all(&folder).unwrap();
            for name in ["a", "file", "z"] {
                fs::write(folder.join(name), vec![b'x'; FILE_LEN]).unwrap();
            }
        }
        store.add(&tree)
    });
    (hostile, path)
}

/// Attacks by swapping each target with its replacement, again and again.
#[track_caller]
fn swapped(harms: &[Harm<'_>]) {
    let (hostile, path) = of_tree();
    let real = hostile.store.real(&path);
    let nar = hostile.store.dump(&real);
    let (elsewhere, _) = canary(&hostile.store, FILE_LEN);
    // The whole tree, with other contents.
    output(
        Command::new("cp")
            .arg("-a")
            .arg(&real)
            .arg(elsewhere.join("tree")),
    );
    for number in 0..30 {
        let folder = elsewhere.join(format!("tree/d{number:02}"));
        output(Command::new("cp").arg(elsewhere.join("file")).arg(folder));
    }
    let mut harmed = 0;
    for harm in harms {
        let at: std::path::PathBuf = real.join(harm.place).components().collect();
        let (away, other) = (
            hostile.store.root().join("away"),
            hostile.store.root().join("other"),
        );
        if !(harm.make)(&other, &elsewhere) {
            continue;
        }
        println!("{}", harm.what);
        harmed += while_harmed(&hostile, &path, &nar, &|| {
            fs::rename(&at, &away).unwrap();
            fs::rename(&other, &at).unwrap();
            std::thread::yield_now();
            fs::rename(&at, &other).unwrap();
            fs::rename(&away, &at).unwrap();
            std::thread::sleep(Duration::from_micros(300));
        });
        output(Command::new("rm").arg("-rf").arg(&other));
    }
    assert!(harmed > 0, "nothing was hit");
    let (lines, _) = hostile.end();
    assert!(lines.len() < 200, "{} lines", lines.len());
}

#[test]
fn links_that_appear_and_vanish() {
    swapped(&[
        Harm {
            what: "a directory and a link to another one with the same names",
            place: "d15",
            make: &|at, elsewhere| symlink(elsewhere, at).is_ok(),
        },
        Harm {
            what: "a file and a link to another one of the same size",
            place: "d15/file",
            make: &|at, elsewhere| symlink(elsewhere.join("file"), at).is_ok(),
        },
        Harm {
            what: "the path and a link to a tree of the same form",
            place: "",
            make: &|at, elsewhere| symlink(elsewhere.join("tree"), at).is_ok(),
        },
    ]);
}

#[test]
fn files_of_all_kinds_that_appear_and_vanish() {
    swapped(&[
        Harm {
            what: "a file and a pipe",
            place: "d15/file",
            make: &|at, _| mknod(at, &["p"]),
        },
        Harm {
            what: "a file and a device without an end",
            place: "d15/file",
            make: &|at, _| mknod(at, &["c", "1", "5"]),
        },
        Harm {
            what: "a directory and a file",
            place: "d15",
            make: &|at, _| fs::write(at, vec![b'x'; FILE_LEN]).is_ok(),
        },
        Harm {
            what: "a path and nothing but a directory",
            place: "",
            make: &|at, _| fs::create_dir(at).is_ok(),
        },
    ]);
}

#[test]
fn files_that_grow_and_shrink_and_others_beside_them() {
    let (hostile, path) = of_tree();
    let real = hostile.store.real(&path);
    let nar = hostile.store.dump(&real);
    let (file, other) = (real.join("d15/file"), hostile.store.root().join("other"));
    let harmed = while_harmed(&hostile, &path, &nar, &|| {
        let changed = fs::File::options().write(true).open(&file).unwrap();
        for len in [10, 1 << 30, 100] {
            changed.set_len(len).unwrap();
        }
        // The file never has the right length and wrong contents at the same time.
        fs::write(&other, vec![b'x'; FILE_LEN]).unwrap();
        // Remove the file first: some file systems wait for the disk when a file is renamed over
        // another.
        fs::remove_file(&file).unwrap();
        fs::rename(&other, &file).unwrap();
    });
    assert!(harmed > 0, "nothing was hit");
    // This attack changes the order of directory entries, and may make the kernel return one twice.
    while_harmed(&hostile, &path, &nar, &|| {
        let names: Vec<_> = (0..50)
            .map(|number| real.join(format!("d15/new{number}")))
            .collect();
        names.iter().for_each(|name| fs::write(name, "").unwrap());
        names.iter().for_each(|name| fs::remove_file(name).unwrap());
        std::thread::sleep(Duration::from_millis(1));
    });
    hostile.end();
}
