//! What `rig/rig.py` has started ends with it, however that comes, and nothing is left.
#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it only inside functions marked as tests"
)]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use support::wait_until;
use tempfile::TempDir;

/// A rig whose programs can be told from all others of the machine by a variable that they have
/// inherited.
struct Rig {
    child: Child,
    folder: TempDir,
}

impl Rig {
    /// Kettles, with Prometheus and the exporters that are here; without load.
    fn up(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // PostgreSQL gets a folder of another user's in it.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        fs::set_permissions(folder.path(), mode).unwrap();
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rig/rig.py");
        let mut command = Command::new("python3");
        command.arg("-B").arg(program);
        command.args(["up", "kettles", "--locust", "none"]);
        command.args(["--binary", env!("CARGO_BIN_EXE_kettles"), "--data"]);
        command.arg(folder.path().join("data")).args(options);
        command.env("TMPDIR", folder.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        Self { child, folder }
    }

    /// The table that it prints, once all is up.
    fn table(&mut self) -> Vec<(String, String)> {
        let mut rows = Vec::new();
        for line in BufReader::new(self.child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let mut columns = line.split("  ").filter(|it| !it.is_empty());
            let name = columns.next().unwrap().to_owned();
            let is_last = name == "prometheus";
            rows.push((name, columns.next().unwrap().trim().to_owned()));
            if is_last {
                return rows;
            }
        }
        let mut said = String::new();
        let mut errors = self.child.stderr.take().unwrap();
        errors.read_to_string(&mut said).unwrap();
        unreachable!("it has not come up: {said}");
    }

    /// Names of the programs that it has started, and of what they have started.
    fn programs(&self) -> Vec<String> {
        let mark = format!("TMPDIR={}", self.folder.path().display());
        let mut names = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().map(|it| it.unwrap().path()) {
            let environment = fs::read(entry.join("environ")).unwrap_or_default();
            let is_marked = environment
                .split(|it| *it == 0)
                .any(|it| it == mark.as_bytes());
            let name = fs::read_to_string(entry.join("comm")).unwrap_or_default();
            if is_marked && entry.file_name().unwrap() != self.child.id().to_string().as_str() {
                names.push(name.trim().to_owned());
            }
        }
        names
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Nothing runs any more, and PostgreSQL's folder is gone.
    fn gone(mut self, is_tidy: bool) -> String {
        self.child.wait().unwrap();
        wait_until("all programs have ended", || self.programs().is_empty());
        let left = fs::read_dir(self.folder.path()).unwrap().count();
        // Its own folder, with logs.
        assert!(!is_tidy || left == 1, "{left} things are left");
        let mut said = String::new();
        let mut errors = self.child.stderr.take().unwrap();
        errors.read_to_string(&mut said).unwrap();
        said
    }
}

#[test]
fn what_was_started_ends_on_term() {
    let mut rig = Rig::up(&["--postgresql"]);
    let rows = rig.table();
    let names: Vec<_> = rows.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["postgresql", "live", "server", "prometheus"]);
    let server = rows[2].1.trim_start_matches("http://").parse().unwrap();
    let answer = support::Client::connect(server).get("/statistics", None);
    assert_eq!(answer.status, 200);
    let programs = rig.programs();
    for name in ["postgres", "kettles", "prometheus"] {
        assert!(programs.iter().any(|it| it == name), "{name}: {programs:?}");
    }
    rig.signal("TERM");
    rig.gone(true);
}

/// Then nobody can tidy up, but what runs ends.
#[test]
fn what_was_started_ends_when_the_rig_is_killed() {
    let mut rig = Rig::up(&["--postgresql"]);
    rig.table();
    rig.signal("KILL");
    rig.gone(false);
}

#[test]
fn what_was_started_ends_when_a_part_fails() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let rig = Rig::up(&["--port", &format!("prometheus={port}")]);
    let said = rig.gone(true);
    assert!(said.contains("rig: prometheus has ended"), "{said}");
}
