//! A pushed generation is the state of the whole tree at one moment, or it is not published: also
//! while programs rename, swap, link and replace files.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;
mod support_workspaces;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use support_workspaces::{Home, assert_has, read, tree, write};
use testkit::process::{Process, finish};

/// Longest pause of the writer, in milliseconds: a push has enough time on any machine.
const PAUSE_MAX: u64 = 20_000;

/// Number of files that are renamed.
const MOVED_COUNT: u64 = 8;

/// Returns the number of pushes. The environment variable `SAMOVAR_PUSHES` can raise it.
fn push_count() -> u32 {
    let number = std::env::var("SAMOVAR_PUSHES").ok();
    number.map_or(12, |text| text.parse().expect("a number"))
}

/// Makes one change of each kind. At each moment, the tree is as [`check`] demands.
fn change(one: &Path, round: u64) {
    let at = |directory: u64, name: &str| one.join(format!("d{}/{name}", directory % 4));
    for number in 0..MOVED_COUNT {
        let name = format!("moved{number}");
        fs::rename(at(round + number, &name), at(round + number + 1, &name)).unwrap();
    }
    let swap = |a: &Path, b: &Path| renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
    swap(&one.join("d0/swapped"), &one.join("d3/swapped"));
    swap(&one.join("a/tree"), &one.join("z/tree"));
    fs::hard_link(at(round, "linked"), at(round + 1, "linked")).unwrap();
    fs::remove_file(at(round, "linked")).unwrap();
    for name in ["d3/first", "d0/second"] {
        fs::write(one.join("d1/new"), format!("{:08}", round + 1)).unwrap();
        fs::rename(one.join("d1/new"), one.join(name)).unwrap();
    }
}

/// Asserts that a tree was there at one moment.
fn check(found: &Path) {
    let entries = tree(found);
    let in_all = |name: &str| {
        let paths = (0..4).map(|number| format!("d{number}/{name}"));
        let contents = paths.filter_map(|path| entries.get(path.as_bytes()));
        contents.collect::<Vec<_>>()
    };
    for number in 0..MOVED_COUNT {
        assert_eq!(in_all(&format!("moved{number}")).len(), 1, "{number}");
    }
    let swapped = ["d0/swapped", "d3/swapped"].map(|path| read(found, path));
    assert!(swapped[0] != swapped[1], "{swapped:?}");
    let swapped = ["a/tree/name", "z/tree/name"].map(|path| read(found, path));
    assert!(swapped[0] != swapped[1], "{swapped:?}");
    assert!(matches!(in_all("linked").len(), 1 | 2));
    let [first, second] =
        ["d3/first", "d0/second"].map(|path| read(found, path).parse::<u64>().unwrap());
    assert!(first == second || first == second + 1, "{first} {second}");
}

fn fill(one: &Path) {
    for number in 0..MOVED_COUNT {
        write(one, &format!("d{}/moved{number}", number % 4), "moved");
    }
    for name in ["d0/swapped", "d3/swapped", "a/tree/name", "z/tree/name"] {
        write(one, name, name);
    }
    write(one, "d0/linked", "linked");
    for name in ["d3/first", "d0/second"] {
        write(one, name, "00000000");
    }
    // Scanning takes some time.
    for number in 0..400 {
        write(one, &format!("m{}/f{number}", number % 20), "quiet");
    }
}

/// Changes the tree until the sender is dropped, with pauses of `pause` milliseconds.
fn change_until_end(one: &Path, pause: &AtomicU64, end: &Receiver<()>) {
    for round in 0.. {
        change(one, round);
        let pause = Duration::from_millis(pause.load(Ordering::Relaxed));
        if end.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

#[test]
fn a_generation_is_the_state_of_the_tree_at_one_moment() {
    let home = Home::new();
    let one = home.open("app", "one");
    fill(&one);
    home.push(&one);
    let two = home.open("app", "two");
    let pause = AtomicU64::new(8);
    let (sender, end) = channel();
    let (mut published, mut refused) = (0, 0);
    let started_at = Instant::now();
    thread::scope(|scope| {
        // Dropped before the thread is joined, also if an assertion fails.
        let _end = sender;
        let (tree, pause) = (&one, &pause);
        scope.spawn(move || change_until_end(tree, pause, &end));
        while published < push_count() {
            let pushed = finish(&mut home.command_in(&one, &["push"]));
            let text = String::from_utf8_lossy(&pushed.stderr).into_owned();
            let now = pause.load(Ordering::Relaxed);
            match pushed.status.code() {
                Some(0) => {
                    published += 1;
                    home.run(&two, &["pull"]);
                    check(&two);
                    pause.store((now / 2).max(8), Ordering::Relaxed);
                }
                Some(1) => {
                    refused += 1;
                    assert_has(&text, "the tree changes while it is read");
                    assert!(now < PAUSE_MAX, "{text}");
                    pause.store(now * 2, Ordering::Relaxed);
                }
                code => panic!("{code:?}: {text}"),
            }
        }
    });
    println!(
        "{published} pushes published one moment, {refused} were refused, in {:?}",
        started_at.elapsed()
    );
    home.push(&one);
    home.run(&two, &["pull"]);
    assert_eq!(tree(&two), tree(&one));
}

/// Changes while `auto` reads the files only delay its push.
#[test]
fn automatic_pushes_go_on_when_the_tree_is_quiet() {
    let home = Home::new();
    let one = home.open("app", "one");
    fill(&one);
    let (sender, end) = channel();
    let pause = AtomicU64::new(8);
    let mut command = home.command_in(&one, &["auto", "--idle", "10ms"]);
    let mut auto = Process::spawn_for_stdout(&mut command);
    thread::scope(|scope| {
        let end_of_writer = sender;
        let (tree, pause) = (&one, &pause);
        let writer = scope.spawn(move || change_until_end(tree, pause, &end));
        auto.wait_for("after changes");
        drop(end_of_writer);
        writer.join().unwrap();
    });
    auto.wait_for("app@");
    auto.signal("TERM");
    assert_eq!(auto.wait(), Some(0));
    let two = home.open("app", "two");
    assert_eq!(tree(&two), tree(&one));
}
