//! A stock client that builds, a binary cache that Nix has made, an upstream server of that cache
//! which misbehaves as a test demands, and a server of ours in between.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    dead_code,
    unused_imports,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

mod large;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use testkit::http1::{Connection, Response};
use testkit::nix::{OwnStore, hash_part, key_pair, local};
use testkit::process::Process;

use crate::support::samovar;

pub(crate) use large::Large;

/// Name of the upstream in the configuration of [`Relay`].
pub(crate) const NAME: &str = "up";

/// A derivation that depends on another one. Each output has a file of some hundred kilobytes, and
/// is the same on each build.
pub(crate) const EXPRESSION: &str = "let \
    make = name: input: derivation { inherit name input; system = builtins.currentSystem; \
    builder = \"/bin/sh\"; args = [ \"-c\" ''/bin/mkdir $out; echo $input > $out/input; \
    i=0; while [ $i -lt 20000 ]; do echo \"$name line $i $((i * 7919 % 65536))\"; i=$((i + 1)); \
    done > $out/text'' ]; }; \
    in make \"top\" (make \"low\" \"\")";

/// Options of Nix for builds in a store of their own.
const OPTIONS: [(&str, &str); 4] = [
    ("sandbox", "true"),
    ("sandbox-fallback", "false"),
    ("sandbox-paths", "/bin /usr /lib /lib64?"),
    ("build-users-group", ""),
];

/// Builds [`EXPRESSION`] in a store. Returns the output path, and what Nix has printed.
#[track_caller]
pub(crate) fn build(store: &OwnStore, options: &[(&str, &str)]) -> (String, String) {
    let (text, messages, is_built) = try_build(store, options);
    assert!(is_built, "{messages}");
    (text.trim().to_owned(), messages)
}

/// Tries to build [`EXPRESSION`]. Returns both outputs of Nix, and whether it has succeeded.
pub(crate) fn try_build(store: &OwnStore, options: &[(&str, &str)]) -> (String, String, bool) {
    try_build_of(EXPRESSION, store, options)
}

/// As [`try_build`], for any expression.
pub(crate) fn try_build_of(
    expression: &str,
    store: &OwnStore,
    options: &[(&str, &str)],
) -> (String, String, bool) {
    let mut command = store.command("nix-build");
    command.args(["--expr", expression, "--no-out-link"]);
    for (name, value) in OPTIONS.iter().chain(options) {
        command.args(["--option", name, value]);
    }
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        text(&output.stdout),
        text(&output.stderr),
        output.status.success(),
    )
}

/// A binary cache in a directory, with the outputs of [`EXPRESSION`].
pub(crate) struct FileCache {
    pub(crate) builder: OwnStore,
    dir: tempfile::TempDir,
    pub(crate) public_key: String,
    /// Store paths of the outputs: `top` and `low`.
    pub(crate) top: String,
    pub(crate) low: String,
}

impl FileCache {
    /// Makes a cache with NARs in this compression.
    #[track_caller]
    pub(crate) fn new(compression: &str) -> Self {
        let builder = OwnStore::new();
        let (top, _) = build(&builder, &[("substituters", "")]);
        let dir = tempfile::tempdir().unwrap();
        let (secret, public_key) = key_pair(dir.path(), "up-1");
        let root = dir.path().join("cache");
        let to = format!(
            "file://{}?compression={compression}&secret-key={}",
            root.display(),
            secret.display()
        );
        let from = local(builder.root());
        let mut copy = builder.nix.command("nix", builder.root());
        testkit::process::output(copy.args(["copy", "--from", &from, "--to", &to, &top]));
        let all = builder.run("nix-store", &["--query", "--requisites", &top]);
        let low = all.lines().find(|line| line.ends_with("-low")).unwrap();
        Self {
            low: low.to_owned(),
            builder,
            dir,
            public_key,
            top,
        }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    /// Returns the narinfo of a path.
    pub(crate) fn narinfo(&self, path: &str) -> String {
        let name = format!("{}.narinfo", hash_part(path));
        fs::read_to_string(self.root().join(name)).unwrap()
    }

    /// Returns the URL of a path's NAR, relative to the cache.
    pub(crate) fn nar_url(&self, path: &str) -> String {
        field(&self.narinfo(path), "URL").to_owned()
    }

    /// Returns the file of a path's NAR.
    pub(crate) fn nar(&self, path: &str) -> Vec<u8> {
        fs::read(self.root().join(self.nar_url(path))).unwrap()
    }
}

/// Returns a field of a narinfo.
#[track_caller]
pub(crate) fn field<'a>(narinfo: &'a str, name: &str) -> &'a str {
    let prefix = format!("{name}: ");
    narinfo
        .lines()
        .find_map(|line| line.strip_prefix(&*prefix))
        .unwrap()
}

