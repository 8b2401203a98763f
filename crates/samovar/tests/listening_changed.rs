//! A zero-downtime upgrade (USR2) opens and closes listeners as the configuration says.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use support::{Server, samovar, sample_store, status};
use testkit::eventually;
use testkit::process::signal_if_alive;

/// A server and its successors, which are all killed at the end.
struct Upgraded {
    dir: tempfile::TempDir,
    first: Server,
    pids: Vec<u32>,
}

impl Upgraded {
    fn start(listen: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("samovar.toml"), text(listen)).unwrap();
        let mut command = samovar();
        command.args(["serve", "--config", "samovar.toml"]);
        let first = Server::spawn(command.current_dir(dir.path()));
        let pids = vec![first.pid()];
        Self { dir, first, pids }
    }

    fn configure(&self, listen: &str) {
        fs::write(self.dir.path().join("samovar.toml"), text(listen)).unwrap();
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn upgrade(&mut self) {
        let old = self.pids[self.pids.len() - 1];
        signal_if_alive(&[old], "USR2");
        let line = self.first.wait_for("has taken over");
        let words: Vec<&str> = line.split(' ').collect();
        let at = words.iter().position(|word| *word == "process").unwrap();
        self.pids.push(words[at + 1].parse().unwrap());
    }

    /// Upgrades the server to this value of `listen`.
    fn upgrade_to(&mut self, listen: &str) {
        self.configure(listen);
        self.upgrade();
    }

    /// Waits for a log line, which another process may write before or after the one that says that
    /// it has taken over.
    fn wait_for_any(&self, test: impl Fn(&str) -> bool) -> String {
        let mut found = None;
        eventually("there is a log line", || {
            found = self.first.lines().into_iter().find(|line| test(line));
            found.is_some()
        });
        found.unwrap()
    }
}

impl Drop for Upgraded {
    fn drop(&mut self) {
        signal_if_alive(&self.pids, "KILL");
    }
}

fn text(listen: &str) -> String {
    let store = sample_store();
    format!("store = {store:?}\nadmin.listen = []\nlisten = {listen}\n")
}

fn is_open(address: &str) -> bool {
    TcpStream::connect(address.parse::<SocketAddr>().unwrap()).is_ok()
}

#[track_caller]
fn assert_serves(address: &str) {
    assert_eq!(status(address, "/nix-cache-info", ""), 200, "{address}");
}

#[track_caller]
fn assert_closed(address: &str) {
    // The old process closes its listeners just after the new one has taken over.
    eventually(&format!("{address} is closed"), || !is_open(address));
}

#[test]
fn an_address_is_narrowed_and_others_are_opened_and_closed() {
    let mut server = Upgraded::start("[\"0.0.0.0:0\"]");
    let port = server.first.wait_for_address().port();
    let (first, second) = (format!("127.0.0.1:{port}"), format!("127.0.0.2:{port}"));
    assert_serves(&first);
    assert_serves(&second);
    // Narrower, on the same port.
    server.upgrade_to(&format!("[{first:?}]"));
    let part = format!("not listening on 0.0.0.0:{port} any more, which `listen` does not name");
    server.wait_for_any(|line| line.contains(&part));
    assert_closed(&second);
    assert_serves(&first);
    // Wider, on the same port, and a Unix socket.
    server.upgrade_to(&format!("[\"0.0.0.0:{port}\", \"./socket\"]"));
    assert_serves(&second);
    assert!(UnixStream::connect(server.socket()).is_ok());
    // Another port. The Unix socket stays, and its file.
    server.upgrade_to("[\"127.0.0.1:0\", \"./socket\"]");
    assert_closed(&first);
    let is_other = |line: &str| line.contains("on http://127.0.0.1:") && !line.contains(&first);
    let line = server.wait_for_any(is_other);
    let third = testkit::process::address_in(&line).to_string();
    assert_serves(&third);
    assert!(UnixStream::connect(server.socket()).is_ok());
    // An unchanged configuration keeps the port that the system has chosen.
    server.upgrade();
    assert_serves(&third);
    // Addresses of IPv6, of which the first accepts IPv4 as well.
    server.upgrade_to(&format!(
        "[{third:?}, \"./socket\", \"[::]:0\", \"[::1]:0\"]"
    ));
    let on = |host: &str| {
        let part = format!("on http://{host}:");
        testkit::process::address_in(&server.wait_for_any(|line| line.contains(&part))).port()
    };
    let (dual, single) = (on("[::]"), on("[::1]"));
    server.upgrade();
    for address in [format!("127.0.0.1:{dual}"), format!("[::1]:{single}")] {
        assert_serves(&address);
    }
    // The file of a socket that is no longer named goes.
    server.upgrade_to(&format!("[{third:?}]"));
    eventually("the socket is gone", || !server.socket().exists());
    assert_serves(&third);
}

#[test]
fn an_address_that_cannot_be_opened_refuses_the_upgrade() {
    let server = Upgraded::start("[\"127.0.0.1:0\"]");
    let address = server.first.wait_for_address().to_string();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    server.configure(&format!("[\"{}\"]", other.local_addr().unwrap()));
    signal_if_alive(&server.pids, "USR2");
    let lines = server.first.lines_to("this process continues to serve");
    let is_named = |line: &String| line.contains("another server listens there");
    assert!(lines.iter().any(is_named), "{lines:?}");
    assert_serves(&address);
}
