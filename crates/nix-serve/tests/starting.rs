//! A server that cannot start reports in one line what is wrong and how to fix it. A server that
//! can start serves the store that it was given.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_process;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

use support::{OwnStore, eventually, hash_part, local, nix, nix_serve, of_sample, output};
use support_process::{
    Connection, Process, PublicBinary, Shell, at, is_root, make_public, once, public_store,
    refuses_to_start, set_mode,
};
use testkit::sqlite::run as sqlite;

/// Starts a server of a store in which `path` is valid, and requests its narinfo.
#[track_caller]
fn serves(command: &mut Command, path: &str) -> Process {
    let (server, addr) = Process::serving(command.args(["--listen", "127.0.0.1:0"]));
    let reply = once(addr, &format!("/{}.narinfo", hash_part(path)));
    assert_eq!(reply.status, 200, "{:?}", server.lines());
    assert!(reply.text().starts_with(&format!("StorePath: {path}\n")));
    server
}

// Listening sockets.

#[test]
fn a_port_in_use_is_one_line() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let mut command = of_sample();
    refuses_to_start(
        command.args(["--listen", &address]),
        &["cannot listen on", &address, "set --listen", "stop it"],
    );
    // A second server must be refused, although the sockets of a server have SO_REUSEPORT.
    let (_server, addr) = Process::serving(of_sample().args(["--listen", "127.0.0.1:0"]));
    let address = addr.to_string();
    let mut command = of_sample();
    refuses_to_start(
        command.args(["--listen", &address]),
        &["cannot listen on", &address],
    );
}

#[test]
fn an_admin_address_in_use_is_one_line() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let mut command = of_sample();
    refuses_to_start(
        command.args(["--listen", "127.0.0.1:0", "--admin", &address]),
        &[
            "metrics and status page: cannot listen on",
            "set --admin-listen to another port",
        ],
    );
}

#[test]
fn an_address_of_another_machine_is_one_line() {
    let mut command = of_sample();
    refuses_to_start(
        command.args(["--listen", "192.0.2.1:5000"]),
        &["192.0.2.1:5000", "this machine has no such address"],
    );
}

#[test]
fn a_socket_file_that_a_dead_server_left_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    drop(UnixListener::bind(&socket).unwrap());
    // A child of another test may have inherited the socket, until it executes its program.
    eventually("it is dead", || UnixStream::connect(&socket).is_err());
    let _server = Process::spawn(of_sample().arg("--listen").arg(&socket));
    eventually("it listens", || UnixStream::connect(&socket).is_ok());
    assert_eq!(Connection::unix(&socket).get("/nix-cache-info").status, 200);
}

#[test]
fn the_socket_of_a_living_server_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let mut first = Process::spawn(of_sample().arg("--socket").arg(&socket));
    eventually("it listens", || UnixStream::connect(&socket).is_ok());
    refuses_to_start(
        of_sample().arg("--listen").arg(&socket),
        &[
            "cannot listen on",
            socket.to_str().unwrap(),
            "another server listens there, stop it",
        ],
    );
    assert_eq!(Connection::unix(&socket).get("/nix-cache-info").status, 200);
    assert!(first.is_alive());
}

/// A file that is not a socket is never replaced: the server does not start.
#[test]
fn a_file_that_is_no_socket_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("precious");
    fs::write(&file, "precious").unwrap();
    refuses_to_start(
        of_sample().arg("--listen").arg(&file),
        &[
            "cannot listen on",
            file.to_str().unwrap(),
            "no socket",
            "move it away",
        ],
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    let missing = dir.path().join("missing/socket");
    refuses_to_start(
        of_sample().arg("--listen").arg(&missing),
        &[missing.to_str().unwrap(), "directory does not exist"],
    );
}

#[test]
fn a_start_that_fails_leaves_no_socket_file() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, file) = (dir.path().join("socket"), dir.path().join("file"));
    fs::write(&file, "").unwrap();
    let mut command = of_sample();
    command
        .arg("--listen")
        .arg(&socket)
        .arg("--listen")
        .arg(&file);
    refuses_to_start(&mut command, &["no socket"]);
    assert!(!socket.exists());
}

