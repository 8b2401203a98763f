//! Build logs are served in every storage format, by derivation or by output, even while they grow.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_process;

use std::fs;
use std::process::{Command, Stdio};
use std::thread;

use support::{OwnStore, hash_part, local, sample, sample_root};
use support_process::{Connection, Process, serve_sample};
use testkit::procfs;

const NO_PATH: &str = "No such path.\n";
/// A hash part that no path has.
const ABSENT: &str = "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz";

/// Returns the expected text of an incomplete log: the start of the whole text, as long as `sent`.
/// That must be at least what `bzip2` decodes; the program holds the last block back.
fn as_far_as_it_goes(sent: &[u8], file: &[u8]) -> Vec<u8> {
    let whole: String = (0..60_000)
        .map(|number| format!("compiling unit {number}\n"))
        .collect();
    let at_least = bunzip(file).len();
    assert!(at_least > 0 && sent.len() >= at_least && sent.len() < whole.len());
    whole.into_bytes()[..sent.len()].to_vec()
}

/// Decompresses with `bzip2`. Decompresses a truncated file as far as possible.
fn bunzip(compressed: &[u8]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("log.bz2");
    fs::write(&file, compressed).unwrap();
    let mut command = Command::new("bzip2");
    command.args(["-dc"]).arg(&file).stderr(Stdio::null());
    command.output().unwrap().stdout
}

/// Returns the log of a sample derivation as stored, and whether it is compressed.
fn log_file(drv: &str) -> (Vec<u8>, bool) {
    let base_name = drv.rsplit('/').next().unwrap();
    let drvs = sample_root().join("nix/var/log/nix/drvs");
    let nested = drvs.join(&base_name[..2]).join(&base_name[2..]);
    let places = [nested, drvs.join(base_name)];
    let mut files = places
        .iter()
        .flat_map(|place| [place.clone(), place.with_added_extension("bz2")]);
    let file = files.find(|file| file.exists()).unwrap();
    (fs::read(&file).unwrap(), file.extension().unwrap() == "bz2")
}

