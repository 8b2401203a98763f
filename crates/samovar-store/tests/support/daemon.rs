//! A real nix-daemon for the store of a test.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::NixStore;

/// A running `nix-daemon`, ended when dropped.
#[derive(Debug)]
pub(crate) struct NixDaemon {
    child: Child,
}

impl NixDaemon {
    /// Starts a daemon for a store and waits until it answers.
    pub(crate) fn start(store: &NixStore) -> Self {
        let socket = store.join("socket");
        let _absent = std::fs::remove_file(&socket);
        let child = store
            .command("nix-daemon")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nix-daemon is needed for this test");
        let daemon = Self { child };
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < deadline, "nix-daemon does not answer");
            std::thread::yield_now();
        }
        daemon
    }
}

impl NixDaemon {
    /// Ends the daemon and the processes that serve its connections.
    pub(crate) fn end_with_children(self) {
        let parent = self.child.id().to_string();
        let list = Command::new("ps")
            .args(["-o", "pid=", "--ppid", &parent])
            .output()
            .unwrap();
        let children = String::from_utf8(list.stdout).unwrap();
        drop(self);
        for child in children.split_whitespace() {
            Command::new("kill").args(["-9", child]).status().unwrap();
        }
    }
}

impl Drop for NixDaemon {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}
