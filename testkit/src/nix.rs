//! Nix's programs, the sample store, and temporary stores for single tests.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::process::{finish, output, signal_if_alive, without_variables};
use crate::{eventually, procfs};

/// Returns a command for one of the installed Nix's programs; see [`Nix::command`].
pub fn nix(program: &str, home: &Path) -> Command {
    Nix::INSTALLED.command(program, home)
}

/// Error of a garbage collection or deletion while any process of the machine has a file open whose
/// path is longer than `PATH_MAX`, as in the tests of deep trees. Nix looks for roots among the
/// open files of all processes. Versions differ in the words before these.
const PATH_TOO_LONG: &str = "File name too long";

/// Runs one of Nix's programs, which may collect garbage. Repeats it if it fails because of a file
/// that a process of another test has open; nothing is deleted then.
#[track_caller]
pub fn finish_collecting(command: &mut Command) -> Output {
    let mut done = finish(command);
    eventually("Nix can look for roots", || {
        let is_disturbed =
            !done.status.success() && String::from_utf8_lossy(&done.stderr).contains(PATH_TOO_LONG);
        if is_disturbed {
            done = finish(command);
        }
        !is_disturbed
    });
    done
}

/// A version of Nix: the one that is installed on this machine, or a newer one that
/// `xtask setup --test` has unpacked.
#[derive(Debug, Clone)]
pub struct Nix(Option<Unpacked>);

#[derive(Debug, Clone)]
struct Unpacked {
    release: String,
    loader: PathBuf,
    program: PathBuf,
}

impl Nix {
    /// The version that is installed on this machine.
    pub const INSTALLED: Self = Self(None);

    /// Returns all versions: the installed one and the [newer](Self::newer) ones.
    pub fn all() -> Vec<Self> {
        [Self::INSTALLED].into_iter().chain(Self::newer()).collect()
    }

    /// Returns the unpacked versions. Prints a notice if there are none.
    #[expect(clippy::print_stderr, reason = "it shows what a test leaves out")]
    pub fn newer() -> Vec<Self> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.samovar/nix");
        let mut all: Vec<Unpacked> = entries(&dir)
            .iter()
            .filter_map(|dir| Unpacked::of(dir))
            .collect();
        if all.is_empty() {
            eprintln!("NOT TESTED: newer versions of Nix; `xtask setup --test` unpacks them");
        }
        all.sort_by(|one, other| one.release.cmp(&other.release));
        all.into_iter().map(|one| Self(Some(one))).collect()
    }

    /// Returns the Debian release whose packages contain this version; `None` for the installed
    /// version.
    pub fn release(&self) -> Option<&str> {
        self.0.as_ref().map(|unpacked| &*unpacked.release)
    }

    /// Returns a command for one of Nix's programs, isolated from this machine's configuration and
    /// caches. `home` becomes its home directory.
    pub fn command(&self, program: &str, home: &Path) -> Command {
        let Some(unpacked) = &self.0 else {
            return isolated(without_variables(program, &["NIX_"]), home);
        };
        let loader = unpacked.loader.to_str().unwrap();
        let mut command = isolated(without_variables(loader, &["NIX_", "LD_"]), home);
        let libraries = unpacked.loader.parent().unwrap();
        command.arg("--library-path").arg(libraries);
        command.args(["--argv0", program]).arg(&unpacked.program);
        command
    }

    /// Returns the version, such as `2.26.3`.
    #[track_caller]
    pub fn version(&self) -> String {
        let dir = tempfile::tempdir().unwrap();
        let line = output(self.command("nix", dir.path()).arg("--version"));
        line.trim()
            .rsplit(' ')
            .next()
            .unwrap_or_default()
            .to_owned()
    }
}

