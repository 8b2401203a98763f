//! PostgreSQL servers of tests. The data and the socket of each are in a temporary directory, which
//! is removed after the test.
//!
//! * [`Postgres::start`] starts a server for one test, which may stop, kill, pause or copy it.
//! * [`Postgres::shared`] starts one server for all tests of a process; each test
//!   gets a database of its own there.

#[cfg(feature = "postgres")]
mod connections;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

#[cfg(feature = "postgres")]
pub use connections::{Client, NoTls};
use tempfile::TempDir;

use crate::process::{signal, signal_if_alive};
use crate::{eventually, free_port, procfs};

/// Runs a server until the test process has ended, however that happens: its end closes the
/// standard input. Then removes the directory.
const GUARD: &str = "\
    folder=$1; shift
    \"$@\" </dev/null & server=$!
    read -r _
    kill -QUIT $server
    wait $server
    rm -rf \"$folder\"";

/// Port in the name of the socket of a server without a port.
const PORT: u16 = 5432;

/// A PostgreSQL server, which may be stopped temporarily.
#[derive(Debug)]
pub struct Postgres {
    folder: TempDir,
    programs: PathBuf,
    /// Additional settings, as `name=value`.
    settings: Vec<String>,
    /// Port on the loopback interface. `None`: the server has a socket in its directory only.
    port: Option<u16>,
    /// User and group of the server, because PostgreSQL refuses to run as root.
    user: Option<(u32, u32)>,
    /// The server, or the guard of a shared one.
    child: Option<Child>,
}

impl Postgres {
    /// Creates a database and starts its server.
    pub fn start() -> Self {
        Self::with_settings(&[])
    }

    /// Creates a database and starts its server with additional settings, as `name=value`. With the
    /// setting `listen_addresses`, the server gets a free port.
    pub fn with_settings(settings: &[&str]) -> Self {
        let mut postgres = Self::create(settings);
        postgres.resume();
        postgres
    }

