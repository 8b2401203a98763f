//! systemd accepts the unit in `contrib/systemd` and rates its exposure as documented. The unit's
//! filter allows every system call of the server.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it skips"
)]

mod support;
mod support_process;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rcgen::{CertificateParams, KeyPair};
use support::{eventually, hash_part, key_pair, local, nix_serve, output, sample, sample_root};
use support_process::{Connection, Process, at, set_mode, signal};

/// Ten times the maximum exposure according to `systemd-analyze security`, which the unit also
/// states.
const EXPOSURE_MAX: &str = "12";

fn contrib() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd")
}

fn unit() -> String {
    fs::read_to_string(contrib().join("nix-serve.service")).unwrap()
}

/// Returns whether a program is installed; prints a message if not.
fn has(program: &str) -> bool {
    let is_there = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok();
    if !is_there {
        println!("skipped: there is no {program} here");
    }
    is_there
}

#[test]
fn systemd_understands_it_and_finds_it_closed() {
    if !has("systemd-analyze") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let service = dir.path().join("nix-serve.service");
    // Replace the program's path: it is not installed there on this machine.
    let text = unit().replace("/usr/local/bin/nix-serve", env!("CARGO_BIN_EXE_nix-serve"));
    fs::write(&service, text).unwrap();
    let socket = dir.path().join("nix-serve.socket");
    fs::copy(contrib().join("nix-serve.socket"), &socket).unwrap();
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).arg(&service);
    let verified = verify.arg(&socket).output().unwrap();
    let complaints = String::from_utf8_lossy(&verified.stderr).into_owned();
    let ours: Vec<_> = complaints
        .lines()
        .filter(|line| line.contains("nix-serve"))
        .collect();
    assert!(verified.status.success() && ours.is_empty(), "{complaints}");
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=true", "--no-pager"]);
    output(security.args(["--threshold", EXPOSURE_MAX]).arg(&service));
}

/// Adds the system calls of a set, including those of nested sets.
fn expand(name: &str, calls: &mut BTreeSet<String>) {
    if !name.starts_with('@') {
        calls.insert(name.to_owned());
        return;
    }
    let mut list = Command::new("systemd-analyze");
    let text = output(list.args(["syscall-filter", "--no-pager", name]));
    for line in text.lines().skip(1).map(str::trim) {
        if !line.starts_with('#') && !line.is_empty() {
            expand(line, calls);
        }
    }
}

/// Returns the system calls that the unit's filter allows. Evaluates the filter line by line, as
/// systemd does.
fn allowed() -> BTreeSet<String> {
    let mut allowed = BTreeSet::new();
    // Always allowed.
    expand("@default", &mut allowed);
    let unit = unit();
    let lines = unit
        .lines()
        .filter_map(|line| line.strip_prefix("SystemCallFilter="));
    for line in lines {
        let mut calls = BTreeSet::new();
        let names = line.trim_start_matches('~');
        for name in names.split_ascii_whitespace() {
            expand(name, &mut calls);
        }
        match line.starts_with('~') {
            true => allowed.retain(|call| !calls.contains(call)),
            false => allowed.extend(calls),
        }
    }
    allowed
}

/// A process group that is killed on drop. Killing only a tracer would leave its tracees running.
struct Group(u32);

impl Drop for Group {
    fn drop(&mut self) {
        // Ignore errors: after a successful test no process is left.
        let mut kill = Command::new("kill");
        kill.args(["-s", "KILL", "--", &format!("-{}", self.0)]);
        kill.stderr(Stdio::null()).status().ok();
    }
}

