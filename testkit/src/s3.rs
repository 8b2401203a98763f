//! s3s-fs, a small S3 engine, as a process of a test.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Process;
use crate::{eventually, free_port};

/// Access key of the engine.
pub const ACCESS_KEY: &str = "test";

/// Secret key of the engine.
pub const SECRET_KEY: &str = "testtest";

/// Name of the bucket that exists from the start.
pub const BUCKET: &str = "cache";

/// A running engine. An object with the key `KEY` is the file `KEY` in the directory of its bucket.
#[derive(Debug)]
pub struct S3Engine {
    /// The process; `None` between [`kill`](Self::kill) and [`resume`](Self::resume).
    pub process: Option<Process>,
    dir: Directory,
    port: u16,
}

#[derive(Debug)]
enum Directory {
    Temporary(tempfile::TempDir),
    Kept(PathBuf),
}

impl S3Engine {
    /// Starts an engine whose objects are removed with it. Returns `None`, and prints that, if it
    /// is not installed. In CI it must be.
    #[track_caller]
    pub fn start() -> Option<Self> {
        Self::of(Directory::Temporary(tempfile::tempdir().unwrap()))
    }

    /// As [`start`](Self::start), with objects that stay in this directory.
    #[track_caller]
    pub fn in_directory(dir: &Path) -> Option<Self> {
        Self::of(Directory::Kept(dir.to_owned()))
    }

    fn of(dir: Directory) -> Option<Self> {
        program()?;
        let mut engine = Self {
            process: None,
            dir,
            port: free_port(),
        };
        fs::create_dir_all(engine.bucket()).unwrap();
        engine.resume();
        Some(engine)
    }

    /// Returns the address.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Returns the directory with the objects of the bucket.
    pub fn bucket(&self) -> PathBuf {
        let root = match &self.dir {
            Directory::Temporary(dir) => dir.path(),
            Directory::Kept(dir) => dir,
        };
        root.join(BUCKET)
    }

    /// Returns the URL of the bucket for `bucket.url`.
    pub fn url(&self) -> String {
        Self::url_at(self.address())
    }

    /// Returns the URL of the bucket for clients that reach the engine at another address, such as
    /// that of a proxy.
    pub fn url_at(address: SocketAddr) -> String {
        format!("s3://{BUCKET}?region=us-east-1&style=path&endpoint=http://{address}")
    }

    /// Writes a file with the access key for `bucket.credentials-file`.
    pub fn write_credentials(file: &Path) {
        fs::write(file, format!("{ACCESS_KEY}\n{SECRET_KEY}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(file, mode).unwrap();
    }

    /// Kills the engine.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts the engine again after [`kill`](Self::kill), on the same port.
    #[track_caller]
    pub fn resume(&mut self) {
        let mut command = Command::new(program().unwrap());
        command.args(["--host", "127.0.0.1", "--port", &self.port.to_string()]);
        command.args(["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY]);
        let root = self.bucket();
        command.arg(root.parent().unwrap());
        // It logs each request otherwise.
        command.env("RUST_LOG", "error");
        self.process = Some(Process::spawn(&mut command));
        eventually("the S3 engine answers", || {
            TcpStream::connect(self.address()).is_ok()
        });
    }
}

/// Returns the program, which `xtask setup --test` installs; `None` if it is missing.
#[expect(clippy::print_stderr, reason = "it shows what a test leaves out")]
fn program() -> Option<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.samovar/tools/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = std::iter::once(tools).chain(std::env::split_paths(&path));
    let found = all.find_map(|dir| Some(dir.join("s3s-fs")).filter(|file| file.exists()));
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "no s3s-fs");
        eprintln!("NOT TESTED: S3; there is no s3s-fs here: `xtask setup --test` installs it");
    }
    found
}
