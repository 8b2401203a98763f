//! `samovar mount`: reading a tree costs few requests, of the kernel and to the server.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;
mod support_mount;
mod support_uploads;

use std::fs;
use std::path::Path;

use support_mount::{Fixture, Mount, can_mount};

/// Number of files in the directory `many` of the tree.
const FILE_COUNT: u64 = 300;

/// Numbers of requests of the kernel, and to the server.
#[derive(Debug)]
struct Counts {
    lookups: u64,
    attributes: u64,
    listings: u64,
    reads: u64,
    others: u64,
    requests: u64,
}

/// Ends a mount that was started with `--statistics`.
fn counts(mut mount: Mount) -> Counts {
    mount.process.signal("TERM");
    let line = mount.process.wait_for(" requests to the server");
    assert_eq!(mount.process.wait(), Some(0));
    let numbers: Vec<u64> = line
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    let [lookups, attributes, listings, reads, others, requests] = numbers[..] else {
        panic!("{line}");
    };
    Counts {
        lookups,
        attributes,
        listings,
        reads,
        others,
        requests,
    }
}

/// Reads all files of a directory in the order of the tree.
fn read_all(dir: &Path) {
    let mut paths: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert_eq!(paths.len() as u64, FILE_COUNT);
    for path in paths {
        let name = path.file_name().unwrap().to_str().unwrap();
        let content = fs::read_to_string(&path).unwrap();
        assert_eq!(content, format!("{}\n", &name["file-".len()..]));
    }
}

#[test]
fn a_file_costs_at_most_one_request() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new("zstd");
    let mount = fixture.mount("mnt", &["--statistics"]);
    fixture.wait_until_whole();
    for _ in 0..3 {
        read_all(&mount.dir.join("many"));
    }
    let counts = counts(mount);
    // Listing a directory looks up its files. Opening, reading again and closing need no request.
    assert!(counts.reads < 2 * FILE_COUNT, "{counts:?}");
    assert!(counts.lookups < 10, "{counts:?}");
    assert!(counts.attributes < 10, "{counts:?}");
    assert!(counts.listings < 30, "{counts:?}");
    assert!(counts.others < 20, "{counts:?}");
    // The seek table, the stream, and nothing for any file.
    assert!(counts.requests < 10, "{counts:?}");
}
