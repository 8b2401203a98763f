//! The scrub verifies paths in the background at its configured rate. It disturbs no requests and
//! reports only real damage.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use support::{OwnStore, ServerProcess, eventually, hash_part, local, nix_serve};

const FILE_LEN: usize = 400_000;

fn store(count: u8) -> (OwnStore, Vec<String>) {
    let store = OwnStore::new();
    let paths = (0..count).map(|number| {
        let name = format!("file{number}");
        store.add_file(&name, &vec![b'a' + number; FILE_LEN])
    });
    let paths = paths.collect();
    (store, paths)
}

fn serve(store: &OwnStore, arguments: &[&str]) -> ServerProcess {
    let mut command = nix_serve();
    command.args(["--store", &local(store.root())]);
    ServerProcess::start(command.args(arguments))
}

fn overwrite(store: &OwnStore, path: &str, byte: u8) {
    let real = store.real(path);
    fs::set_permissions(&real, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&real, vec![byte; FILE_LEN]).unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o444)).unwrap();
}

#[test]
fn damage_of_unrequested_paths_is_found_and_records_survive_a_restart() {
    let (store, paths) = store(4);
    overwrite(&store, &paths[1], b'!');
    let state = tempfile::tempdir().unwrap();
    let directory = state.path().to_str().unwrap();
    let arguments = ["--scrub", "1000000000", "--state-directory", directory];
    let server = serve(&store, &arguments);
    let line = server.wait_for("scrub ended");
    assert!(
        line.contains("4 of 4 paths, 1.5 MiB of 1.5 MiB, 1 damaged"),
        "{line}"
    );
    for (index, path) in paths.iter().enumerate() {
        let expected = if index == 1 { 404 } else { 200 };
        // The status is 503 until the second check.
        eventually("that is known", || server.narinfo(path).status == expected);
    }
    overwrite(&store, &paths[1], b'b');
    server.wait_for_repair(&paths[1]);
    let log = server.whole_log().join("\n");
    assert!(
        log.contains("path_quarantined=1 path_verified=3 path_released=1 quarantined_requested="),
        "{log}"
    );

    // The scrub starts with unverified paths, and skips paths verified within the last minute.
    let server = serve(&store, &arguments);
    let line = server.wait_for("scrub ended");
    assert!(
        line.contains("4 of 4 paths, 1.5 MiB of 1.5 MiB, 0 damaged"),
        "{line}"
    );
    let whole = server.get(&format!("/nar/{}.nar", hash_part(&paths[1])));
    assert!(whole.is_complete);
}

#[test]
fn the_scrub_keeps_its_rate_and_ends_with_the_server() {
    let (store, paths) = store(3);
    let started = Instant::now();
    let server = serve(&store, &["--scrub", "600000"]);
    // The scrub would verify this path last. It is collected before.
    store.run("nix-store", &["--delete", &paths[0]]);
    let line = server.wait_for("scrub ended");
    assert!(line.contains("3 of 3 paths"), "{line}");
    assert!(line.contains(" 0 damaged"), "{line}");
    let elapsed = started.elapsed();
    let right = Duration::from_secs_f64(2.0 * 400_000.0 / 600_000.0);
    // A busy machine takes longer, but not ten times as long.
    assert!(
        elapsed > right.mul_f64(0.8) && elapsed < right * 10,
        "{elapsed:?}"
    );

    // The scrub would take a day. The server ends nevertheless, within the time that the test
    // waits.
    let server = serve(&store, &["--scrub", "10"]);
    let log = server.whole_log().join("\n");
    assert!(!log.contains("scrub"), "{log}");
}

/// If the database is present but the file system of the files is not mounted, no path counts as
/// damaged.
#[test]
fn an_unmounted_store_is_not_reported_as_damage() {
    let (store, paths) = store(2);
    let (files, aside) = (
        store.root().join("nix/store"),
        store.root().join("nix/aside"),
    );
    fs::rename(&files, &aside).unwrap();
    fs::create_dir(&files).unwrap();
    let server = serve(&store, &["--scrub", "1000000000"]);
    let nar = format!("/nar/{}.nar", hash_part(&paths[0]));
    for target in [&nar, &format!("/{}.ls", hash_part(&paths[0]))] {
        let answer = server.get(target);
        assert_eq!(answer.status, 503, "{target}");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    assert_eq!(server.narinfo(&paths[0]).status, 200);
    fs::remove_dir(&files).unwrap();
    fs::rename(&aside, &files).unwrap();
    assert!(server.get(&nar).is_complete);
    // The scrub must wait until the files are mounted.
    let line = server.wait_for("scrub ended");
    assert!(line.contains("2 of 2 paths"), "{line}");
    assert!(line.contains(" 0 damaged"), "{line}");
    let log = server.whole_log().join("\n");
    assert!(!log.contains("path_quarantined="), "{log}");
}
