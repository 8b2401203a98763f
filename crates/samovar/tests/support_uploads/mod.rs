//! Servers that accept uploads, their tokens, and generated paths to upload.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    dead_code,
    clippy::print_stdout,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use samovar_nix::nixbase32;
use samovar_storage::DATABASE;
use samovar_storage::metadata::{Database, NewToken, tokens};
use samovar_storage::token::{Rights, TokenHash};
use sha2::{Digest as _, Sha256};
use testkit::eventually;
use testkit::http1::{Connection, Response, exchange};
use testkit::nar::Node;
use testkit::nix::{OwnStore, hash_part, key_pair, local, nix};
use testkit::process::{Process, output};
use testkit::sqlite;

use crate::support::{bare, samovar};

/// The directories, configuration and signing key of a server that accepts uploads. Tests start and
/// stop the server.
pub(crate) struct Site {
    dir: tempfile::TempDir,
    storage: PathBuf,
    live: OwnStore,
    pub(crate) public_key: String,
}

impl Site {
    /// Creates a site with an empty live Nix store.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let storage = dir.path().join("storage");
        Self::with_storage(dir, storage)
    }

    /// Creates a site with this storage directory, which need not exist.
    pub(crate) fn with_storage(dir: tempfile::TempDir, storage: PathBuf) -> Self {
        let live = OwnStore::new();
        let site = Self {
            dir,
            storage,
            public_key: key_pair(live.root(), "cache-1").1,
            live,
        };
        site.configure_empty("");
        site
    }

    /// Creates a site and starts its server. Also returns a token with the default rights.
    pub(crate) fn serving() -> (Self, Running, String) {
        let site = Self::new();
        let server = site.start();
        let token = site.token(&[]);
        (site, server, token)
    }

    /// Writes a configuration with the site's own, empty live store. `more`: more options.
    pub(crate) fn configure_empty(&self, more: &str) {
        self.configure(&local(self.live.root()), more);
    }

    /// Writes a configuration with the live store at this URI. `more`: more options.
    pub(crate) fn configure(&self, live_store: &str, more: &str) {
        let text = format!(
            "store = {live_store:?}\nstorage = {:?}\nlisten = \"127.0.0.1:0\"\n\
             admin.listen = []\nsecret-key-files = {:?}\n{more}",
            self.storage(),
            self.live.root().join("cache-1.secret"),
        );
        fs::write(self.config(), text).unwrap();
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.dir.path().join("samovar.toml")
    }

    /// Returns the arguments of `samovar` that start the server.
    pub(crate) fn arguments(&self) -> [String; 3] {
        let config = self.config().to_str().unwrap().to_owned();
        ["serve".to_owned(), "--config".to_owned(), config]
    }

    /// Returns the site's temporary directory, in which tests may create files.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the storage directory.
    pub(crate) fn storage(&self) -> PathBuf {
        self.storage.clone()
    }

    /// Starts the server.
    pub(crate) fn start(&self) -> Running {
        Running::of(samovar().args(self.arguments()))
    }

    /// Runs `samovar token create` with these arguments. Returns the token.
    pub(crate) fn token(&self, arguments: &[&str]) -> String {
        let mut command = samovar();
        command
            .args(["token", "create", "--storage"])
            .arg(self.storage());
        if !arguments.contains(&"--name") {
            command.args(["--name", "tests"]);
        }
        output(command.args(arguments)).trim().to_owned()
    }

    /// Runs `samovar token revoke`.
    pub(crate) fn revoke(&self, name: &str) {
        let mut command = samovar();
        command.args(["token", "revoke", "--name", name, "--storage"]);
        output(command.arg(self.storage()));
    }

    /// Adds a token that has expired. Returns it.
    pub(crate) fn expired_token(&self) -> &'static str {
        let token = "smv1_expired";
        let database = Database::open(&self.storage().join(DATABASE)).unwrap();
        let row = NewToken {
            name: "expired".to_owned(),
            cache: None,
            names: None,
            rights: Rights {
                read: true,
                push: true,
                pin: false,
            },
            expires_at: Some(1),
        };
        let hash = TokenHash::of(token.as_bytes()).unwrap();
        tokens::add(&database, &hash, &row).unwrap();
        token
    }

    /// Runs statements on the database of the storage. Returns the rows.
    pub(crate) fn sql(&self, statements: &str) -> String {
        sqlite::run(&self.storage().join(DATABASE), statements)
    }

    /// Returns the uploaded files in the storage, without the database. Names are relative to the
    /// storage.
    pub(crate) fn files(&self) -> BTreeSet<String> {
        files_below(&self.storage())
    }
}

