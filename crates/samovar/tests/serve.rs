//! `samovar serve` does what its file says, and a file that means nothing changes nothing.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn samovar() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_samovar"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("NIX_") || name.starts_with("SAMOVAR_") {
            command.env_remove(&*name);
        }
    }
    command.stdin(Stdio::null());
    command
}

fn sample_store() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.samovar/sample");
    let root = root.canonicalize().expect(
        "there is no sample store: run `cargo run -p xtask -- sample-store .samovar/sample`",
    );
    format!("local?root={}", root.display())
}

/// A file in a directory of its own.
struct File {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl File {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("samovar.toml");
        let file = Self { dir, path };
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        let head = format!("store = {:?}\nlisten = \"127.0.0.1:0\"\n", sample_store());
        fs::write(&self.path, head + text).unwrap();
    }
}

struct Server {
    child: Child,
    lines: Receiver<String>,
}

impl Server {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, lines }
    }

    #[track_caller]
    fn wait_for(&self, part: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|error| panic!("no line with {part:?}: {error}"));
            if line.contains(part) {
                return line;
            }
        }
    }

    /// Where it serves.
    fn address(&self) -> String {
        let line = self.wait_for("on http://");
        let (_, rest) = line.split_once("http://").unwrap();
        rest.split('/').next().unwrap().to_owned()
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The status and what follows.
fn get(address: &str, target: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once(' ').unwrap().1.to_owned()
}

#[test]
fn the_file_says_what_is_served() {
    let file = File::new("[caches.team-a]\npriority = 10\n[caches.team-b]\nprefix = \"/b\"\n");
    let mut command = samovar();
    command.args(["serve", "--config"]).arg(&file.path);
    command.env("SAMOVAR_CACHES__TEAM_B__PRIORITY", "20");
    let server = Server::start(&mut command);
    let address = server.address();
    assert!(get(&address, "/team-a/nix-cache-info").contains("\nPriority: 10\n"));
    assert!(get(&address, "/b/nix-cache-info").contains("\nPriority: 20\n"));
    assert!(get(&address, "/nix-cache-info").starts_with("404"));
    assert!(get(&address, "/team-ab/nix-cache-info").starts_with("404"));
    server.signal("TERM");
    server.wait_for("ending");
}

#[test]
fn a_file_that_means_nothing_starts_nothing() {
    let file = File::new("prioritty = 1\n");
    let output = samovar()
        .arg("serve")
        .env("SAMOVAR_CONFIG", &file.path)
        .output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        format!(
            "samovar: error: {}:3: there is no key prioritty, perhaps priority is meant\n",
            file.path.display()
        )
    );
}

#[test]
fn a_bad_reload_keeps_the_old() {
    let file = File::new("priority = 10\n");
    let mut command = samovar();
    let server = Server::start(command.args(["serve", "--config"]).arg(&file.path));
    let address = server.address();
    file.write("priority = \"high\"\n");
    server.signal("HUP");
    let line = server.wait_for("stays in use");
    assert!(line.contains("samovar.toml:3: priority is to be"), "{line}");
    assert!(get(&address, "/nix-cache-info").contains("\nPriority: 10\n"));
    file.write("backlog = 5\n");
    server.signal("HUP");
    server.wait_for("takes effect when the server is started anew: backlog");
    // One that names a key that is none.
    file.write(&format!("secret-key-files = {:?}\n", file.path));
    server.signal("HUP");
    server.wait_for("stays in use");
}

#[test]
fn the_configuration_is_shown_and_checked() {
    let file = File::new("priority = 10\n");
    let check = |words: &[&str]| {
        let mut command = samovar();
        command
            .args(["serve", "--check-config", "--config"])
            .arg(&file.path);
        command.args(words).output().unwrap()
    };
    let output = check(&["--log-verbose", "--set", "backlog=7"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    let origin = format!("priority = 10  # {}:3\n", file.path.display());
    assert!(text.contains(&origin), "{text}");
    assert!(
        text.contains("\nlog.verbose = true  # --log-verbose\n"),
        "{text}"
    );
    assert!(text.contains("\nbacklog = 7  # --set\n"), "{text}");

    let output = check(&["--secret-key-files", "/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("\"/nowhere\" does not exist"), "{text}");
}

#[test]
fn harmonia_is_understood() {
    let dir = tempfile::tempdir().unwrap();
    let theirs = dir.path().join("harmonia.toml");
    fs::write(&theirs, "bind = \"127.0.0.1:0\"\npriority = 50\n").unwrap();
    let output = samovar()
        .args(["config", "import"])
        .arg(&theirs)
        .output()
        .unwrap();
    let ours = dir.path().join("samovar.toml");
    fs::write(&ours, output.stdout).unwrap();
    let mut command = samovar();
    command.args(["serve", "--store", &sample_store(), "--config"]);
    let server = Server::start(command.arg(&ours));
    assert!(get(&server.address(), "/nix-cache-info").contains("\nPriority: 50\n"));
}

#[test]
fn completions_and_man_pages() {
    for shell in ["bash", "zsh", "fish"] {
        let output = samovar().args(["completions", shell]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("secret-key-files"), "{shell}");
    }
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    let output = samovar().arg("man").arg(&pages).output().unwrap();
    assert!(output.status.success());
    let serve = fs::read_to_string(pages.join("samovar-serve.1")).unwrap();
    assert!(serve.contains("priority"), "{serve}");
    let rendered = Command::new("man").arg(pages.join("samovar.1")).output();
    if let Ok(rendered) = rendered {
        assert!(rendered.status.success());
    }
}
