//! The server calls `fsync` at most 9 times for a push of a directory, however many files it has.
//! Stock uploads of small paths that arrive at the same time share their flushes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_push;
mod support_uploads;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::samovar;
use support_push::noise;
use support_uploads::{MadePath, Site, Traced, can_trace, upload};
use testkit::limit;
use testkit::process::output;

/// The system calls that flush a disk.
const CALLS: [&str; 6] = [
    "fsync",
    "fdatasync",
    "syncfs",
    "sync",
    "msync",
    "sync_file_range",
];

/// Maximum number of flushes of a push.
const FLUSH_COUNT_MAX: usize = 9;

/// Maximum number of flushes that a request causes which the client sends again.
const REQUEST_FLUSH_COUNT_MAX: usize = 5;

/// Returns the flushes in a file that strace writes, except those of the daily backup. strace
/// writes a call before the call returns, so those of an answered request are there.
fn flushes(trace: &Path) -> Vec<String> {
    let is_flush = |line: &&str| {
        let mut words = line.split_whitespace();
        let call = words.nth(1).and_then(|call| call.split_once('('));
        call.is_some_and(|(call, _)| CALLS.contains(&call)) && !line.contains("/backup")
    };
    let text = fs::read_to_string(trace).unwrap();
    let flushes = text.lines().filter(is_flush);
    flushes.map(str::to_owned).collect()
}

/// Starts a server under strace. Also returns the file to which strace writes the calls.
fn traced(site: &Site) -> (Traced, PathBuf) {
    let trace = site.dir().join("trace");
    let arguments = [
        "-y".to_owned(),
        format!("--output={}", trace.display()),
        format!("--trace={}", CALLS.join(",")),
    ];
    (Traced::start(site, &arguments, &[]), trace)
}

/// Pushes a directory. Returns the report.
fn push(directory: &Path, url: &str, token: &Path) -> Value {
    let mut command = samovar();
    command.arg("push").arg(directory);
    command
        .arg(format!("{url}#app"))
        .args(["--public", "--json"]);
    let text = output(command.arg("--token-file").arg(token));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_push_of_a_directory_flushes_the_disk_at_most_9_times() {
    if !can_trace() {
        return;
    }
    let site = Site::new();
    let (mut server, trace) = traced(&site);
    let url = format!("http://{}", server.address().unwrap());
    let token = site.dir().join("token");
    fs::write(&token, site.token(&["--rights", "read,push,pin"])).unwrap();
    let directory = site.dir().join("source");
    fs::create_dir(&directory).unwrap();
    for number in 0..300 {
        fs::write(directory.join(number.to_string()), number.to_string()).unwrap();
    }
    // As much as a tree of 42,000 files: the compressed NAR is sent in three parts.
    fs::write(directory.join("large"), noise(1, 68 << 20)).unwrap();
    let mut before = flushes(&trace).len();
    // The first push sends the whole tree, the others send recipes. `request_count`: number of
    // requests if none is sent again.
    for (generation, request_count) in [(1, 11), (2, 10), (3, 10)] {
        fs::write(directory.join("1"), format!("generation {generation}")).unwrap();
        let report = push(&directory, &url, &token);
        assert_eq!(report["generation"], generation, "{report}");
        let flushes = flushes(&trace).split_off(before);
        before += flushes.len();
        let requests: usize = report["requests"].to_string().parse().unwrap();
        println!("{} flushes, {requests} requests", flushes.len());
        let repeated = requests.saturating_sub(request_count);
        let limit = FLUSH_COUNT_MAX + repeated * REQUEST_FLUSH_COUNT_MAX;
        // Fewer flushes than for two NARs, two rows and a pin are no durable push.
        assert!(
            (5..=limit).contains(&flushes.len()),
            "{} flushes in {requests} requests: {flushes:#?}",
            flushes.len()
        );
    }
}

#[test]
fn uploads_at_the_same_time_share_their_flushes() {
    const CLIENT_COUNT: usize = 16;
    const PATH_COUNT: usize = 12;
    if !can_trace() {
        return;
    }
    let site = Site::new();
    let (mut server, trace) = traced(&site);
    let address = server.address().unwrap();
    let token = site.token(&[]);
    let before = flushes(&trace).len();
    std::thread::scope(|scope| {
        for client in 0..CLIENT_COUNT {
            let token = &token;
            scope.spawn(move || {
                for at in 0..PATH_COUNT {
                    let path = MadePath::new(&format!("path-{client}-{at}"));
                    let file = upload(address, token, &path.file_target(), &path.file);
                    let narinfo = upload(address, token, &path.target(), path.narinfo());
                    assert_eq!((file.status, narinfo.status), (200, 200));
                }
            });
        }
    });
    let count = flushes(&trace).len() - before;
    let paths = CLIENT_COUNT * PATH_COUNT;
    println!("{count} flushes for {paths} paths");
    // One client alone causes four: for the file, its directory, and two transactions.
    assert!(count >= paths, "each file is flushed");
    limit::count_at_most("flushes", count as u64, paths as u64 * 5 / 2);
}

/// Otherwise the time of an upload would tell that somebody else has stored the same file.
#[test]
fn a_file_that_another_client_has_stored_is_flushed_like_a_new_one() {
    if !can_trace() {
        return;
    }
    let site = Site::new();
    let (mut server, trace) = traced(&site);
    let address = server.address().unwrap();
    let [owner, other] =
        ["owner", "other"].map(|name| site.token(&["--name", name, "--rights=push"]));
    let stored = MadePath::new("stored");
    let put = |token: &str, path: &MadePath| {
        let before = flushes(&trace).len();
        let sent = upload(address, token, &path.file_target(), &path.file);
        assert_eq!(sent.status, 200, "{}", sent.text());
        flushes(&trace).split_off(before)
    };
    put(&owner, &stored);
    let (known, new) = (put(&other, &stored), put(&other, &MadePath::new("new")));
    assert_eq!(known.len(), new.len(), "{known:#?} {new:#?}");
    assert!(known.len() >= 3, "{known:#?}");
    // Both clients can publish a path with the file.
    let narinfo = upload(address, &other, &stored.target(), stored.narinfo());
    assert_eq!(narinfo.status, 200);
}