// The store.

#[test]
fn no_database_is_one_line_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &local(dir.path())]);
    refuses_to_start(
        &mut command,
        &[
            "the database does not exist",
            &at(dir.path(), "nix/var/nix/db/db.sqlite"),
            "nix-daemon",
        ],
    );
    // The server creates nothing: only Nix creates stores.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_database_that_is_none_is_one_line() {
    let store = OwnStore::new();
    fs::write(store.database(), "junk ".repeat(1000)).unwrap();
    let mut command = nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
    refuses_to_start(
        &mut command,
        &[store.database().to_str().unwrap(), "malformed"],
    );
}

#[test]
fn a_store_uri_that_means_nothing_is_one_line() {
    for (uri, part) in [
        ("s3://bucket", "s3"),
        ("https://cache.nixos.org", "https"),
        ("ssh-ng://host", "ssh-ng"),
        ("local?root=relative", "root"),
        ("local?rot=/", "did you mean \"root\"?"),
        ("local?state=%zz", "state"),
        ("dummy://", "dummy"),
        ("nonsense", "nonsense"),
    ] {
        let mut command = nix_serve();
        command.args(["--listen", "127.0.0.1:0", "--store", uri]);
        refuses_to_start(&mut command, &["store URI", uri, part]);
        let mut command = nix_serve();
        command
            .args(["--listen", "127.0.0.1:0"])
            .env("NIX_REMOTE", uri);
        refuses_to_start(&mut command, &["store URI", uri, part]);
    }
}

#[test]
fn every_uri_of_a_local_store() {
    let store = OwnStore::new();
    let path = store.add_file("a", b"a");
    let root = store.root().to_str().unwrap();
    let state = at(store.root(), "nix/var/nix");
    let real = at(store.root(), "nix/store");
    for uri in [
        format!("local?root={root}"),
        format!("local?root={}", root.replace('/', "%2F")),
        format!("local?real={real}&state={state}"),
        format!("local?root=/nowhere&real={real}&state={state}"),
        format!("local?root={root}&read-only=true"),
        root.to_owned(),
        format!("local://{root}"),
        format!("auto?root={root}&path-info-cache-size=0"),
    ] {
        let server = serves(nix_serve().args(["--store", &uri]), &path);
        assert_eq!(server.count("warning"), 0, "{uri}: {:?}", server.lines());
        let server = serves(nix_serve().env("NIX_REMOTE", &uri), &path);
        assert_eq!(server.count("warning"), 0, "{uri}: {:?}", server.lines());
        // The option overrides the environment variable.
        serves(
            nix_serve()
                .args(["--store", &uri])
                .env("NIX_REMOTE", "/nowhere"),
            &path,
        );
    }
    let mut command = nix_serve();
    command.current_dir(store.root().parent().unwrap());
    let name = store.root().file_name().unwrap().to_str().unwrap();
    serves(command.args(["--store", &format!("./{name}")]), &path);
    let server = serves(
        nix_serve().args(["--store", &format!("local?root={root}&frob=1")]),
        &path,
    );
    assert_eq!(server.count("unknown parameter \"frob\""), 1);
}

#[test]
fn nars_come_from_where_the_files_really_are() {
    let store = OwnStore::new();
    let path = store.add_file("a", b"content");
    let (real, state) = (at(store.root(), "moved"), at(store.root(), "nix/var/nix"));
    fs::rename(store.root().join("nix/store"), &real).unwrap();
    let mut command = nix_serve();
    command.args(["--store", &format!("local?real={real}&state={state}")]);
    let (_server, addr) = Process::serving(command.args(["--listen", "127.0.0.1:0"]));
    let nar = once(addr, &format!("/nar/{}.nar", hash_part(&path)));
    assert_eq!(nar.status, 200);
    assert!(nar.body.windows(7).any(|part| part == b"content"));
}

/// A store with another logical directory, configured by Nix's environment variables.
struct Elsewhere {
    dir: tempfile::TempDir,
}

