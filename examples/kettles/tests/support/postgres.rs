//! A PostgreSQL of the test's own: in a temporary folder, on a socket there, gone with the test.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy allows these only inside functions marked as tests"
)]

use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use postgres::{Client, NoTls};
use tempfile::TempDir;

use super::wait_until;

/// A server that runs, or is stopped for a while.
pub(crate) struct Postgres {
    folder: TempDir,
    programs: PathBuf,
    /// Whom it runs as: it refuses to be root.
    user: Option<(u32, u32)>,
    child: Option<Child>,
}

impl Postgres {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let is_root = folder.path().metadata().unwrap().uid() == 0;
        let user = is_root.then(|| (id("-u"), id("-g")));
        if let Some((uid, gid)) = user {
            chown(folder.path(), Some(uid), Some(gid)).unwrap();
        }
        let mut postgres = Self {
            folder,
            programs: programs(),
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

    /// As `--database` takes it.
    pub(crate) fn url(&self) -> String {
        let folder = self.folder.path().display();
        format!("postgresql:///postgres?host={folder}&user=postgres")
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.url(), NoTls).unwrap()
    }

    /// What a power cut leaves: no last words, no checkpoint.
    pub(crate) fn stop_at_once(&mut self) {
        if let Some(mut child) = self.child.take() {
            let pid = child.id().to_string();
            let kill = Command::new("kill").args(["-s", "QUIT", &pid]).status();
            assert!(kill.unwrap().success());
            child.wait().unwrap();
        }
    }

    pub(crate) fn resume(&mut self) {
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
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap());
        wait_until("PostgreSQL answers", || {
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

fn id(of: &str) -> u32 {
    let output = Command::new("id").args([of, "postgres"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let id = text.trim().parse();
    id.unwrap_or_else(|_| panic!("no user postgres: run `make setup-test`"))
}

/// Where Debian keeps them, beside other versions and out of PATH.
fn programs() -> PathBuf {
    let versions = Path::new("/usr/lib/postgresql").read_dir();
    let versions = versions.unwrap_or_else(|_| panic!("no PostgreSQL: run `make setup-test`"));
    let mut folders: Vec<_> = versions.map(|it| it.unwrap().path().join("bin")).collect();
    folders.retain(|it| it.join("initdb").exists());
    folders.sort();
    folders.pop().unwrap()
}
