//! If the system clock is set hours forward or back, no connection, download or time limit is
//! affected, and later responses carry the new time.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it skips"
)]

mod support;
mod support_process;

use std::fs;
use std::path::Path;
use std::process::Command;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use support::{OwnStore, eventually, hash_part, local, nix_serve};
use support_process::{Connection, Process, at, set_mode};

const BIG_LEN: usize = 48 << 20;
const INFO: &str = "/nix-cache-info";

/// Finds the library to preload that shifts the realtime clock. The monotonic clock is unaffected,
/// as on a real machine.
fn library() -> Option<String> {
    let found = Command::new("sh")
        .args([
            "-c",
            "ls /usr/lib/*/faketime/libfaketimeMT.so.1 2>/dev/null",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8(found.stdout).unwrap();
    let path = text.lines().next().map(str::to_owned);
    if path.is_none() {
        println!("skipped: there is no faketime here");
    }
    path
}

/// Sets the clock of every process that reads its offset from `file`.
fn set_clock(file: &Path, offset: &str) {
    let next = file.with_extension("next");
    fs::write(&next, offset).unwrap();
    fs::rename(next, file).unwrap();
}

#[test]
fn setting_the_clock_affects_only_the_date_of_responses() {
    let Some(library) = library() else { return };
    let dir = tempfile::tempdir().unwrap();
    let clock = dir.path().join("clock");
    set_clock(&clock, "+0");
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_after = date_time_ymd(2050, 1, 1);
    let [certificate, key_file, access] =
        ["certificate", "key", "access"].map(|name| at(dir.path(), name));
    fs::write(&certificate, params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(&key_file, key.serialize_pem()).unwrap();
    set_mode(key_file.as_ref(), 0o600);
    let store = OwnStore::new();
    let big = store.add_file("big", &vec![1; BIG_LEN]);
    let mut command = nix_serve();
    command.args(["--store", &local(store.root()), "--access-log", &access]);
    command.args(["--listen", "127.0.0.1:0:ssl", "--listen", "[::1]:0"]);
    command.args(["--ssl-cert", &certificate, "--ssl-key", &key_file]);
    // Longer than the test takes on a busy machine, and shorter than the clock is set forward.
    command.args(["--read-timeout", "600", "--timeout", "600"]);
    command
        .env("LD_PRELOAD", library)
        .env("FAKETIME_TIMESTAMP_FILE", &clock)
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env("DONT_FAKE_MONOTONIC", "1");
    let mut server = Process::spawn(&mut command);
    let addr = server.wait_for_address();

    let mut kept = Connection::connect(addr);
    let date = |kept: &mut Connection| kept.get(INFO).header("date").unwrap().to_owned();
    let mut before = date(&mut kept);
    let mut half = Connection::connect(addr);
    half.send(b"GET /nix-cache-info HTTP/1.1\r\nHo");
    let mut download = Connection::connect(addr);
    download.send_request("GET", &format!("/nar/{}.nar", hash_part(&big)), &[]);
    let head = download.begin_reading(false).head;
    assert!(head.starts_with("HTTP/1.1 200 "));
    let len = head.split("Content-Length: ").nth(1).unwrap();
    let mut left: usize = len.lines().next().unwrap().parse().unwrap();
    for offset in ["+5h", "-5h", "+12000d", "-9000d", "+0"] {
        set_clock(&clock, offset);
        // The same connection gets the new time: the server has not closed it as idle.
        eventually("the clock is set", || {
            let now = date(&mut kept);
            let is_set = now[..22] != before[..22];
            if is_set {
                before = now;
            }
            is_set
        });
        left -= download.take_bytes(4 << 20).len();
        // The expiry of the certificate is checked against the new time. An expired certificate is
        // still served.
        server.signal("HUP");
        server.wait_for("the certificate was reloaded");
        if offset == "+12000d" {
            server.wait_for("has expired: clients will refuse it");
        }
    }
    half.send(b"st: a\r\n\r\n");
    assert_eq!(half.response(false).status, 200);
    download.take_bytes(left);
    assert_eq!(download.get(INFO).status, 200);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    assert_eq!(server.count("were aborted") + server.count("too_slow"), 0);
    // The reload before the certificate expired logs that it is done, then reads the clock, which
    // may be set meanwhile.
    assert!(matches!(server.count("has expired"), 1 | 2));
    let log = fs::read_to_string(&access).unwrap();
    assert!(log.contains("/20") && log.lines().count() > 6, "{log}");
}
