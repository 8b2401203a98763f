//! A terminal does not display a typed password. `samovar use` trusts a key, and `samovar cache
//! delete` deletes a cache, only after a typed "yes". Long commands show their progress in a line
//! that disappears at the end.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;
mod support_mount;
mod support_uploads;
mod support_workspaces;

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};
use support::{File, samovar};
use support_mount::{Line, noise};
use support_workspaces::{Home, write};
use testkit::process::output;

const PATIENCE: Duration = Duration::from_secs(60);

/// Longest time between two steps of a slow transfer.
const STEP_TIME: Duration = Duration::from_millis(50);

/// A pseudo-terminal, and the text displayed on it.
struct Terminal {
    keyboard: fs::File,
    /// The end of the pseudo-terminal that programs open.
    line: fs::File,
    screen: std::sync::mpsc::Receiver<Vec<u8>>,
    shown: String,
}

impl Terminal {
    fn open() -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let mut options = fs::File::options();
        let line = options.read(true).write(true);
        let line = line.open(name.to_str().unwrap()).unwrap();
        let keyboard = fs::File::from(master);
        let mut reader = keyboard.try_clone().unwrap();
        let (sender, screen) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..len].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self {
            keyboard,
            line,
            screen,
            shown: String::new(),
        }
    }

    fn stdio(&self) -> Stdio {
        self.line.try_clone().unwrap().into()
    }

    fn echoes(&self) -> bool {
        let modes = tcgetattr(&self.line).unwrap().local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }

    #[track_caller]
    fn wait_until(&mut self, is_right: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_right(&self.shown) {
            let left = deadline.saturating_duration_since(Instant::now());
            let bytes = self.screen.recv_timeout(left);
            let bytes = bytes.unwrap_or_else(|_| panic!("it shows {:?}", self.shown));
            self.shown.push_str(&String::from_utf8_lossy(&bytes));
        }
    }

    /// Waits until the progress of a command is shown, and calls `step` meanwhile. After
    /// `release`, the command must succeed and erase the progress.
    #[track_caller]
    fn shows_progress(&mut self, mut command: Command, part: &str, step: fn(&Line), line: &Line) {
        command.stdout(Stdio::null()).stderr(self.stdio());
        let mut child = command.spawn().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while !self.shown.contains(part) {
            assert!(Instant::now() < deadline, "it shows {:?}", self.shown);
            step(line);
            if let Ok(bytes) = self.screen.recv_timeout(STEP_TIME) {
                self.shown.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
        line.release();
        assert!(child.wait().unwrap().success(), "{:?}", self.shown);
        self.wait_until(|shown| shown.ends_with("\r\x1b[K"));
    }
}

fn password(terminal: &Terminal) -> Child {
    let mut command = samovar();
    command.args(["password", "ada"]).stdin(terminal.stdio());
    command.stdout(Stdio::piped()).stderr(terminal.stdio());
    command.spawn().unwrap()
}

#[test]
fn a_password_is_not_shown() {
    let mut terminal = Terminal::open();
    assert!(terminal.echoes());
    let child = password(&terminal);
    terminal.wait_until(|shown| shown.contains("Password for \"ada\": "));
    assert!(!terminal.echoes());
    // Type a wrong character of two bytes, and delete it by one backspace.
    terminal.keyboard.write_all("sec\u{e4}".as_bytes()).unwrap();
    terminal.keyboard.write_all(b"\x7fret\r").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    terminal.wait_until(|shown| shown.contains("\r\n"));
    for part in ["sec", "ret", "*"] {
        assert!(!terminal.shown.contains(part), "{:?}", terminal.shown);
    }
    assert!(terminal.echoes());

    // The printed hash must match the typed password.
    let users = tempfile::NamedTempFile::new().unwrap();
    fs::write(users.path(), output.stdout).unwrap();
    let file = File::new(&format!("access.users-file = {:?}\n", users.path()));
    let server = file.serve();
    let url = format!("http://{}/nix-cache-info", server.wait_for_address());
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--fail", "--user", "ada:secret", &url]);
    assert!(curl.output().unwrap().status.success());
}

#[test]
fn an_interrupted_password_restores_the_echo() {
    let mut terminal = Terminal::open();
    let mut child = password(&terminal);
    terminal.wait_until(|shown| shown.contains("Password for"));
    terminal.keyboard.write_all(b"half\x03").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(terminal.echoes());
    terminal.wait_until(|shown| shown.contains("interrupted"));
    assert!(!terminal.shown.contains("half"));
}

#[test]
fn a_key_is_trusted_after_a_yes_only() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, public) = testkit::nix::key_pair(dir.path(), "cache-1");
    let file = File::new(&format!("secret-key-files = {secret:?}\n"));
    let server = file.serve();
    let url = format!("http://{}", server.wait_for_address());
    for (answer, code) in [("\r", 1), ("n\r", 1), ("y\r", 0)] {
        let mut terminal = Terminal::open();
        let mut command = samovar();
        command.args(["use", &url]).stdin(terminal.stdio());
        for variable in ["NIX_CONF_DIR", "XDG_CONFIG_HOME", "HOME"] {
            command.env(variable, dir.path().join("home"));
        }
        command.stdout(terminal.stdio()).stderr(terminal.stdio());
        let mut child = command.spawn().unwrap();
        terminal.wait_until(|shown| shown.contains("[y/N] "));
        assert!(terminal.shown.contains(&public), "{:?}", terminal.shown);
        assert!(!dir.path().join("home").exists());
        terminal.keyboard.write_all(answer.as_bytes()).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(code), "{:?}", terminal.shown);
        assert_eq!(dir.path().join("home").exists(), code == 0);
    }
}