/// A request as the upstream has received it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) target: String,
    /// The request line and the header fields.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Seen {
    /// Returns the value of a header field.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find_map(|(other, value)| other.eq_ignore_ascii_case(name).then_some(value))
    }

    pub(crate) fn is_nar(&self) -> bool {
        self.target.starts_with("/nar/")
    }

    pub(crate) fn is_narinfo(&self) -> bool {
        self.target.ends_with(".narinfo")
    }
}

/// What the upstream does with a request.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// Sends the file, or 404.
    Serve,
    /// Sends the file, and closes the connection at the next request.
    ServeOnce,
    /// Sends the file, and says nothing about ranges and validators.
    ServePlainly,
    /// Sends these bytes as a whole response, and closes the connection.
    Raw(Vec<u8>),
    /// Sends a response with this status line, these header lines and this body.
    Answer(&'static str, String, Vec<u8>),
    /// Closes the connection without a response.
    Close,
    /// Sends nothing, and keeps the connection.
    Silence,
    /// Sends this many bytes of the response, and closes the connection.
    Cut(usize),
    /// Sends this many bytes of the response, and nothing more.
    Stall(usize),
    /// Sends one byte each time, after a pause.
    Drip(Duration),
    /// Serves after a pause.
    Late(Duration),
}

type Rule = Box<dyn Fn(&Seen) -> Act + Send + Sync>;

/// An upstream server of the files of a binary cache.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    root: PathBuf,
    rule: Mutex<Arc<Rule>>,
    seen: Mutex<Vec<Seen>>,
}

impl Upstream {
    /// Starts a server of the files below `root`, which follows the rule.
    pub(crate) fn start(root: &Path, rule: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Self {
        Self::on("127.0.0.1:0", root, rule)
    }

    /// As [`start`](Self::start), on this address.
    pub(crate) fn on(
        address: &str,
        root: &Path,
        rule: impl Fn(&Seen) -> Act + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            root: root.to_owned(),
            rule: Mutex::new(Arc::new(Box::new(rule))),
            seen: Mutex::default(),
        });
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, shared) = (client.unwrap(), Arc::clone(&of_thread));
                // A client that disconnects is no failure of the test.
                std::thread::spawn(move || shared.serve(client).ok());
            }
        });
        Self { address, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Follows another rule from now on.
    pub(crate) fn follow(&self, rule: impl Fn(&Seen) -> Act + Send + Sync + 'static) {
        *self.shared.rule.lock().unwrap() = Arc::new(Box::new(rule));
    }

    /// Returns the requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Returns the number of requests whose target has this part.
    pub(crate) fn count(&self, part: &str) -> usize {
        self.seen()
            .iter()
            .filter(|seen| seen.target.contains(part))
            .count()
    }
}

