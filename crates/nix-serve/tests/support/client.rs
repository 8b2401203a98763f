//! A real Nix client with a store and caches of its own.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use super::{PATIENCE, nix};

/// A machine that substitutes: an empty store, no caches, no configuration.
pub struct Client {
    dir: tempfile::TempDir,
}

impl Client {
    pub fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The root of its store.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("client")
    }

    /// Where a store path really lies.
    pub fn real(&self, store_path: &str) -> PathBuf {
        self.root().join(store_path.trim_start_matches('/'))
    }

    /// One of Nix's programs; it knows no substituter and no key that it is not told.
    pub fn command(&self, program: &str) -> Command {
        self.command_with(program, "")
    }

    /// [`Self::command`] with more experimental features.
    pub fn command_with(&self, program: &str, features: &str) -> Command {
        let mut command = nix(program, self.dir.path());
        command.env(
            "NIX_CONFIG",
            format!(
                "experimental-features = nix-command {features}\nbuild-users-group =\n\
                 sandbox = false\nsubstituters =\ntrusted-public-keys =\nrequire-sigs = true\n\
                 fsync-metadata = false\n"
            ),
        );
        command
    }

    /// `nix copy --from url` of these paths into its own store.
    pub fn copy(&self, url: &str, keys: &str, paths: &[String]) -> Command {
        let mut command = self.command("nix");
        command
            .args(["copy", "--from", url, "--to"])
            .arg(self.root())
            .args(["--option", "trusted-public-keys", keys])
            .args(paths);
        command
    }

    /// `nix-store --realise` of a path with one substituter; nothing is ever built.
    pub fn realise(&self, url: &str, keys: &str, path: &str) -> Command {
        let mut command = self.command("nix-store");
        command
            .arg("--store")
            .arg(self.root())
            .args(["--realise", path, "--option", "max-jobs", "0"])
            .args(["--option", "substituters", url])
            .args(["--option", "trusted-public-keys", keys]);
        command
    }

    /// How many paths its store has that `path` needs.
    #[track_caller]
    pub fn closure(&self, path: &str) -> Vec<String> {
        let mut command = self.command("nix-store");
        command
            .arg("--store")
            .arg(self.root())
            .args(["--query", "--requisites", path]);
        succeeds(&mut command).lines().map(str::to_owned).collect()
    }
}

/// Runs to the end, within bounds.
#[track_caller]
pub fn finish(command: &mut Command) -> Output {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait(child, command)
}

/// Waits for a child whose outputs are pipes; ends it if it takes too long.
#[track_caller]
pub fn wait(mut child: Child, command: &Command) -> Output {
    fn drain(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).ok();
            bytes
        })
    }
    let stdout = drain(child.stdout.take().unwrap());
    let stderr = drain(child.stderr.take().unwrap());
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            let stderr = stderr.join().unwrap();
            panic!(
                "not in time: {command:?}\n{}",
                String::from_utf8_lossy(&stderr)
            );
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    Output {
        status,
        stdout: stdout.join().unwrap(),
        stderr: stderr.join().unwrap(),
    }
}

/// Expects success; returns standard output, as far as it is text.
#[track_caller]
pub fn succeeds(command: &mut Command) -> String {
    let output = finish(command);
    assert!(
        output.status.success(),
        "{command:?}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Expects an exit with an error code, not by a signal; returns standard error.
#[track_caller]
pub fn fails(command: &mut Command) -> String {
    let output = finish(command);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code().is_some_and(|code| code != 0),
        "{:?} of {command:?}\n{stderr}",
        output.status
    );
    stderr
}