impl Elsewhere {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        set_mode(dir.path(), 0o755);
        let store = Self { dir };
        output(store.apply(&mut store.nix("nix-store")).arg("--init"));
        store
    }

    fn at(&self, name: &str) -> String {
        at(self.dir.path(), name)
    }

    fn nix(&self, program: &str) -> Command {
        nix(program, self.dir.path())
    }

    fn apply<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("NIX_STORE_DIR", self.at("s"))
            .env("NIX_STATE_DIR", self.at("v"))
            .env("NIX_LOG_DIR", self.at("l"))
            .env("NIX_CONF_DIR", self.at("c"))
            .env("NIX_DAEMON_SOCKET_PATH", self.at("socket"))
            .env("NIX_IGNORE_SYMLINK_STORE", "1")
    }

    fn add(&self, name: &str) -> String {
        let file = self.dir.path().join(name);
        fs::write(&file, "content").unwrap();
        output(
            self.apply(&mut self.nix("nix-store"))
                .arg("--add")
                .arg(file),
        )
        .trim()
        .to_owned()
    }
}

#[test]
fn the_directories_of_the_environment() {
    let store = Elsewhere::new();
    let path = store.add("a");
    assert!(path.starts_with(&store.at("s/")));
    let mut command = nix_serve();
    let (_server, addr) =
        Process::serving(store.apply(&mut command).args(["--listen", "127.0.0.1:0"]));
    let mut connection = Connection::connect(addr);
    let info = format!(
        "StoreDir: {}\nWantMassQuery: 1\nPriority: 30\n",
        store.at("s")
    );
    connection.check_text("/nix-cache-info", 200, &info);
    let narinfo = connection.get(&format!("/{}.narinfo", hash_part(&path)));
    assert!(narinfo.text().starts_with(&format!("StorePath: {path}\n")));
    let drvs = store.dir.path().join("l/drvs/zz");
    fs::create_dir_all(&drvs).unwrap();
    fs::write(drvs.join(format!("{}-x.drv", "z".repeat(30))), "log").unwrap();
    let log = connection.get(&format!("/log/{}-x.drv", "z".repeat(32)));
    assert_eq!((log.status, log.text().as_str()), (200, "log"));
    for variable in ["NIX_STORE_DIR", "NIX_STATE_DIR", "NIX_LOG_DIR"] {
        let mut command = nix_serve();
        store
            .apply(&mut command)
            .env(variable, "relative")
            .args(["--listen", "127.0.0.1:0"]);
        refuses_to_start(&mut command, &[variable, "absolute"]);
    }
}

// Unprivileged users.

/// A server whose user may read but not write starts in every state of the database, or says how to
/// fix it.
#[test]
fn without_privileges_whatever_state_the_database_is_in() {
    if !is_root() {
        return;
    }
    let binary = PublicBinary::new();
    let store = public_store();
    let path = store.add_file("a", b"a");
    let database = store.database();
    let as_nobody = || {
        make_public(store.root());
        let mut command = binary.as_nobody();
        command.args(["--store", &local(store.root())]);
        command
    };
    let listening = || {
        let mut command = as_nobody();
        command.args(["--listen", "127.0.0.1:0"]);
        command
    };
    let database_name = database.to_str().unwrap();

    // No process has the database open, and the WAL files are gone, as Nix before 2.22 leaves them.
    assert!(!database.with_extension("sqlite-wal").exists());
    drop(serves(&mut as_nobody(), &path));

    // Another process has the database open.
    let holder = Shell::open(&database, "begin; select count(*) from ValidPaths;");
    drop(serves(&mut as_nobody(), &path));

    // No process has the database open, and the WAL files exist, as Nix from 2.22 on leaves them.
    // Made by copying, because closing the last connection would remove them.
    let (db, copy) = (at(store.root(), "nix/var/nix/db"), at(store.root(), "copy"));
    sqlite(&database, "pragma wal_checkpoint(truncate)");
    output(Command::new("cp").args(["-r", &db, &copy]));
    drop(holder);
    fs::remove_dir_all(&db).unwrap();
    fs::rename(&copy, &db).unwrap();
    assert!(Path::new(&format!("{database_name}-shm")).exists());
    drop(serves(&mut as_nobody(), &path));

    // A WAL without its index: an empty one is not needed, one with commits cannot be read.
    fs::remove_file(format!("{database_name}-shm")).unwrap();
    drop(serves(&mut as_nobody(), &path));
    let wal = format!("{database_name}-wal");
    fs::write(&wal, "commits").unwrap();
    refuses_to_start(
        &mut listening(),
        &[database_name, "WAL index is missing", "start nix-daemon"],
    );
    fs::remove_file(wal).unwrap();

    // A database that the user cannot read.
    let mut command = listening();
    set_mode(&database, 0o600);
    refuses_to_start(&mut command, &[database_name, "not readable for this user"]);
    let mut command = listening();
    set_mode(db.as_ref(), 0o700);
    refuses_to_start(&mut command, &[database_name, "not readable for this user"]);

    // Without WAL mode the server need not create a file.
    sqlite(&database, "pragma journal_mode = delete");
    drop(serves(&mut as_nobody(), &path));
    let frozen = format!("{}&read-only=true", local(store.root()));
    let mut command = as_nobody();
    drop(serves(command.args(["--store", &frozen]), &path));
}