impl Shared {
    fn serve(&self, mut client: TcpStream) -> std::io::Result<()> {
        client.set_nodelay(true)?;
        let mut reader = BufReader::new(client.try_clone()?);
        loop {
            let mut head = String::new();
            loop {
                let start = head.len();
                if reader.read_line(&mut head)? == 0 {
                    return Ok(());
                }
                if head[start..].trim_end().is_empty() {
                    break;
                }
            }
            let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let mut seen = Seen {
                target,
                head,
                body: String::new(),
            };
            let len = seen.header("Content-Length");
            if let Some(len) = len.and_then(|len| len.trim().parse().ok()) {
                (&mut reader).take(len).read_to_string(&mut seen.body)?;
            }
            self.seen.lock().unwrap().push(seen.clone());
            let rule = Arc::clone(&self.rule.lock().unwrap());
            let act = rule(&seen);
            match act {
                Act::Serve => client.write_all(&self.response(&seen, true))?,
                Act::ServeOnce => {
                    client.write_all(&self.response(&seen, true))?;
                    reader.fill_buf()?;
                    return Ok(());
                }
                Act::ServePlainly => client.write_all(&self.response(&seen, false))?,
                Act::Raw(bytes) => return client.write_all(&bytes),
                Act::Answer(status, fields, body) => {
                    let len = body.len();
                    let head =
                        format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {len}\r\n\r\n");
                    client.write_all(head.as_bytes())?;
                    client.write_all(&body)?;
                }
                Act::Close => return Ok(()),
                Act::Silence => return wait_for_end(&mut reader),
                Act::Cut(len) => {
                    let response = self.response(&seen, true);
                    return client.write_all(&response[..len.min(response.len())]);
                }
                Act::Stall(len) => {
                    let response = self.response(&seen, true);
                    client.write_all(&response[..len.min(response.len())])?;
                    return wait_for_end(&mut reader);
                }
                Act::Drip(pause) => {
                    for byte in self.response(&seen, true) {
                        client.write_all(&[byte])?;
                        wait_for_end_at_most(pause, &mut reader)?;
                    }
                }
                Act::Late(pause) => {
                    wait_for_end_at_most(pause, &mut reader)?;
                    client.write_all(&self.response(&seen, true))?;
                }
            }
        }
    }

    /// Returns the right response of a static file server.
    fn response(&self, seen: &Seen, with_ranges: bool) -> Vec<u8> {
        let path = seen.target.split('?').next().unwrap_or_default();
        let Ok(file) = fs::read(self.root.join(path.trim_start_matches('/'))) else {
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nno.\n".to_vec();
        };
        let range = seen
            .header("Range")
            .and_then(|range| range.strip_prefix("bytes="));
        let first: Option<usize> = range.and_then(|range| range.trim_end_matches('-').parse().ok());
        let total = file.len();
        let (status, fields, body) = match first.filter(|_| with_ranges) {
            Some(first) if first < total => (
                "206 Partial Content",
                format!("Content-Range: bytes {first}-{}/{total}\r\n", total - 1),
                &file[first..],
            ),
            _ => ("200 OK", String::new(), &file[..]),
        };
        let tag = match with_ranges {
            true => format!("ETag: \"{total}\"\r\n"),
            false => String::new(),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\n{fields}{tag}Content-Length: {}\r\n\r\n",
            body.len()
        );
        [head.as_bytes(), body].concat()
    }
}

