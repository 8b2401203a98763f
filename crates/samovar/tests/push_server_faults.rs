//! A push of a directory to a server whose disk is full, or cannot be flushed, is not acknowledged.
//! It fails with a sentence, the ref keeps its generation, and nothing of the new one stays behind.
//! When the fault is over, the same push succeeds. A lost response does not change the result.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_mount;
mod support_push;
mod support_uploads;
mod support_workspaces;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use support::samovar;
use support_mount::noise;
use support_push::proxy::{Action, Proxy};
use support_uploads::{Running, Site, can_trace, files_below, on_small_disk};
use support_workspaces::{assert_has, exits, tree, write};
use testkit::eventually;
use testkit::http1::exchange;
use testkit::process::{Process, output, signal};

/// A site, a token, and a directory that is pushed.
struct Pushed {
    site: Site,
    token: String,
    source: PathBuf,
}

impl Pushed {
    fn new() -> Self {
        let site = Site::new();
        let token = site.token(&["--rights", "read,push,pin"]);
        let source = site.dir().join("source");
        for number in 0..20 {
            write(
                &source,
                &format!("d{}/{number}", number % 3),
                noise(number, 100_000),
            );
        }
        Self {
            site,
            token,
            source,
        }
    }

    fn command(&self, server: &Running, words: &[&str]) -> Command {
        let mut command = samovar();
        command.args(words).env("SAMOVAR_CACHE", server.url());
        command.env("SAMOVAR_TOKEN", &self.token);
        command
    }

    fn push(&self, server: &Running, name: &str) -> Command {
        let source = self.source.to_str().unwrap();
        self.command(server, &["push", source, name, "--public", "--json"])
    }

    /// Pushes successfully. Returns the generation.
    #[track_caller]
    fn pushes(&self, server: &Running, name: &str) -> u64 {
        let text = output(&mut self.push(server, name));
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        report["generation"].as_u64().unwrap()
    }

    /// Asserts that the newest generation of a ref is this one, with these files.
    #[track_caller]
    fn assert_newest(&self, server: &Running, name: &str, generation: u64, files: &Path) {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("copy");
        let pull = ["pull", name, copy.to_str().unwrap(), "--json"];
        let text = output(&mut self.command(server, &pull));
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["generation"], generation, "{report}");
        assert_eq!(tree(&copy), tree(files));
    }

    /// Copies the directory. Returns the copy.
    fn copied(&self) -> PathBuf {
        let copy = self.site.dir().join("before");
        output(Command::new("cp").arg("-r").arg(&self.source).arg(&copy));
        copy
    }
}

#[test]
fn a_push_whose_responses_are_lost_creates_one_generation() {
    let pushed = Pushed::new();
    let server = pushed.site.start();
    for generation in 1..=2 {
        write(&pushed.source, "d0/0", generation.to_string());
        // The first response to each request is lost.
        let seen = Mutex::new(BTreeSet::new());
        let proxy = Proxy::start(server.address, move |line| {
            match seen.lock().unwrap().insert(line.to_owned()) {
                true => Action::Lose,
                false => Action::Forward,
            }
        });
        let mut push = pushed.push(&server, "app");
        let text = output(push.env("SAMOVAR_CACHE", proxy.url()));
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["generation"], generation, "{report}");
        let pins = proxy.exchanges("PUT /upload/pin/app");
        let statuses: Vec<u16> = pins.iter().map(|pin| pin.status).collect();
        assert_eq!(statuses, [200, 200]);
        pushed.assert_newest(&server, "app", generation, &pushed.source);
    }
}

/// Fills the file system with a file that leaves less room than a push needs.
fn fill(storage: &Path) -> PathBuf {
    let disk = rustix::fs::statvfs(storage).unwrap();
    let len = disk.f_bavail * disk.f_frsize - 700_000;
    let filler = storage.join("filler");
    fs::write(&filler, vec![1; usize::try_from(len).unwrap()]).unwrap();
    filler
}

/// Returns the unfinished files, and the narinfos, of the storage. Finished files that no path uses
/// stay for a day, for the next push.
fn stored(storage: &Path) -> BTreeSet<String> {
    let files = files_below(storage).into_iter();
    let is_kept = |file: &String| file.contains("tmp/") || file.ends_with(".narinfo");
    files.filter(is_kept).collect()
}

/// Waits until the server writes no file, and returns what it has stored.
fn settled(storage: &Path) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    eventually("no file is unfinished", || {
        files = stored(storage);
        !files.iter().any(|file| file.contains("tmp/"))
    });
    files
}