impl Unpacked {
    fn of(dir: &Path) -> Option<Self> {
        let root = dir.join("root").canonicalize().ok()?;
        let libraries = entries(&root.join("usr/lib"));
        let loader = libraries.iter().flat_map(|dir| entries(dir)).find(|file| {
            let name = file.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with("ld-linux")
        });
        Some(Self {
            release: dir.file_name()?.to_str()?.to_owned(),
            loader: loader?,
            program: root.join("usr/bin/nix"),
        })
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn isolated(mut command: Command, home: &Path) -> Command {
    command
        .env("HOME", home)
        .env("XDG_CACHE_HOME", home.join("cache"))
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("XDG_DATA_HOME", home.join("data"))
        .env("NIX_CONF_DIR", home.join("no-conf"))
        .env(
            "NIX_CONFIG",
            "experimental-features = nix-command\nbuild-users-group =\nsandbox = false\n",
        );
    command
}

/// Returns the root of the sample store: a chroot store that no test writes to.
#[track_caller]
pub fn sample_root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.samovar/sample");
    root.canonicalize().expect(
        "there is no sample store: run `cargo run -p xtask -- sample-store .samovar/sample`",
    )
}

/// Returns `sample.json`, the manifest of the sample store.
#[track_caller]
pub fn manifest() -> serde_json::Value {
    let text = fs::read(sample_root().join("sample.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Returns a store path of the sample by its name in the manifest.
#[track_caller]
pub fn sample(name: &str) -> String {
    let manifest = manifest();
    let path = manifest[name].as_str();
    path.unwrap_or_else(|| panic!("no {name} in the sample"))
        .to_owned()
}

/// Returns a list of store paths of the sample by its name in the manifest.
#[track_caller]
pub fn sample_list(name: &str) -> Vec<String> {
    let manifest = manifest();
    let list = manifest[name].as_array();
    let list = list.unwrap_or_else(|| panic!("no list {name} in the sample"));
    list.iter()
        .map(|path| path.as_str().unwrap().to_owned())
        .collect()
}

/// Returns the hash part of a store path.
pub fn hash_part(store_path: &str) -> &str {
    let base_name = store_path.rsplit('/').next().unwrap_or(store_path);
    &base_name[..32]
}

/// Returns the store URI of a chroot store.
pub fn local(root: &Path) -> String {
    format!("local?root={}", root.display())
}

/// Makes a key pair with Nix; returns the file of the secret key and the text of the public key.
#[track_caller]
pub fn key_pair(dir: &Path, name: &str) -> (PathBuf, String) {
    let secret = dir.join(format!("{name}.secret"));
    let public = dir.join(format!("{name}.public"));
    let mut command = nix("nix-store", dir);
    command.args(["--store", "dummy://", "--generate-binary-cache-key", name]);
    output(command.arg(&secret).arg(&public));
    (
        secret,
        fs::read_to_string(public).unwrap().trim().to_owned(),
    )
}

/// A temporary chroot store for one test.
#[derive(Debug)]
pub struct OwnStore {
    /// Temporary folder of the store; removed on drop.
    pub dir: tempfile::TempDir,
    /// The version of Nix that has made the store, and runs on it.
    pub nix: Nix,
}

impl OwnStore {
    /// Makes an empty store with the installed Nix.
    #[expect(clippy::new_without_default, reason = "it runs a program")]
    #[track_caller]
    pub fn new() -> Self {
        Self::of(Nix::INSTALLED)
    }

    /// Makes an empty store with this version of Nix.
    #[track_caller]
    pub fn of(nix: Nix) -> Self {
        let store = Self {
            dir: tempfile::tempdir().unwrap(),
            nix,
        };
        store.run("nix-store", &["--init"]);
        store
    }

    /// Returns the root of the store.
    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    /// Returns where the files of a store path are in the file system.
    pub fn real(&self, store_path: &str) -> PathBuf {
        self.root().join(store_path.trim_start_matches('/'))
    }

    /// Returns the path of the database.
    pub fn database(&self) -> PathBuf {
        self.root().join("nix/var/nix/db/db.sqlite")
    }

    /// Returns a command for one of Nix's programs on this store.
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.nix.command(program, self.root());
        command.arg("--store").arg(self.root());
        command
    }

    /// Runs one of Nix's programs on this store; returns its standard output.
    #[track_caller]
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = self.command(program);
        let output = finish_collecting(command.args(arguments));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}\n{stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Adds a file or directory to the store, named as it is on disk; returns its store path.
    #[track_caller]
    pub fn add(&self, path: &Path) -> String {
        let path = self.run("nix-store", &["--add", path.to_str().unwrap()]);
        path.trim().to_owned()
    }

    /// Adds a file with this name and content to the store; returns its store path.
    #[track_caller]
    pub fn add_file(&self, name: &str, content: &[u8]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        self.add(&path)
    }

    /// Returns the NAR that `nix-store --dump` makes of `real`, a store path's location or any
    /// other file.
    #[track_caller]
    pub fn dump(&self, real: &Path) -> Vec<u8> {
        let output = nix("nix-store", self.root())
            .arg("--dump")
            .arg(real)
            .output()
            .unwrap();
        assert!(output.status.success());
        output.stdout
    }

    /// Registers a path whose files already exist, as Nix registers the output of a build.
    #[track_caller]
    pub fn register(&self, store_path: &str) {
        let nar = self.dump(&self.real(store_path));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nar");
        fs::write(&file, &nar).unwrap();
        let mut hash = nix("nix", self.root());
        hash.args(["hash", "file", "--base16", "--type", "sha256"]);
        let hash = output(hash.arg(&file));
        self.register_row(store_path, hash.trim(), nar.len() as u64);
    }

    /// Registers a path with this NAR hash (in base 16) and NAR size, without reading its files.
    #[track_caller]
    pub fn register_row(&self, store_path: &str, nar_hash: &str, nar_size: u64) {
        let mut load = self.command("nix-store");
        let mut load = load.arg("--load-db").stdin(Stdio::piped()).spawn().unwrap();
        let row = format!("{store_path}\n{nar_hash}\n{nar_size}\n\n0\n");
        let mut stdin = load.stdin.take().unwrap();
        stdin.write_all(row.as_bytes()).unwrap();
        drop(stdin);
        assert!(load.wait().unwrap().success());
    }
}

/// A running `nix-daemon`; killed when dropped.
#[derive(Debug)]
pub struct Daemon(Child);

impl Daemon {
    /// Starts a daemon on the socket that a server of this store uses.
    #[track_caller]
    pub fn start(store: &OwnStore) -> Self {
        let mut command = store.nix.command("nix-daemon", store.root());
        command.env("NIX_REMOTE", local(store.root()));
        let socket = Self::socket(store);
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        Self::listening(command.env("NIX_DAEMON_SOCKET_PATH", &socket), &socket)
    }

    /// Returns the path of the daemon's socket that a server of this store uses.
    pub fn socket(store: &OwnStore) -> PathBuf {
        store.root().join("nix/var/nix/daemon-socket/socket")
    }

    /// Starts a daemon and waits until it listens on `socket`.
    #[track_caller]
    pub fn listening(command: &mut Command, socket: &Path) -> Self {
        fs::remove_file(socket).ok();
        command.stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let daemon = Self(command.spawn().expect("nix-daemon is installed"));
        eventually("nix-daemon listens", || UnixStream::connect(socket).is_ok());
        daemon
    }

    /// Returns the PID.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Sends a signal to the daemon's worker processes.
    pub fn signal_children(&self, name: &str) {
        signal_if_alive(&procfs::children(self.0.id()), name);
    }

    /// Kills the daemon and its worker processes, and waits until their sockets are closed: the
    /// workers inherit the one that listens.
    pub fn end_with_children(self) {
        let children = procfs::children(self.0.id());
        drop(self);
        signal_if_alive(&children, "KILL");
        eventually("the workers of nix-daemon end", || {
            let is_open = |pid: &u32| procfs::descriptor_count(*pid).unwrap_or(0) > 0;
            !children.iter().any(is_open)
        });
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
