//! What somebody sees at a terminal: no password, and a status that goes on.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};
use support::{File, Server, samovar};

const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal, and what was shown on it.
struct Terminal {
    keyboard: fs::File,
    /// What programs have open.
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
    terminal.wait_until(|shown| shown.contains("Password of \"ada\": "));
    assert!(!terminal.echoes());
    // A slip, taken back: of two bytes.
    terminal.keyboard.write_all("sec\u{e4}".as_bytes()).unwrap();
    terminal.keyboard.write_all(b"\x7fret\r").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    terminal.wait_until(|shown| shown.contains("\r\n"));
    for part in ["sec", "ret", "*"] {
        assert!(!terminal.shown.contains(part), "{:?}", terminal.shown);
    }
    assert!(terminal.echoes());

    // It is the one that was typed.
    let users = tempfile::NamedTempFile::new().unwrap();
    fs::write(users.path(), output.stdout).unwrap();
    let file = File::new(&format!("access.users-file = {:?}\n", users.path()));
    let server = Server::of(&file);
    let url = format!("http://{}/nix-cache-info", server.address());
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--fail", "--user", "ada:secret", &url]);
    assert!(curl.output().unwrap().status.success());
}

#[test]
fn who_is_interrupted_at_a_password_sees_what_he_types_again() {
    let mut terminal = Terminal::open();
    let mut child = password(&terminal);
    terminal.wait_until(|shown| shown.contains("Password of"));
    terminal.keyboard.write_all(b"half\x03").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(terminal.echoes());
    terminal.wait_until(|shown| shown.contains("interrupted"));
    assert!(!terminal.shown.contains("half"));
}

/// Passes connections on to `target`, or drops them while it is cut.
fn proxy(target: String, is_cut: Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            if is_cut.load(Ordering::Relaxed) {
                continue;
            }
            let server = TcpStream::connect(&target).unwrap();
            let is_cut = Arc::clone(&is_cut);
            let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || pass(from, to, &is_cut));
            let is_open = AtomicBool::new(false);
            std::thread::spawn(move || pass(server, client, &is_open));
        }
    });
    url
}

fn pass(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        if is_cut.load(Ordering::Relaxed) || to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
}

#[test]
fn the_status_goes_on_when_the_server_does_not_answer_for_a_while() {
    let file = File::new("admin.listen = \"127.0.0.1:0\"\n");
    let server = Server::of(&file);
    let line = server.wait_for("metrics and status on http://");
    let target = line.rsplit("//").next().unwrap().to_owned();
    let is_cut = Arc::new(AtomicBool::new(false));
    let url = proxy(target, Arc::clone(&is_cut));
    let mut terminal = Terminal::open();
    // Whoever started the tests in the background may have had the signal ignored.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_samovar")]);
    command.args(["status", &url]).stdout(terminal.stdio());
    let mut child = command.stderr(terminal.stdio()).spawn().unwrap();
    let last = |shown: &str| shown.rsplit("\x1b[H").next().unwrap_or_default().to_owned();
    let is_whole = |shown: &str| last(shown).contains("requests/s");
    terminal.wait_until(is_whole);
    is_cut.store(true, Ordering::Relaxed);
    terminal.wait_until(|shown| {
        let shown = last(shown);
        // What was known last is there still.
        shown.contains("NO ANSWER for ") && shown.contains("requests/s")
    });
    is_cut.store(false, Ordering::Relaxed);
    terminal.shown.clear();
    terminal.wait_until(|shown| is_whole(shown) && !last(shown).contains("NO ANSWER"));
    assert!(child.try_wait().unwrap().is_none());
    let interrupted = Command::new("kill")
        .args(["-s", "INT", &child.id().to_string()])
        .status();
    assert!(interrupted.unwrap().success());
    // By the signal, as a shell expects it.
    assert_eq!(child.wait().unwrap().signal(), Some(2));
    server.signal("TERM");
    server.wait_for("ending");
}