/// The write lock of a storage's database, held by another process.
pub(crate) struct DatabaseLock {
    sqlite: Child,
}

impl DatabaseLock {
    /// Takes the lock.
    pub(crate) fn take(site: &Site) -> Self {
        let mut sqlite = Command::new("sqlite3");
        sqlite.arg(site.storage().join(DATABASE));
        let sqlite = sqlite.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut sqlite = sqlite.spawn().unwrap();
        let statements = sqlite.stdin.as_mut().unwrap();
        statements
            .write_all(b".timeout 10000\nbegin immediate; select 'locked';\n")
            .unwrap();
        let mut locked = String::new();
        let mut rows = BufReader::new(sqlite.stdout.take().unwrap());
        rows.read_line(&mut locked).unwrap();
        assert_eq!(locked, "locked\n");
        Self { sqlite }
    }

    /// Releases the lock.
    pub(crate) fn release(mut self) {
        // The process ends at the end of its input, which rolls its transaction back.
        drop(self.sqlite.stdin.take());
        self.sqlite.wait().unwrap();
    }
}

/// Returns the uploaded files in a storage directory, without the database. Names are relative to
/// it.
pub(crate) fn files_below(storage: &Path) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    let mut pending = vec![storage.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(storage).unwrap().to_str().unwrap();
            if path.is_dir() {
                pending.push(path);
            } else if !matches!(
                name,
                "nix-cache-info"
                    | ".samovar/boot-id"
                    | ".samovar/lock"
                    | ".samovar/collector-lock"
                    | ".samovar/store-id"
                    | ".samovar/nar-place"
            ) && !name.starts_with(DATABASE)
                // The server writes it in the background.
                && !name.starts_with(".samovar/backup/")
                && !name.starts_with(".samovar/reserve/")
            {
                files.insert(name.to_owned());
            }
        }
    }
    files
}

/// A server under strace.
pub(crate) struct Traced {
    strace: Process,
}

impl Traced {
    /// Starts the server. `arguments`: of strace. `more`: of the server.
    pub(crate) fn start(site: &Site, arguments: &[String], more: &[&str]) -> Self {
        let mut command = bare("strace");
        command.args(["-f", "-qqq"]).args(arguments);
        command.arg(samovar().get_program());
        command.args(site.arguments()).args(more);
        let strace = Process::spawn(&mut command);
        Self { strace }
    }

    /// Waits until the server is ready. Returns `None` if it is killed before.
    pub(crate) fn address(&mut self) -> Option<SocketAddr> {
        address_of(&mut self.strace)
    }

    /// Kills the server, if it is alive.
    pub(crate) fn kill(&mut self) {
        let tracer = self.strace.pid();
        let children = fs::read_to_string(format!("/proc/{tracer}/task/{tracer}/children"));
        let mut kill = Command::new("kill");
        kill.args(["-s", "KILL", children.unwrap_or_default().trim()]);
        kill.stderr(Stdio::null()).status().unwrap();
        self.strace.wait();
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // If only strace were killed, the server would go on.
        if self.strace.is_alive() {
            self.kill();
        }
    }
}

/// Returns whether strace works on this machine. In CI it must.
pub(crate) fn can_trace() -> bool {
    let mut command = Command::new("strace");
    let status = command.args(["-qqq", "-o", "/dev/null", "true"]).status();
    let can = status.is_ok_and(|status| status.success());
    if !can {
        assert!(std::env::var_os("CI").is_none(), "no strace");
        println!("NOT TESTED: faults of system calls. There is no strace here");
    }
    can
}