    /// Returns a server for all tests of this process. Starts it if necessary.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| {
            let mut postgres = Self::create(&["fsync=off", "max_connections=200"]);
            let server = postgres.server();
            let mut guard = postgres.command_of(Path::new("/bin/sh"));
            guard.args(["-c", GUARD, "sh"]).arg(postgres.folder.path());
            guard.arg(server.get_program()).args(server.get_args());
            guard.stdin(Stdio::piped());
            postgres.child = Some(silent(&mut guard).spawn().unwrap());
            postgres.wait();
            postgres
        })
    }

    /// Returns whether PostgreSQL is installed.
    pub fn is_installed() -> bool {
        find_programs().is_some()
    }

    /// Creates a server that copies this one until it is promoted. Its clients may
    /// read.
    pub fn standby(&self, settings: &[&str]) -> Self {
        let mut standby = Self::prepare(settings);
        let mut backup = standby.command("pg_basebackup");
        backup.args([
            "--write-recovery-conf",
            "--checkpoint=fast",
            "--no-sync",
            "--pgdata",
        ]);
        backup.arg(standby.data()).arg("--dbname").arg(self.url());
        let output = backup.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        standby.resume();
        standby
    }

    /// Returns a server without data.
    fn prepare(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let is_root = folder.path().metadata().unwrap().uid() == 0;
        let user = is_root.then(|| (id("-u"), id("-g")));
        if let Some((uid, gid)) = user {
            chown(folder.path(), Some(uid), Some(gid)).unwrap();
        }
        let listens = settings
            .iter()
            .any(|it| it.starts_with("listen_addresses="));
        let programs = find_programs();
        Self {
            folder,
            programs: programs.unwrap_or_else(|| panic!("no PostgreSQL: run `make setup-test`")),
            settings: settings.iter().map(|&setting| setting.to_owned()).collect(),
            port: listens.then(free_port),
            user,
            child: None,
        }
    }

    fn create(settings: &[&str]) -> Self {
        let postgres = Self::prepare(settings);
        let mut initdb = postgres.command("initdb");
        initdb.args(["--username=postgres", "--auth=trust", "--no-sync"]);
        initdb.args(["--encoding=UTF8", "--locale=C", "--pgdata"]);
        let output = initdb.arg(postgres.data()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        postgres
    }

    /// Returns the URL of a database.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// Returns the URL of a database with this name.
    pub fn url_of(&self, database: &str) -> String {
        let folder = self.folder.path().display();
        let port = self
            .port
            .map(|port| format!("&port={port}"))
            .unwrap_or_default();
        format!("postgresql:///{database}?host={folder}&user=postgres{port}")
    }

    /// Returns the port on the loopback interface.
    pub fn port(&self) -> u16 {
        self.port.unwrap()
    }

    /// Returns the directory of the server's data. The server's user owns it.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
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
        let asking = "pg_isready";
        symlink(self.programs.join(asking), programs.join(asking)).unwrap();
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
            signal(child.id(), "QUIT");
            child.wait().unwrap();
        }
    }

    /// Kills all processes of the server.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let all = procfs::family(child.id());
            signal_if_alive(&all, "KILL");
            child.wait().unwrap();
        }
    }

    /// Stops all processes of the server until [`unpause`](Self::unpause): it accepts connections,
    /// and answers nothing.
    pub fn pause(&self) {
        Self::signal_all(self.child.as_ref().unwrap(), "STOP");
    }

    /// Lets all processes of the server run again.
    pub fn unpause(&self) {
        Self::signal_all(self.child.as_ref().unwrap(), "CONT");
    }

    /// Returns a dump of the database `postgres`, as `pg_dump` makes it.
    pub fn dump(&self) -> Vec<u8> {
        let mut dump = self.command("pg_dump");
        dump.args(["--format", "custom", "--dbname", &self.url()]);
        let dumped = dump.output().unwrap();
        let text = String::from_utf8_lossy(&dumped.stderr);
        assert!(dumped.status.success(), "{text}");
        dumped.stdout
    }

    /// Replaces the content of the database `postgres` by a dump, with these options of
    /// `pg_restore`.
    pub fn restore(&self, dump: &[u8], options: &[&str]) {
        self.write_file("dump", dump);
        let mut restore = self.command("pg_restore");
        restore.args(["--clean", "--if-exists", "--dbname", &self.url()]);
        let restored = restore.args(options).arg(self.data().join("dump")).output();
        let restored = restored.unwrap();
        let text = String::from_utf8_lossy(&restored.stderr);
        assert!(restored.status.success(), "{text}");
    }

    /// Writes a file into the directory of the data, which the server's user alone can read.
    pub fn write_file(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.data().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        if let Some((uid, gid)) = self.user {
            chown(&path, Some(uid), Some(gid)).unwrap();
        }
    }

    fn signal_all(child: &Child, name: &str) {
        // The first one, so that it starts no others meanwhile.
        signal(child.id(), name);
        signal_if_alive(&procfs::children(child.id()), name);
    }

    /// Starts the server after [`stop_at_once`](Self::stop_at_once) or [`kill`](Self::kill).
    pub fn resume(&mut self) {
        self.child = Some(silent(&mut self.server()).spawn().unwrap());
        self.wait();
    }

    fn wait(&self) {
        let port = self.port.unwrap_or(PORT).to_string();
        eventually("PostgreSQL answers", || {
            let mut asked = self.command("pg_isready");
            asked.arg("--host").arg(self.folder.path());
            let asked = silent(asked.args(["--port", &port])).status();
            asked.unwrap().success()
        });
    }

    /// Returns the command of the server.
    fn server(&self) -> Command {
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data());
        command.arg("-k").arg(self.folder.path());
        command.args(["-c", "shared_buffers=32MB"]);
        match self.port {
            Some(port) => command.args(["-p", &port.to_string()]),
            None => command.args(["-c", "listen_addresses="]),
        };
        for setting in &self.settings {
            command.args(["-c", setting]);
        }
        command
    }

    fn command(&self, program: &str) -> Command {
        self.command_of(&self.programs.join(program))
    }

    fn command_of(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder.path());
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }
}

fn silent(command: &mut Command) -> &mut Command {
    command.stdout(Stdio::null()).stderr(Stdio::null())
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(child) = &self.child {
            // A test has failed while the server was paused: then it would never end.
            Self::signal_all(child, "CONT");
        }
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
/// PATH. `None`: it is not installed.
fn find_programs() -> Option<PathBuf> {
    let versions = Path::new("/usr/lib/postgresql").read_dir().ok()?;
    let mut folders: Vec<_> = versions.map(|it| it.unwrap().path().join("bin")).collect();
    folders.retain(|it| it.join("initdb").exists());
    folders.sort();
    folders.pop()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_starts_again_after_its_end() {
        if !Postgres::is_installed() {
            return;
        }
        let mut postgres = Postgres::with_settings(&["listen_addresses=127.0.0.1"]);
        let is_there = |postgres: &Postgres| {
            std::net::TcpStream::connect(("127.0.0.1", postgres.port())).is_ok()
        };
        assert!(is_there(&postgres));
        postgres.kill();
        assert!(!is_there(&postgres));
        postgres.resume();
        postgres.pause();
        assert!(is_there(&postgres));
        postgres.unpause();
        postgres.stop_at_once();
        assert!(!is_there(&postgres));
    }
}