/// The filter allows every system call that the server makes on all routes over TCP, TLS and a Unix
/// socket, for every signal, and in a zero-downtime upgrade.
#[test]
fn its_filter_lets_through_all_that_the_server_calls() {
    if !has("systemd-analyze") || !has("strace") {
        return;
    }
    let allowed = allowed();
    assert!(allowed.contains("epoll_wait") && !allowed.contains("ptrace"));
    let dir = tempfile::tempdir().unwrap();
    let (secret, _) = key_pair(dir.path(), "ours-1");
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let [certificate, key_file, trace, pid, socket, access, state] = [
        "certificate",
        "key",
        "trace",
        "pid",
        "socket",
        "access",
        "state",
    ]
    .map(|name| at(dir.path(), name));
    fs::write(&certificate, params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(&key_file, key.serialize_pem()).unwrap();
    set_mode(key_file.as_ref(), 0o600);
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", &trace]);
    command.arg(env!("CARGO_BIN_EXE_nix-serve"));
    command.args(["--listen", "127.0.0.1:0:ssl", "--listen", "[::1]:0"]);
    command.args(["--listen", &socket, "--pid", &pid, "--access-log", &access]);
    command.args(["--ssl-cert", &certificate, "--ssl-key", &key_file]);
    command.args(["--nar-cache"]).arg(dir.path());
    command.args(["--state-directory", &state, "--scrub", "1000000"]);
    command.args(["--store", &local(&sample_root())]);
    for (name, _) in nix_serve().get_envs() {
        command.env_remove(name);
    }
    command.env("NIX_SECRET_KEY_FILE", &secret);
    let mut server = Process::spawn(command.stdin(Stdio::null()).process_group(0));
    let _group = Group(server.child.id());
    let line = server.wait_for("on https://");
    let port = line.rsplit(':').next().unwrap().to_owned();
    let addr = server.wait_for_address();
    let number = || -> Option<u32> { fs::read_to_string(&pid).ok()?.trim().parse().ok() };
    eventually("there is a pid file", || number().is_some());
    let visit = || {
        // Only the system calls matter, not the status.
        let visit = |path: &str, field: &str| {
            let mut one = Connection::connect(addr);
            one.send_request("GET", path, &["Connection: close", field]);
            one.rest();
        };
        for path in ["tree", "empty", "big", "kinds", "built", "top"].map(sample) {
            let hash = hash_part(&path).to_owned();
            let nar = format!("/nar/{hash}.nar");
            visit(&format!("/{hash}.narinfo"), "A: b");
            visit(&format!("/{hash}.ls"), "A: b");
            visit(&nar, "A: b");
            visit(&nar, "A: b");
            visit(&nar, "Range: bytes=1-100");
            visit(&format!("/closure/{hash}"), "A: b");
            visit(&format!("/log/{}", &path["/nix/store/".len()..]), "A: b");
        }
        visit("/nonsense", "A: b");
        assert_eq!(
            Connection::unix(socket.as_ref())
                .get("/nix-cache-info")
                .status,
            200
        );
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--fail", "--cacert", &certificate]);
        output(curl.arg(format!("https://localhost:{port}/nix-cache-info")));
    };
    visit();
    let first = number().unwrap();
    signal(first, "HUP");
    server.wait_for("the certificate was reloaded");
    signal(first, "USR1");
    server.wait_for("events since the start");
    signal(first, "USR2");
    server.wait_for("has taken over");
    eventually("the next one's number", || {
        number().is_some_and(|pid| pid != first)
    });
    visit();
    signal(number().unwrap(), "TERM");
    assert_eq!(server.wait(), Some(0));

    let text = fs::read_to_string(&trace).unwrap();
    let called: BTreeSet<_> = text
        .lines()
        .filter_map(|line| {
            let call = line.split_once(' ')?.1.trim_start().split_once('(')?.0;
            let is_name = call
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            is_name.then(|| call.to_owned())
        })
        .collect();
    assert!(called.contains("execve") && called.len() > 30, "{called:?}");
    // Except this call: as root, SQLite gives new files to the owner of the database.
    let refused: Vec<_> = called
        .difference(&allowed)
        .filter(|call| *call != "fchown")
        .collect();
    assert!(refused.is_empty(), "the filter refuses {refused:?}");
    println!(
        "{} system calls used, all of {} let through",
        called.len(),
        allowed.len()
    );
}