/// Asserts that a response is a refusal of one line that contains all these texts.
#[track_caller]
pub(crate) fn assert_refused(response: &Response, status: u16, parts: &[&str]) {
    let text = response.text();
    assert_eq!(
        (response.status, text.lines().count()),
        (status, 1),
        "{text}"
    );
    assert!(text.ends_with('\n') && text.len() < 1024, "{text:?}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

/// A running server that accepts uploads.
pub(crate) struct Running {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

impl Running {
    pub(crate) fn of(command: &mut Command) -> Self {
        let (process, address) = Process::serving(command);
        Self { process, address }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends a request without a body. An empty `token` is not sent.
    pub(crate) fn request(&self, method: &str, target: &str, token: &str) -> Response {
        send(self.address, method, target, &bearer(token), b"")
    }

    pub(crate) fn get(&self, target: &str) -> Response {
        self.request("GET", target, "")
    }

    pub(crate) fn put(&self, token: &str, target: &str, body: impl AsRef<[u8]>) -> Response {
        upload(self.address, token, target, body)
    }

    /// Uploads the NAR file and the narinfo of a path. Asserts that both succeed.
    #[track_caller]
    pub(crate) fn publish(&self, token: &str, path: &MadePath) {
        let file = self.put(token, &path.file_target(), &path.file);
        assert_eq!(file.status, 200, "{}", file.text());
        let narinfo = self.put(token, &path.target(), path.narinfo());
        assert_eq!(narinfo.status, 200, "{}", narinfo.text());
    }

    /// Asserts that the server serves the path with the uploaded bytes.
    #[track_caller]
    pub(crate) fn assert_serves(&self, path: &MadePath) {
        let narinfo = self.get(&path.target());
        assert_eq!(
            narinfo.status,
            200,
            "{}: {}",
            path.store_path,
            narinfo.text()
        );
        for line in path.narinfo().lines() {
            assert!(narinfo.text().contains(&format!("{line}\n")), "{line}");
        }
        let file = self.get(&path.file_target());
        assert_eq!(file.status, 200, "{}", path.store_path);
        assert!(file.body == path.file, "{}", path.store_path);
    }

    /// Asserts that clients without a token can see neither the path nor its file.
    #[track_caller]
    pub(crate) fn assert_lacks(&self, path: &MadePath) {
        for below in ["", "/upload"] {
            for target in [path.target(), path.listing_target(), path.file_target()] {
                let target = format!("{below}{target}");
                assert_eq!(self.get(&target).status, 404, "{target}");
            }
        }
    }
}

pub(crate) fn bearer(token: &str) -> String {
    match token {
        "" => String::new(),
        _ => format!("Authorization: Bearer {token}\r\n"),
    }
}

/// Sends a PUT request with a token on a new connection.
pub(crate) fn upload(
    address: SocketAddr,
    token: &str,
    target: &str,
    body: impl AsRef<[u8]>,
) -> Response {
    send(address, "PUT", target, &bearer(token), body)
}

/// Uploads to a server that may be killed at any time, even before it accepts the connection.
/// Returns an error if no complete response arrives.
pub(crate) fn try_upload(
    address: SocketAddr,
    token: &str,
    target: &str,
    body: &[u8],
) -> io::Result<Response> {
    let mut connection = Connection::try_connect(address)?;
    connection.try_send(format!(
        "PUT {target} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    ))?;
    connection.try_send(body)?;
    let response = connection.try_next(false)?;
    response.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Waits until the server is ready. Returns `None` if it ends before.
pub(crate) fn address_of(server: &mut Process) -> Option<SocketAddr> {
    let mut is_ready = false;
    eventually("the server starts or ends", || {
        is_ready = server.count("on http://") > 0;
        is_ready || !server.is_alive()
    });
    is_ready.then(|| server.wait_for_address())
}

/// Asserts that the storage directory is a plain binary cache with all of these paths.
#[track_caller]
pub(crate) fn assert_mirrors(site: &Site, paths: &[MadePath]) {
    for path in paths {
        for file in [&path.target()[1..], &path.url()] {
            // After a crash, the server writes missing narinfos while it already serves.
            eventually(&format!("{file} of {}", path.store_path), || {
                let metadata = fs::metadata(site.storage().join(file));
                metadata.is_ok_and(|metadata| metadata.len() > 0)
            });
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = nix("nix", dir.path());
    command.args(["path-info", "--recursive", "--store"]);
    command.arg(format!("file://{}", site.storage().display()));
    output(command.args(paths.iter().map(|path| &path.store_path)));
}

/// Sends a request on a new connection. `fields`: header lines with their line ends.
pub(crate) fn send(
    address: SocketAddr,
    method: &str,
    target: &str,
    fields: &str,
    body: impl AsRef<[u8]>,
) -> Response {
    let body = body.as_ref();
    let mut request = format!(
        "{method} {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\
         Content-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    exchange(address, request)
}

/// A generated store path, which tests upload by single requests.
#[derive(Debug, Clone)]
pub(crate) struct MadePath {
    pub(crate) store_path: String,
    /// Store paths to which this path refers.
    pub(crate) references: Vec<String>,
    pub(crate) nar: Vec<u8>,
    /// The NAR file: the NAR in `compression`.
    pub(crate) file: Vec<u8>,
    pub(crate) compression: &'static str,
}

impl MadePath {
    /// Creates a path whose name, hash part and contents depend on `seed`. Its file is
    /// uncompressed.
    pub(crate) fn new(seed: &str) -> Self {
        let digest = Sha256::digest(seed.as_bytes());
        let nar = nar_of_file(seed.as_bytes());
        Self {
            store_path: format!("/nix/store/{}-{seed}", nixbase32::encode(&digest[..20])),
            references: Vec::new(),
            file: nar.clone(),
            nar,
            compression: "none",
        }
    }

    /// Returns the same path with other contents.
    pub(crate) fn containing(mut self, content: &[u8]) -> Self {
        self.nar = nar_of_file(content);
        self.file = self.nar.clone();
        self
    }

    /// Returns the same path with one more reference.
    pub(crate) fn referring_to(mut self, path: &str) -> Self {
        self.references.push(path.to_owned());
        self
    }

    /// Returns the same path with its file compressed by one of the programs gzip, xz and zstd.
    pub(crate) fn compressed(mut self, program: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nar");
        fs::write(&path, &self.nar).unwrap();
        let output = Command::new(program).arg("-c").arg(&path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        self.file = output.stdout;
        self.compression = program;
        self
    }

    pub(crate) fn hash_part(&self) -> &str {
        hash_part(&self.store_path)
    }

    pub(crate) fn target(&self) -> String {
        format!("/{}.narinfo", self.hash_part())
    }

    pub(crate) fn listing_target(&self) -> String {
        format!("/{}.ls", self.hash_part())
    }

    pub(crate) fn file_target(&self) -> String {
        format!("/{}", self.url())
    }

    /// Returns the `URL` of the narinfo.
    pub(crate) fn url(&self) -> String {
        let suffix = match self.compression {
            "xz" => ".xz",
            "zstd" => ".zst",
            _ => "",
        };
        format!("nar/{}.nar{suffix}", hash(&self.file))
    }

    pub(crate) fn narinfo(&self) -> String {
        let mut references: Vec<&str> = self.references.iter().map(|path| &path[11..]).collect();
        references.sort_unstable();
        format!(
            "StorePath: {}\nURL: {}\nCompression: {}\nFileHash: sha256:{}\nFileSize: {}\n\
             NarHash: sha256:{}\nNarSize: {}\nReferences: {}\n",
            self.store_path,
            self.url(),
            self.compression,
            hash(&self.file),
            self.file.len(),
            hash(&self.nar),
            self.nar.len(),
            references.join(" ")
        )
    }

    /// Returns the narinfo with another value in one field.
    pub(crate) fn narinfo_with(&self, field: &str, value: &str) -> String {
        let with = |line: &str| match line.split_once(": ") {
            Some((name, _)) if name == field => format!("{field}: {value}\n"),
            _ => format!("{line}\n"),
        };
        self.narinfo().lines().map(with).collect()
    }
}

/// Returns the SHA-256 of `bytes` in Nix's base-32.
pub(crate) fn hash(bytes: &[u8]) -> String {
    nixbase32::encode(&Sha256::digest(bytes))
}

/// Returns the NAR of a regular file with this content.
pub(crate) fn nar_of_file(content: &[u8]) -> Vec<u8> {
    Node::<Vec<u8>>::file(content).nar()
}

/// Returns the NAR of a directory with one empty file of this name.
pub(crate) fn nar_of_entry(name: &[u8]) -> Vec<u8> {
    Node::<Vec<u8>>::dir([(name, Node::file(""))]).nar()
}

/// Returns the NAR of an empty file in this number of nested directories.
pub(crate) fn nar_of_depth(depth: usize) -> Vec<u8> {
    let file = Node::<Vec<u8>>::file("");
    (0..depth)
        .fold(file, |inner, _| Node::dir([("d", inner)]))
        .nar()
}

/// Starts the server of a site with the storage on a tmpfs of this size, which only the server
/// sees. Returns the directory by which the test reaches it.
pub(crate) fn on_small_disk(site: &Site, size: &str) -> (Running, PathBuf) {
    let seed = site.dir().join("seed");
    fs::rename(site.storage(), &seed).unwrap();
    // It is that of another disk.
    fs::remove_dir_all(seed.join(".samovar/reserve")).ok();
    fs::create_dir(site.storage()).unwrap();
    let script = "mount -t tmpfs -o size=\"$1\" none \"$2\" && cp -a \"$3\"/. \"$2\" && shift 3 && \
                  exec \"$@\"";
    let mut command = bare("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
    command.args(["sh", size]).arg(site.storage()).arg(seed);
    command.arg(samovar().get_program());
    command.args(site.arguments()).stdin(Stdio::null());
    let server = Running::of(&mut command);
    let pid = server.process.pid();
    let storage = format!("/proc/{pid}/root{}", site.storage().display());
    (server, PathBuf::from(storage))
}