#[test]
fn logs_are_served_in_every_storage_format() {
    let (_server, addr) = serve_sample(&[]);
    let mut connection = Connection::connect(addr);
    let manifest = fs::read_to_string(sample_root().join("sample.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let logs = manifest["logs"].as_array().unwrap();
    assert_eq!(logs.len(), 8);
    for log in logs {
        let (drv, kind) = (log["drv"].as_str().unwrap(), log["kind"].as_str().unwrap());
        let (file, is_bzip2) = log_file(drv);
        let path = format!("/log/{}", drv.rsplit('/').next().unwrap());
        let reply = connection.get_and_head(&path, &[]);
        let expected = match (log["text"].as_str(), kind) {
            (Some(text), _) => text.as_bytes().to_vec(),
            (None, "growing") => as_far_as_it_goes(&reply.body, &file),
            (None, _) => bunzip(&file),
        };
        if kind == "bytes" {
            assert_eq!(expected, (0..=255).collect::<Vec<u8>>());
        }
        assert_eq!(
            (reply.status, reply.header("content-type")),
            (200, Some("text/plain; charset=utf-8"))
        );
        assert!(reply.body == expected, "{kind}: {}", reply.body.len());
        assert_eq!(reply.header("content-encoding"), None, "{kind}");
        assert_eq!(reply.header("vary"), Some("Accept-Encoding"), "{kind}");
        for (offer, takes) in [
            ("Accept-Encoding: bzip2", true),
            ("Accept-Encoding: zstd, br, gzip, deflate, bzip2, xz", true),
            ("Accept-Encoding: BZIP2;q=0.5", true),
            ("Accept-Encoding: bzip2;q=0", false),
            ("Accept-Encoding: gzip", false),
            ("Accept-Encoding: identity", false),
        ] {
            let reply = connection.get_and_head(&path, &[offer]);
            assert_eq!(reply.header("vary"), Some("Accept-Encoding"), "{kind}");
            if is_bzip2 && takes {
                assert_eq!(
                    reply.header("content-encoding"),
                    Some("bzip2"),
                    "{kind} {offer}"
                );
                assert!(reply.body == file, "{kind} {offer}");
            } else {
                assert_eq!(reply.header("content-encoding"), None, "{kind} {offer}");
                assert!(reply.body == expected, "{kind} {offer}");
            }
        }
    }
}

#[test]
fn the_log_of_an_output_is_that_of_its_deriver() {
    let (_server, addr) = serve_sample(&[]);
    let mut connection = Connection::connect(addr);
    let base_name = |key: &str| sample(key).rsplit('/').next().unwrap().to_owned();
    for (output, drv) in [
        ("built", "built_drv"),
        ("multi_out", "multi_drv"),
        ("multi_dev", "multi_drv"),
    ] {
        let of_output = connection.get(&format!("/log/{}", base_name(output)));
        let of_drv = connection.get(&format!("/log/{}", base_name(drv)));
        assert_eq!((of_output.status, of_drv.status), (200, 200), "{output}");
        assert_eq!(of_output.body, of_drv.body);
    }
    let built = connection.get(&format!("/log/{}", base_name("built")));
    assert_eq!(built.text(), sample("built_log"));
    // These paths were not built here. The deriver of one of them is not in the store.
    for key in ["tree", "deriver_gone"] {
        connection.check_text(&format!("/log/{}", base_name(key)), 404, NO_PATH);
    }
    // A path with the right hash part but another name has no log.
    let wrong = format!("/log/{}-other", hash_part(&sample("built")));
    connection.check_text(&wrong, 404, NO_PATH);
}

/// The log of a running build is sent as far as it is written; a later request gets more.
#[test]
fn a_growing_log_is_served_as_far_as_it_is_written() {
    let store = OwnStore::new();
    let name = format!("{ABSENT}-running.drv");
    let dir = store.root().join("nix/var/log/nix/drvs/zz");
    fs::create_dir_all(&dir).unwrap();
    let file = dir.join(&name[2..]);
    let mut command = support::nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
    let (_server, addr) = Process::serving(&mut command);
    let mut connection = Connection::connect(addr);
    let path = format!("/log/{name}");
    connection.check_text(&path, 404, NO_PATH);
    for text in ["", "one\n", "one\ntwo\n"] {
        fs::write(&file, text).unwrap();
        assert_eq!(connection.get_and_head(&path, &[]).text(), text);
    }
    fs::remove_file(&file).unwrap();
    connection.check_text(&path, 404, NO_PATH);
}

/// Logs are decompressed by no more threads at once than there are worker slots.
#[test]
fn the_workers_limit_how_many_logs_are_decompressed_at_once() {
    const CLIENTS: usize = 16;
    const LOG_LEN: usize = 8 << 20;
    let store = OwnStore::new();
    let name = format!("{ABSENT}-long.drv");
    let dir = store.root().join("nix/var/log/nix/drvs/zz");
    fs::create_dir_all(&dir).unwrap();
    let file = dir.join(&name[2..]);
    fs::write(&file, "a line of a build log.\n".repeat(LOG_LEN / 23)).unwrap();
    testkit::process::output(Command::new("bzip2").arg(&file));
    let mut command = support::nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--workers", "1", "--pages"]);
    command.args(["--store", &local(store.root())]);
    let (server, addr) = Process::serving(&mut command);
    // One slot in each of the four lanes.
    let workers = || {
        let names = procfs::threads(server.pid()).into_iter().map(|thread| {
            let file = format!("/proc/{}/task/{thread}/comm", server.pid());
            fs::read_to_string(file).unwrap_or_default()
        });
        names.filter(|name| name.contains("worker")).count()
    };
    for url in ["log", "build-log"] {
        let path = format!("/{url}/{name}");
        thread::scope(|scope| {
            let read = || {
                let reply = Connection::connect(addr).get(&path);
                assert!(reply.body.len() >= LOG_LEN / 23 * 23, "{}", reply.status);
            };
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(read)).collect();
            let mut most = 0;
            while clients.iter().any(|client| !client.is_finished()) {
                most = most.max(workers());
                thread::yield_now();
            }
            assert!((1..=4).contains(&most), "{url}: {most} workers");
        });
    }
}
