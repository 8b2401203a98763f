//! The server sends trees of extreme depth, width or length in bounded memory, without delaying
//! other requests.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_hostile;
mod support_process;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use samovar_nix::nar::Encoder;
use sha2::{Digest, Sha256};
use support::{hash_part, output};
use support_hostile::{Hostile, fetch};
use testkit::http1::Connection;
use testkit::limit;

/// Depth in nested directories: twice the number of bytes of `PATH_MAX`.
const DEPTH: usize = 8192;

/// Number of entries in one directory. An environment variable raises it.
const WIDTH: usize = 10_000;
const WIDTH_VARIABLE: &str = "SAMOVAR_TEST_ENTRIES";

const TEBIBYTE: u64 = 1 << 40;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A tree that is removed on drop, although too deep for `fs::remove_dir_all`.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        output(Command::new("rm").arg("-rf").arg(&self.0));
    }
}

fn make_deep(root: &Path) {
    fs::create_dir(root).unwrap();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut directory = rustix::fs::open(root, flags, Mode::empty()).unwrap();
    for _ in 1..DEPTH {
        rustix::fs::mkdirat(&directory, "d", Mode::RWXU).unwrap();
        directory = rustix::fs::openat(&directory, "d", flags, Mode::empty()).unwrap();
    }
    let flags = OFlags::CREATE | OFlags::WRONLY;
    let file = rustix::fs::openat(&directory, "file", flags, Mode::RUSR).unwrap();
    assert_eq!(rustix::io::write(&file, b"deep").unwrap(), 4);
}

fn deep_nar() -> Vec<u8> {
    let (mut encoder, mut nar) = (Encoder::new(), Vec::new());
    encoder.begin(&mut nar).unwrap();
    for level in 1..=DEPTH {
        encoder.begin_directory(&mut nar).unwrap();
        let name: &[u8] = if level == DEPTH { b"file" } else { b"d" };
        encoder.entry(&mut nar, name).unwrap();
    }
    encoder.file(&mut nar, false, 4).unwrap();
    nar.extend_from_slice(b"deep");
    encoder.end_file(&mut nar).unwrap();
    for _ in 0..DEPTH {
        encoder.end_entry(&mut nar).unwrap();
        encoder.end_directory(&mut nar).unwrap();
    }
    encoder.finish().unwrap();
    nar
}

/// A tree can be served although its paths exceed `PATH_MAX`, so that Nix can neither create nor
/// read it.
#[test]
fn a_tree_deeper_than_the_longest_path_is_served() {
    let nar = deep_nar();
    let (hostile, path) = Hostile::with(&["--nar-cache-size", "0"], |store| {
        let path = format!("/nix/store/{}-deep", "3".repeat(32));
        make_deep(&store.real(&path));
        let hash: [u8; 32] = Sha256::digest(&nar).into();
        store.register_row(&path, &hex(&hash), nar.len() as u64);
        path
    });
    let _removed = Removed(hostile.store.real(&path));
    let hash = hash_part(&path);
    for _ in 0..2 {
        let whole = fetch(hostile.addr, "GET", &format!("/nar/{hash}.nar"), "");
        assert!(whole.status == 200 && whole.is_complete && whole.body == nar);
        let half = nar.len() / 2;
        let range = format!("Range: bytes={half}-\r\n");
        let range = fetch(hostile.addr, "GET", &format!("/nar/{hash}.nar"), &range);
        assert!(range.status == 206 && range.body == nar[half..]);
        let listing = fetch(hostile.addr, "GET", &format!("/{hash}.ls"), "");
        assert!(listing.status == 200 && listing.is_complete);
        let text = String::from_utf8(listing.body).unwrap();
        assert_eq!(text.matches("{\"d\":").count(), DEPTH - 1);
    }
    let (_, used) = hostile.end();
    limit::memory_at_most("memory of the server", used.memory_len, 32 << 20);
}