/// Waits for this time, unless the client closes the connection before.
fn wait_for_end_at_most(time: Duration, reader: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    reader.get_ref().set_read_timeout(Some(time))?;
    let waited = reader.fill_buf().map(<[u8]>::len);
    reader.get_ref().set_read_timeout(None)?;
    match waited {
        Ok(0) => Err(std::io::ErrorKind::ConnectionAborted.into()),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

/// Waits until the client closes the connection.
fn wait_for_end(reader: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        line.clear();
    }
    Ok(())
}

/// A server of ours that passes on what upstreams have, with an empty store of its own.
pub(crate) struct Relay {
    pub(crate) server: Process,
    pub(crate) address: SocketAddr,
    pub(crate) store: OwnStore,
    config: PathBuf,
    /// The lines of the configuration before the tables.
    head: String,
}

impl Relay {
    /// Starts a server with one upstream at `url`.
    #[track_caller]
    pub(crate) fn start(url: &str, key: &str) -> Self {
        Self::with(&format!(
            "[upstreams.{NAME}]\nurl = {url:?}\npublic-keys = [{key:?}]\n"
        ))
    }

    /// Starts a server with these tables of the configuration.
    #[track_caller]
    pub(crate) fn with(tables: &str) -> Self {
        Self::listening(0, tables)
    }

    /// As [`with`](Self::with), on this port.
    #[track_caller]
    pub(crate) fn listening(port: u16, tables: &str) -> Self {
        Self::serving(port, "[]", tables)
    }

    /// As [`with`](Self::with), with an admin listener. Also returns its address.
    #[track_caller]
    pub(crate) fn watched(tables: &str) -> (Self, SocketAddr) {
        let relay = Self::serving(0, "\"127.0.0.1:0\"", tables);
        let line = relay.server.wait_for("metrics and status on http://");
        let admin = line.rsplit("//").next().unwrap().trim().parse().unwrap();
        (relay, admin)
    }

    #[track_caller]
    fn serving(port: u16, admin: &str, tables: &str) -> Self {
        let store = OwnStore::new();
        let config = store.root().join("samovar.toml");
        let head = format!(
            "listen = \"127.0.0.1:{port}\"\nstore = {:?}\nadmin.listen = {admin}\n",
            local(store.root())
        );
        fs::write(&config, format!("{head}{tables}")).unwrap();
        let (server, address) = serving(&config);
        Self {
            server,
            address,
            store,
            config,
            head,
        }
    }

    /// Reloads the configuration with these tables. Returns the line that the server logs last.
    #[track_caller]
    pub(crate) fn reload(&self, tables: &str) -> String {
        fs::write(&self.config, format!("{}{tables}", self.head)).unwrap();
        self.server.signal("HUP");
        let line = self.server.wait_for("the configuration was ");
        assert!(!line.contains("after a restart"), "{line}");
        line
    }

    /// Ends the server and starts it again.
    #[track_caller]
    pub(crate) fn restarted(self) -> Self {
        self.server.terminate();
        let (server, address) = serving(&self.config);
        Self {
            server,
            address,
            ..self
        }
    }

    /// Kills the server and starts it again.
    #[track_caller]
    pub(crate) fn killed(mut self) -> Self {
        self.server.signal("KILL");
        self.server.wait();
        let (server, address) = serving(&self.config);
        Self {
            server,
            address,
            ..self
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn get(&self, target: &str) -> Response {
        Connection::connect(self.address).get(target)
    }

    /// Requests the narinfo of a path, with the time that it takes.
    pub(crate) fn narinfo(&self, path: &str) -> (Response, Duration) {
        let begin = Instant::now();
        let response = self.get(&format!("/{}.narinfo", hash_part(path)));
        (response, begin.elapsed())
    }
}

/// Starts a server with this configuration.
#[track_caller]
fn serving(config: &Path) -> (Process, SocketAddr) {
    let mut serve = samovar();
    Process::serving(serve.arg("serve").arg("--config").arg(config))
}

/// A client that builds [`EXPRESSION`] with a server as its only substituter.
pub(crate) struct Client {
    pub(crate) store: OwnStore,
}

/// The end of a build.
#[derive(Debug)]
pub(crate) struct BuildEnd {
    pub(crate) messages: String,
    pub(crate) time: Duration,
    pub(crate) path: String,
}

impl BuildEnd {
    /// Returns whether the client has built an output itself.
    pub(crate) fn has_built(&self, name: &str) -> bool {
        let suffix = format!("-{name}.drv'");
        let lines = self.messages.lines();
        lines
            .filter(|line| line.starts_with("building '"))
            .any(|line| line.contains(&suffix))
    }
}

impl Client {
    pub(crate) fn new() -> Self {
        Self {
            store: OwnStore::new(),
        }
    }

    /// Builds. The build must succeed, whatever the upstream does.
    #[track_caller]
    pub(crate) fn build(&self, relay: &Relay, key: &str) -> BuildEnd {
        let begin = Instant::now();
        let url = relay.url();
        let options = [("substituters", &*url), ("trusted-public-keys", key)];
        let (path, messages) = build(&self.store, &options);
        BuildEnd {
            messages,
            time: begin.elapsed(),
            path,
        }
    }
}

/// Returns the number of paths that a storage keeps of all upstreams.
pub(crate) fn kept_count(storage: &Path) -> u64 {
    let mut list = samovar();
    list.args(["cache", "list", "--json", "--storage"])
        .arg(storage);
    let list = testkit::process::output(&mut list);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let caches = list["caches"].as_array().unwrap();
    let is_of_upstream =
        |cache: &&serde_json::Value| cache["name"].as_str().unwrap().starts_with("upstream:");
    let kept = caches.iter().filter(is_of_upstream);
    kept.map(|cache| cache["paths"].as_u64().unwrap()).sum()
}

/// Bytes that do not repeat.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(len).collect()
}
