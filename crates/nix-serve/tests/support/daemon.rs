//! A real nix-daemon for the store of a test.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::{OwnStore, eventually, local, nix, output};

/// A running `nix-daemon`, ended when dropped.
pub struct NixDaemon {
    child: Child,
}

impl NixDaemon {
    /// Starts the daemon where a server of the store looks for it, and waits until it answers.
    #[track_caller]
    pub fn start(store: &OwnStore) -> Self {
        let socket = Self::socket(store);
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let _absent = std::fs::remove_file(&socket);
        let mut command = nix("nix-daemon", store.root());
        command
            .env("NIX_REMOTE", local(store.root()))
            .env("NIX_DAEMON_SOCKET_PATH", &socket)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let daemon = Self {
            child: command.spawn().unwrap(),
        };
        eventually("nix-daemon listens", || {
            UnixStream::connect(&socket).is_ok()
        });
        daemon
    }

    pub fn socket(store: &OwnStore) -> PathBuf {
        store.root().join("nix/var/nix/daemon-socket/socket")
    }

    /// PIDs of the processes that serve its connections.
    pub fn children(&self) -> Vec<String> {
        let parent = self.child.id().to_string();
        let mut list = Command::new("ps");
        // `ps` fails if there are none.
        let list = list
            .args(["-o", "pid=", "--ppid", &parent])
            .output()
            .unwrap();
        let list = String::from_utf8(list.stdout).unwrap();
        list.split_whitespace().map(str::to_owned).collect()
    }

    /// Sends a signal to the processes that serve its connections.
    pub fn signal_children(&self, name: &str) {
        for child in self.children() {
            // One may have ended already.
            let _gone = Command::new("kill").args(["-s", name, &child]).output();
        }
    }

    /// Kills the daemon and the processes that serve its connections.
    pub fn end_with_children(self) {
        let children = self.children();
        drop(self);
        for child in children {
            output(Command::new("kill").args(["-9", &child]));
        }
    }
}

impl Drop for NixDaemon {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// All temporary roots held by daemons.
pub fn roots(store: &OwnStore) -> String {
    let directory = store.root().join("nix/var/nix/temproots");
    let Ok(entries) = std::fs::read_dir(directory) else {
        return String::new();
    };
    let texts = entries.filter_map(|entry| std::fs::read_to_string(entry.unwrap().path()).ok());
    texts.collect()
}