#[test]
fn a_directory_with_very_many_entries_is_served() {
    let width = std::env::var(WIDTH_VARIABLE).map_or(WIDTH, |width| width.parse().unwrap());
    let (hostile, path) = Hostile::with(&["--nar-cache-size", "0"], |store| {
        let path = format!("/nix/store/{}-wide", "4".repeat(32));
        let real = store.real(&path);
        fs::create_dir(&real).unwrap();
        for number in 0..width {
            let name = real.join(number.to_string());
            // Hard links are cheaper to create than files, but a file can have only some 65,000.
            match number % 60_000 {
                0 => fs::write(name, "").unwrap(),
                nth => fs::hard_link(real.join((number - nth).to_string()), name).unwrap(),
            }
        }
        store.register(&path);
        path
    });
    let hash = hash_part(&path);
    let nar = hostile.store.dump(&hostile.store.real(&path));
    for _ in 0..2 {
        let start = Instant::now();
        let whole = fetch(hostile.addr, "GET", &format!("/nar/{hash}.nar"), "");
        println!("{width} entries in {:?}", start.elapsed());
        assert!(whole.status == 200 && whole.is_complete && whole.body == nar);
    }
    // Download the tree three times at once.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let listing = fetch(hostile.addr, "GET", &format!("/{hash}.ls"), "");
                assert!(listing.status == 200 && listing.is_complete);
            });
        }
    });
    let (_, used) = hostile.end();
    // Memory for the plan, and 40 bytes plus the name for each entry of the directory being walked.
    let bound = (32 << 20) + 4 * width as u64 * 150;
    limit::memory_at_most("memory of the server", used.memory_len, bound);
}

/// A sparse file of one tebibyte is served, registered with an arbitrary hash.
#[test]
fn a_file_of_one_tebibyte_is_served() {
    let mut encoder = Encoder::new();
    let mut start = Vec::new();
    encoder.begin(&mut start).unwrap();
    encoder.file(&mut start, false, TEBIBYTE).unwrap();
    let mut framing = start.clone();
    encoder.end_file(&mut framing).unwrap();
    let nar_size = encoder.finish().unwrap();
    let (hostile, paths) = Hostile::new(|store| {
        // The file is registered with the right size, and with sizes that are far off.
        [("5", nar_size), ("6", 100_000), ("7", 1000)].map(|(digit, size)| {
            let path = format!("/nix/store/{}-long", digit.repeat(32));
            let file = fs::File::create(store.real(&path)).unwrap();
            file.set_len(TEBIBYTE).unwrap();
            store.register_row(&path, &"0".repeat(64), size);
            path
        })
    });
    let url = |path: &str| format!("/nar/{}.nar", hash_part(path));
    let mut connection = Connection::connect(hostile.addr);
    let answer = connection.begin("GET", &url(&paths[0]), &[]);
    assert_eq!((answer.status, answer.content_length()), (200, nar_size));
    // Read only the start of the NAR.
    let mut bytes = vec![0; 64 << 20];
    connection.read_exact(&mut bytes).unwrap();
    assert!(bytes.starts_with(&start) && bytes[start.len()..].iter().all(|byte| *byte == 0));
    drop(connection);
    let last = format!("Range: bytes={}-\r\n", nar_size - 1000);
    let last = fetch(hostile.addr, "GET", &url(&paths[0]), &last);
    assert!(last.status == 206 && last.is_complete && last.body.len() == 1000);
    let listing = fetch(
        hostile.addr,
        "GET",
        &format!("/{}.ls", hash_part(&paths[0])),
        "",
    );
    let listing = String::from_utf8(listing.body).unwrap();
    assert!(
        listing.contains(&format!("\"size\":{TEBIBYTE}")),
        "{listing}"
    );
    for path in &paths[1..] {
        for field in ["", "Range: bytes=500-\r\n"] {
            let outcome = fetch(hostile.addr, "GET", &url(path), field);
            assert!(
                matches!(outcome.status, 404 | 503) || !outcome.is_complete,
                "{outcome:?}"
            );
            assert!(outcome.body.len() < 110_000);
        }
    }
    let (_, used) = hostile.end();
    limit::memory_at_most("memory of the server", used.memory_len, 32 << 20);
    let cpu_time = Duration::from_secs_f64(used.cpu_seconds);
    limit::time_at_most("of CPU time", cpu_time, Duration::from_secs(5));
}