#[test]
fn a_cache_is_deleted_after_a_yes_only() {
    let dir = tempfile::tempdir().unwrap();
    let mut token = samovar();
    token.args(["token", "create", "--name", "ci", "--cache", "nightly"]);
    assert!(
        token
            .arg("--storage")
            .arg(dir.path())
            .output()
            .unwrap()
            .status
            .success()
    );
    for (answer, code) in [("\r", 1), ("n\r", 1), ("y\r", 0)] {
        let mut terminal = Terminal::open();
        let mut command = samovar();
        command.args(["cache", "delete", "nightly", "--storage"]);
        command.arg(dir.path()).stdin(terminal.stdio());
        command.stdout(terminal.stdio()).stderr(terminal.stdio());
        let mut child = command.spawn().unwrap();
        terminal.wait_until(|shown| shown.contains("[y/N] "));
        assert!(
            terminal.shown.contains("1 token of"),
            "{:?}",
            terminal.shown
        );
        terminal.keyboard.write_all(answer.as_bytes()).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(code), "{:?}", terminal.shown);
    }
}

#[test]
fn long_transfers_and_long_hashing_of_workspaces_show_their_progress() {
    let home = Home::new();
    let line = Line::to(home.server.address, usize::MAX);
    let open = |name: &str| {
        let mut command = home.command(&["open", "app"]);
        output(command.arg(home.dir(name)).env("SAMOVAR_CACHE", line.url()));
        home.dir(name)
    };
    let one = open("one");
    write(&one, "old", noise(1, 40 << 20));
    home.push(&one);
    let two = open("two");

    // Two thirds of the new tree are in the old one, so the push sends a recipe.
    write(&one, "new", noise(2, 16 << 20));
    let slow_requests = |line: &Line| line.limit_requests(256 << 10);
    let push = home.command_in(&one, &["push"]);
    Terminal::open().shows_progress(push, "sent ", slow_requests, &line);

    let slow_responses = |line: &Line| line.limit(128 << 10);
    for (arguments, part) in [
        (&["pull"][..], "pulled "),
        (&["restore", "--force", "2", "new"], "pulled "),
        (&["discard", "--yes", "new"], "pulled "),
    ] {
        let command = home.command_in(&two, arguments);
        Terminal::open().shows_progress(command, part, slow_responses, &line);
        fs::remove_file(two.join("new")).unwrap();
    }

    let large = fs::File::create(one.join("large")).unwrap();
    large.set_len(1 << 30).unwrap();
    let discard = home.command_in(&one, &["discard", "--yes"]);
    Terminal::open().shows_progress(discard, "hashed ", |_| {}, &line);
}