// The daemon.

struct Daemon(std::process::Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn daemon_of(store: &Elsewhere) -> Daemon {
    let mut command = store.nix("nix-daemon");
    store.apply(&mut command).env("NIX_REMOTE", "local");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let daemon = Daemon(command.spawn().unwrap());
    eventually("nix-daemon listens", || {
        UnixStream::connect(store.at("socket")).is_ok()
    });
    daemon
}

/// The server uses the daemon if it cannot read the database.
#[test]
fn by_the_daemon_where_the_database_cannot_be_read() {
    if !is_root() {
        return;
    }
    let binary = PublicBinary::new();
    for remote in ["daemon", "auto?path-info-cache-size=0", "", "unix"] {
        let store = Elsewhere::new();
        let path = store.add("a");
        make_public(store.dir.path());
        set_mode(store.at("v/db/db.sqlite").as_ref(), 0o600);
        let remote = match remote {
            "unix" => format!("unix://{}", store.at("socket")),
            other => other.to_owned(),
        };
        let as_nobody = || {
            let mut command = binary.as_nobody();
            store.apply(&mut command).env("NIX_REMOTE", &remote);
            command
        };
        refuses_to_start(
            as_nobody().args(["--listen", "127.0.0.1:0"]),
            &[
                &store.at("v/db/db.sqlite"),
                &store.at("socket"),
                "nix-daemon",
            ],
        );
        let _daemon = daemon_of(&store);
        let (server, addr) = Process::serving(as_nobody().args(["--listen", "127.0.0.1:0"]));
        let mut connection = Connection::connect(addr);
        let narinfo = connection.get(&format!("/{}.narinfo", hash_part(&path)));
        assert_eq!(narinfo.status, 200, "{remote}: {:?}", server.lines());
        assert!(narinfo.text().starts_with(&format!("StorePath: {path}\n")));
        let nar = connection.get(&format!("/nar/{}.nar", hash_part(&path)));
        assert_eq!(nar.status, 200);
        let dumped = nix("nix-store", store.dir.path())
            .args(["--dump", &path])
            .output()
            .unwrap();
        assert!(nar.body == dumped.stdout);
        connection.check_text(
            &format!("/{}.narinfo", "z".repeat(32)),
            404,
            "No such path.\n",
        );
        // Paths added later are served at once.
        let later = store.add(&format!("later-{}", remote.len()));
        let found = connection.get(&format!("/{}.narinfo", hash_part(&later)));
        assert_eq!(found.status, 200, "{remote}");
    }
}

#[test]
fn what_it_listens_on_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let mut command = of_sample();
    command.arg("-l").arg(&socket).args(["-l", "127.0.0.1:0"]);
    let server = Process::spawn(command.args(["--path", "/cache"]));
    let line = server.wait_for("serving /nix/store on http://127.0.0.1:");
    assert!(line.ends_with("/cache"), "{line}");
    server.wait_for(&format!("serving /nix/store on unix:{}", socket.display()));
    assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
}