#[test]
fn a_full_disk_of_the_server_publishes_nothing() {
    let pushed = Pushed::new();
    let (server, storage) = on_small_disk(&pushed.site, "12m");
    // The whole tree is uploaded.
    let before = settled(&storage);
    let filler = fill(&storage);
    let text = exits(&mut pushed.push(&server, "app"), 3);
    assert_has(&text, "507");
    assert_eq!(text.lines().count(), 1, "{text}");
    exits(&mut pushed.command(&server, &["ref", "log", "app"]), 1);
    assert_eq!(settled(&storage), before);
    fs::remove_file(filler).unwrap();
    assert_eq!(pushed.pushes(&server, "app"), 1);
    pushed.assert_newest(&server, "app", 1, &pushed.source);
    // The server assembles the tree from the one before, and a small change.
    let old = pushed.copied();
    write(&pushed.source, "d0/0", "changed");
    let before = settled(&storage);
    let filler = fill(&storage);
    let text = exits(&mut pushed.push(&server, "app"), 3);
    assert_has(&text, "507");
    assert_eq!(text.lines().count(), 1, "{text}");
    pushed.assert_newest(&server, "app", 1, &old);
    assert_eq!(settled(&storage), before);
    fs::remove_file(filler).unwrap();
    assert_eq!(pushed.pushes(&server, "app"), 2);
    pushed.assert_newest(&server, "app", 2, &pushed.source);
}

/// A NAR that is sent in parts is refused like a file that is sent with PUT: the response states
/// that the storage is full although the client is still sending, and the refusal is counted.
#[test]
fn a_part_that_does_not_fit_is_refused_at_once() {
    let pushed = Pushed::new();
    write(&pushed.source, "large", noise(99, 40_000_000));
    let config = fs::read_to_string(pushed.site.config()).unwrap();
    let config = config.replace("admin.listen = []", "admin.listen = \"127.0.0.1:0\"");
    fs::write(pushed.site.config(), config).unwrap();
    let (server, _storage) = on_small_disk(&pushed.site, "12m");
    let line = server.process.wait_for("metrics and status on http://");
    let admin = line.rsplit("//").next().unwrap().trim().parse().unwrap();
    let text = exits(&mut pushed.push(&server, "app"), 3);
    assert_has(
        &text,
        "507 Insufficient Storage: the storage of this cache is full",
    );
    assert_eq!(text.lines().count(), 1, "{text}");
    let head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let metrics = exchange(admin, head).text();
    let sample = "samovar_uploads_refused_total{reason=\"storage_full\"} ";
    let count = metrics.lines().find_map(|line| line.strip_prefix(sample));
    assert_ne!(count.unwrap(), "0");
    assert!(server.process.count("cannot write a part") > 0);
}

/// Makes all flushes of the disk by a process fail, until it is dropped.
struct FailingFlushes(Process);

impl FailingFlushes {
    fn start(server: &Running) -> Self {
        let mut command = support::bare("strace");
        command.args(["-f", "-o", "/dev/null", "--trace=fsync,fdatasync,syncfs"]);
        command.arg("--inject=fsync,fdatasync,syncfs:error=EIO");
        command.args(["-p", &server.process.pid().to_string()]);
        let strace = Process::spawn(&mut command);
        strace.wait_for("attached");
        Self(strace)
    }
}

impl Drop for FailingFlushes {
    fn drop(&mut self) {
        // strace then detaches, and the server goes on.
        signal(self.0.pid(), "INT");
        self.0.wait();
    }
}

#[test]
fn a_push_that_the_server_cannot_flush_is_not_acknowledged() {
    if !can_trace() {
        return;
    }
    let pushed = Pushed::new();
    let mut server = pushed.site.start();
    let faulty = FailingFlushes::start(&server);
    let text = exits(&mut pushed.push(&server, "app"), 3);
    assert_eq!(text.lines().count(), 1, "{text}");
    drop(faulty);
    exits(&mut pushed.command(&server, &["ref", "log", "app"]), 1);
    assert_eq!(pushed.pushes(&server, "app"), 1);
    let old = pushed.copied();
    write(&pushed.source, "d0/0", "changed");
    let faulty = FailingFlushes::start(&server);
    let text = exits(&mut pushed.push(&server, "app"), 3);
    assert_eq!(text.lines().count(), 1, "{text}");
    drop(faulty);
    pushed.assert_newest(&server, "app", 1, &old);
    // Also after a restart.
    server.process.signal("KILL");
    server.process.wait();
    let server = pushed.site.start();
    pushed.assert_newest(&server, "app", 1, &old);
    assert_eq!(pushed.pushes(&server, "app"), 2);
    pushed.assert_newest(&server, "app", 2, &pushed.source);
}
