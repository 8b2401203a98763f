//! A server in a control group whose memory limit is slightly above the sum of its budgets is never
//! killed for lack of memory, under any load. `CROWD=1` quadruples the idle clients, slow readers
//! and bulk queries.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/burden.rs"]
mod burden;
#[path = "support/limited_memory.rs"]
mod limited_memory;
mod support;

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use burden::{ask, connect, percentile_99, raise_descriptors, slow_readers};
use limited_memory::LimitedMemory;
use support::{OwnStore, ServerProcess, hash_part, local};
use testkit::http1::Connection;
use testkit::limit;

const MIB: u64 = 1 << 20;
/// Memory limit, slightly above the sum of all budgets: see `docs/book/limits.md`.
const LIMIT_LEN: u64 = 512 * MIB;
const ASKED: usize = 500;

/// A store with paths of each kind whose download takes memory.
struct Scene {
    store: OwnStore,
    long: String,
    wide: String,
    trees: Vec<String>,
}

impl Scene {
    fn new() -> Self {
        let store = OwnStore::new();
        let long = store.add_file("long", &vec![b'x'; 32 << 20]);
        let wide = format!("/nix/store/{}-wide", "0".repeat(32));
        fill(&store.real(&wide), 10_000, 250);
        store.register(&wide);
        let trees = (0..3).map(|number| tree(&store, &format!("tree{number}")));
        let trees = trees.collect();
        Self {
            store,
            long,
            wide,
            trees,
        }
    }
}

/// Fills a directory with hard links that have long names.
fn fill(directory: &Path, count: usize, name_len: usize) {
    fs::create_dir_all(directory).unwrap();
    let first = directory.join("0");
    fs::write(&first, "").unwrap();
    for number in 0..count {
        fs::hard_link(&first, directory.join(format!("{number:0name_len$}"))).unwrap();
    }
}

fn tree(store: &OwnStore, name: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join(name);
    fs::create_dir(&dir).unwrap();
    for number in 0..500 {
        fs::write(dir.join(format!("{number}")), [b'x'; 12_000]).unwrap();
    }
    store.add(&dir)
}

fn nar(path: &str) -> String {
    format!("/nar/{}.nar", hash_part(path))
}

/// Requests a narinfo many times on one connection. Returns the 99th percentile of the response
/// times.
#[track_caller]
fn good_client(addr: SocketAddr, path: &str) -> Duration {
    let mut connection = Connection::connect(addr);
    let url = format!("/{}.narinfo", hash_part(path));
    let times = (0..ASKED).map(|_| {
        let start = Instant::now();
        assert_eq!(connection.get(&url).status, 200);
        start.elapsed()
    });
    percentile_99(times.collect())
}

#[test]
fn everything_at_once_in_little_memory() {
    let part = match std::env::var_os("CROWD") {
        Some(_) => 1,
        None => 4,
    };
    raise_descriptors();
    let Some(group) = LimitedMemory::new(LIMIT_LEN) else {
        return;
    };
    let scene = Scene::new();
    // Use a directory on a disk: in tmpfs the NAR cache would count as memory that cannot be
    // reclaimed.
    let kept = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut command = group.nix_serve();
    command.args(["--store", &local(scene.store.root()), "--nar-cache"]);
    let mut server = ServerProcess::start(command.arg(kept.path()));
    let addr = server.addr;
    let alone = good_client(addr, &scene.long);

    let resting: Vec<TcpStream> = (0..2000 / part).map(|_| connect(addr)).collect();
    let mut slow = slow_readers(addr, 400 / part, &nar(&scene.long));
    for url in [nar(&scene.wide), format!("/{}.ls", hash_part(&scene.wide))] {
        slow.extend(slow_readers(addr, 24, &url));
    }
    for path in &scene.trees {
        slow.extend(slow_readers(addr, 10, &nar(path)));
    }
    // Send more bulk queries than the server has capacity for.
    let list = format!("{}\n", hash_part(&scene.long)).repeat(100_000);
    let lists: Vec<TcpStream> = (0..96 / part)
        .map(|_| {
            let mut stream = connect(addr);
            ask(&mut stream, "POST", "/narinfos", list.as_bytes());
            stream
        })
        .collect();
    let beside = good_client(addr, &scene.long);
    let held = group.anonymous_len();
    // A client that reads its responses gets them completely.
    for path in [&scene.trees[0], &scene.long, &scene.wide] {
        let answer = server.get(&nar(path));
        assert!(answer.status == 200 && answer.is_complete, "{path}");
    }
    println!(
        "a limit of {} MiB: {} MiB taken for good, {} with the page cache; p99 {alone:?} alone, \
         {beside:?} beside them",
        LIMIT_LEN / MIB,
        held / MIB,
        group.peak_len() / MIB,
    );
    assert_eq!(group.killed_count(), 0, "killed for want of memory");
    assert!(server.is_alive());
    limit::memory_at_most("memory of the server", held, LIMIT_LEN * 3 / 4);
    drop((resting, slow, lists));
    assert!(server.get(&nar(&scene.trees[1])).is_complete);
    assert_eq!(group.killed_count(), 0);
    drop(server);
}
