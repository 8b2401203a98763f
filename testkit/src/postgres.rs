//! A PostgreSQL server for one test. Its data and its socket are in a temporary directory, which is
//! removed after the test.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use postgres::{Client, NoTls};
use tempfile::TempDir;

use crate::eventually;

/// A PostgreSQL server, which may be stopped temporarily.
#[derive(Debug)]
pub struct Postgres {
    folder: TempDir,
    programs: PathBuf,
    /// Additional settings, as `name=value`.
    settings: Vec<String>,
    /// User and group of the server, because PostgreSQL refuses to run as root.
    user: Option<(u32, u32)>,
    child: Option<Child>,
}

impl Postgres {
    /// Creates a database and starts its server.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let is_root = folder.path().metadata().unwrap().uid() == 0;
        let user = is_root.then(|| (id("-u"), id("-g")));
        if let Some((uid, gid)) = user {
            chown(folder.path(), Some(uid), Some(gid)).unwrap();
        }
        let mut postgres = Self {
            folder,
            programs: programs(),
            settings: Vec::new(),
            user,
            child: None,
        };
        let mut initdb = postgres.command("initdb");
        initdb.args(["--username=postgres", "--auth=trust", "--no-sync"]);
        initdb.args(["--encoding=UTF8", "--locale=C", "--pgdata"]);
        let output = initdb.arg(postgres.data()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        postgres.resume();
        postgres
    }

    /// Returns the URL of the database.
    pub fn url(&self) -> String {
        let folder = self.folder.path().display();
        format!("postgresql:///postgres?host={folder}&user=postgres")
    }

    /// Opens a connection.
    pub fn client(&self) -> Client {
        Client::connect(&self.url(), NoTls).unwrap()
    }

    /// Restarts the server as a copy that offers an extension without contents.
    ///
    /// PostgreSQL searches for extensions relative to its executable, so the copy contains links to
    /// all other files.
    pub fn offer(&mut self, extension: &str) {
        self.stop_at_once();
        let root = self.folder.path().join("copy");
        let programs = root.join(self.programs.strip_prefix("/").unwrap());
        fs::create_dir_all(&programs).unwrap();
        fs::copy(self.programs.join("postgres"), programs.join("postgres")).unwrap();
        let version = self.programs.parent().unwrap();
        symlink(version.join("lib"), programs.with_file_name("lib")).unwrap();
        let share = Path::new("/usr/share/postgresql").join(version.file_name().unwrap());
        let copy = root.join(share.strip_prefix("/").unwrap());
        link_all(&share, &copy, "extension");
        let extensions = copy.join("extension");
        link_all(&share.join("extension"), &extensions, "");
        let control = "default_version = '1'\ntrusted = true\n";
        fs::write(extensions.join(format!("{extension}.control")), control).unwrap();
        fs::write(extensions.join(format!("{extension}--1.sql")), "").unwrap();
        self.programs = programs;
        self.settings.push(format!("{extension}.disable_load=off"));
        self.resume();
    }

    /// Stops the server as a power failure does: without shutdown and checkpoint.
    pub fn stop_at_once(&mut self) {
        if let Some(mut child) = self.child.take() {
            let pid = child.id().to_string();
            let kill = Command::new("kill").args(["-s", "QUIT", &pid]).status();
            assert!(kill.unwrap().success());
            child.wait().unwrap();
        }
    }

    /// Starts the server after [`stop_at_once`](Self::stop_at_once).
    pub fn resume(&mut self) {
        let folder = self.folder.path().display().to_string();
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data());
        command.args([
            "-k",
            &folder,
            "-c",
            "listen_addresses=",
            "-c",
            "shared_buffers=32MB",
        ]);
        for setting in &self.settings {
            command.args(["-c", setting]);
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap());
        eventually("PostgreSQL answers", || {
            Client::connect(&self.url(), NoTls).is_ok()
        });
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.current_dir(self.folder.path());
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop_at_once();
    }
}

/// Links `copy` to everything in `folder` except `name`.
fn link_all(folder: &Path, copy: &Path, name: &str) {
    fs::create_dir_all(copy).unwrap();
    for entry in folder.read_dir().unwrap().map(Result::unwrap) {
        if entry.file_name() != name {
            symlink(entry.path(), copy.join(entry.file_name())).unwrap();
        }
    }
}

fn id(of: &str) -> u32 {
    let output = Command::new("id").args([of, "postgres"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let id = text.trim().parse();
    id.unwrap_or_else(|_| panic!("no user postgres: run `make setup-test`"))
}

/// Returns the directory of PostgreSQL's programs, which Debian keeps per version and outside of
/// PATH.
fn programs() -> PathBuf {
    let versions = Path::new("/usr/lib/postgresql").read_dir();
    let versions = versions.unwrap_or_else(|_| panic!("no PostgreSQL: run `make setup-test`"));
    let mut folders: Vec<_> = versions.map(|it| it.unwrap().path().join("bin")).collect();
    folders.retain(|it| it.join("initdb").exists());
    folders.sort();
    folders.pop().unwrap()
}
