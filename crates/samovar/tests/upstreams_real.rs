//! Upstreams that are real servers: static files behind nginx, a bucket, other Samovars, and
//! servers with the URL forms of nix-serve and harmonia. Clients of each generation of Nix build
//! through the server.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "it shows what a test leaves out")]

mod support;
mod support_upstreams;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use support::{samovar, secret_file, user};
use support_upstreams::{Act, Client, FileCache, Relay, Upstream, build, field};
use testkit::eventually;
use testkit::http1::Connection;
use testkit::nginx::Nginx;
use testkit::nix::{Nix, OwnStore, hash_part, key_pair, local, sample, sample_list, sample_root};
use testkit::process::Process;

/// A cache with NARs that are compressed as those of cache.nixos.org.
static CACHE: LazyLock<FileCache> = LazyLock::new(|| FileCache::new("xz"));

/// A cache with NARs as they are.
static PLAIN: LazyLock<FileCache> = LazyLock::new(|| FileCache::new("none"));

/// Starts nginx on a directory; `None` if it is not installed.
fn nginx(root: &Path) -> Option<Nginx> {
    let nginx = Nginx::start(&format!(
        "gzip on; gzip_types text/plain; gzip_min_length 1;\n\
         server {{ listen 127.0.0.1:@port@; root {}; }}",
        root.display()
    ));
    if nginx.is_none() {
        eprintln!("NOT TESTED: nginx as an upstream; it is not installed");
    }
    nginx
}

/// Lets a client of each generation of Nix build with the server as its only substituter.
#[track_caller]
fn all_clients_build_nothing(relay: &Relay, key: &str) {
    let url = relay.url();
    for nix in Nix::all() {
        let version = nix.version();
        let store = OwnStore::of(nix);
        let options = [("substituters", &*url), ("trusted-public-keys", key)];
        let (path, messages) = build(&store, &options);
        assert_eq!(path, CACHE.top, "{version}");
        assert!(!messages.contains("building '"), "{version}: {messages}");
        store.run("nix-store", &["--verify", "--check-contents"]);
    }
}

#[test]
fn static_files_behind_nginx_are_passed_on_to_all_generations() {
    let Some(nginx) = nginx(&CACHE.root()) else {
        return;
    };
    let relay = Relay::start(&nginx.url(), &CACHE.public_key);
    all_clients_build_nothing(&relay, &CACHE.public_key);
    let log = || nginx.log();
    let count = |part: &str| log().lines().filter(|line| line.contains(part)).count();
    for path in [&CACHE.top, &CACHE.low] {
        assert_eq!(
            count(&format!("{}.narinfo", hash_part(path))),
            1,
            "{}",
            log()
        );
        assert_eq!(count(&CACHE.nar_url(path)), 1, "{}", log());
    }
    // nginx has no bulk queries, and is asked once whether it has.
    assert_eq!(count("POST /narinfos"), 1, "{}", log());
    assert_eq!(count("/closure/"), 0, "{}", log());
}

/// A Samovar that is an upstream.
struct Samovar {
    _server: Process,
    _dir: tempfile::TempDir,
    address: SocketAddr,
    admin: SocketAddr,
    public_key: String,
}

impl Samovar {
    /// Starts it with the store of [`CACHE`] and these lines of the configuration; `{dir}` in them
    /// is its directory.
    fn start(lines: &str) -> Self {
        Self::of(CACHE.builder.root(), lines)
    }

    /// As [`start`](Self::start), with this store.
    fn of(store: &Path, lines: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (secret, public_key) = key_pair(dir.path(), "theirs-1");
        secret_file(dir.path(), "users", &user("reader", "word"));
        let config = dir.path().join("samovar.toml");
        let store = local(store);
        let head = format!(
            "listen = \"127.0.0.1:0\"\nadmin.listen = \"127.0.0.1:0\"\nstore = {store:?}\n\
             secret-key-files = {secret:?}\n"
        );
        let lines = lines.replace("{dir}", dir.path().to_str().unwrap());
        fs::write(&config, head + &lines).unwrap();
        let (server, address) =
            Process::serving(samovar().arg("serve").arg("--config").arg(config));
        let line = server.wait_for("metrics and status on http://");
        let admin = line.rsplit("//").next().unwrap().trim().parse().unwrap();
        Self {
            _server: server,
            _dir: dir,
            address,
            admin,
            public_key,
        }
    }

    /// Returns the number of requests of a kind with an answer of this class.
    fn count(&self, route: &str, status: &str) -> u64 {
        let text = Connection::connect(self.admin).get("/metrics").text();
        let parts = [format!("route=\"{route}\""), format!("status=\"{status}\"")];
        let lines = text.lines().filter(|line| {
            line.starts_with("samovar_http_requests_total{")
                && parts.iter().all(|part| line.contains(part))
        });
        let values = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
        values.sum()
    }
}

#[test]
fn another_samovar_is_asked_in_bulk_with_a_login_and_below_a_prefix() {
    for (lines, login, prefix) in [
        ("", "", ""),
        (
            "access.users-file = \"{dir}/users\"\n[caches.team]\n",
            "reader:word@",
            "/team",
        ),
    ] {
        let theirs = Samovar::start(lines);
        let url = format!("http://{login}{}{prefix}", theirs.address);
        let relay = Relay::start(&url, &theirs.public_key);
        assert_eq!(relay.narinfo(&CACHE.top).0.status, 200, "{prefix}");
        eventually("the closure is requested", || {
            theirs.count("closure", "2xx") == 1
        });
        assert_eq!(relay.narinfo(&CACHE.low).0.status, 200, "{prefix}");
        assert_eq!(theirs.count("narinfo", "2xx"), 1, "{prefix}");
        all_clients_build_nothing(&relay, &theirs.public_key);
        assert_eq!(theirs.count("narinfo", "2xx"), 1, "{prefix}");
        assert_eq!(theirs.count("closure", "2xx"), 1, "{prefix}");
        // A path that it lacks is a miss.
        let absent = "/nix/store/00000000000000000000000000000000-absent";
        let (response, _) = relay.narinfo(absent);
        assert_eq!(response.header("Samovar-Miss"), Some("absent"), "{prefix}");
    }
}

#[test]
fn a_closure_of_hundreds_of_paths_costs_two_requests() {
    let theirs = Samovar::of(&sample_root(), "");
    let relay = Relay::start(&format!("http://{}", theirs.address), &theirs.public_key);
    let (top, closure) = (sample("top"), sample_list("closure"));
    assert!(closure.len() > 300);
    assert_eq!(relay.narinfo(&top).0.status, 200);
    eventually("the closure is requested", || {
        theirs.count("closure", "2xx") == 1
    });
    for path in &closure {
        let (narinfo, _) = relay.narinfo(path);
        assert_eq!(narinfo.status, 200, "{path}");
        assert_eq!(field(&narinfo.text(), "StorePath"), path);
    }
    assert_eq!(theirs.count("closure", "2xx"), 1);
    // The first path, and maybe some that this client asked for before the closure had arrived.
    let single = theirs.count("narinfo", "2xx");
    assert!(single < 30, "{single}");
}

#[test]
fn a_chain_of_samovars_passes_on_what_the_last_one_has() {
    let theirs = Samovar::start("");
    let key = &theirs.public_key;
    let middle = Relay::start(&format!("http://{}", theirs.address), key);
    let relay = Relay::start(&middle.url(), key);
    all_clients_build_nothing(&relay, key);
    let client = Client::new().build(&relay, key);
    assert!(!client.has_built("top"), "{}", client.messages);
}

#[test]
fn two_samovars_with_each_other_as_upstream_have_the_paths_of_both() {
    let dir = tempfile::tempdir().unwrap();
    let keys = ["a-1", "b-1"].map(|name| key_pair(dir.path(), name));
    let ports = [testkit::free_port(), testkit::free_port()];
    let start = |own: usize, other: usize| {
        let (secret, _) = &keys[own];
        let (_, key) = &keys[other];
        Relay::listening(
            ports[own],
            &format!(
                "secret-key-files = {secret:?}\n[upstreams.other]\nurl = \
                 \"http://127.0.0.1:{}\"\npublic-keys = [{key:?}]\n",
                ports[other]
            ),
        )
    };
    let both = [start(0, 1), start(1, 0)];
    let paths = [0, 1].map(|index| {
        let relay: &Relay = &both[index];
        relay.store.add_file(&format!("path-{index}"), b"a text")
    });
    for relay in &both {
        for path in &paths {
            let narinfo = relay.narinfo(path).0;
            assert_eq!(narinfo.status, 200, "{path}");
            let nar = relay.get(&format!("/{}", field(&narinfo.text(), "URL")));
            assert_eq!(nar.status, 200, "{path}");
        }
        let absent = "/nix/store/00000000000000000000000000000000-absent";
        let (response, time) = relay.narinfo(absent);
        assert_eq!(response.status, 404);
        assert!(time.as_millis() < 1900, "{time:?}");
        let mut query = samovar();
        let done = query
            .args(["query", &relay.url(), &paths[0], &paths[1], absent])
            .output();
        let text = String::from_utf8(done.unwrap().stdout).unwrap();
        assert!(
            paths.iter().all(|path| text.contains(&path[11..])),
            "{text}"
        );
    }
}

/// Serves narinfos of [`PLAIN`] in which the URL of the NAR has this form, and the NAR at this URL
/// alone.
fn with_urls(form: fn(&str, &str) -> String) -> Upstream {
    let all: Vec<(String, String, PathBuf)> = [&PLAIN.top, &PLAIN.low]
        .into_iter()
        .map(|path| {
            let narinfo = PLAIN.narinfo(path);
            let nar_hash = field(&narinfo, "NarHash").trim_start_matches("sha256:");
            let url = form(hash_part(path), nar_hash);
            let lines = narinfo.lines().filter(|line| {
                // As these servers: the narinfo says nothing about a file.
                !line.starts_with("File") && !line.starts_with("URL")
            });
            let text = lines.map(|line| format!("{line}\n")).collect::<String>();
            let file = PLAIN.root().join(PLAIN.nar_url(path));
            (format!("{text}URL: {url}\n"), url, file)
        })
        .collect();
    Upstream::start(&PLAIN.root(), move |seen| {
        let narinfo = all.iter().find(|(text, ..)| {
            seen.target
                .contains(&format!("{}.narinfo", hash_part(field(text, "StorePath"))))
        });
        let nar = all
            .iter()
            .find(|(_, url, _)| seen.target == format!("/{url}"));
        match (narinfo, nar) {
            (Some((text, ..)), _) => {
                let head = "Content-Type: text/x-nix-narinfo\r\n".to_owned();
                Act::Answer("200 OK", head, text.clone().into_bytes())
            }
            (_, Some((.., file))) => {
                let head = "Content-Type: application/x-nix-nar\r\n".to_owned();
                Act::Answer("200 OK", head, fs::read(file).unwrap())
            }
            _ if seen.target == "/nix-cache-info" => Act::Serve,
            _ => Act::Answer("404 Not Found", String::new(), Vec::new()),
        }
    })
}

/// Makes the URL of a NAR from the hash part and the hash of the NAR.
type Form = fn(&str, &str) -> String;

#[test]
fn the_url_forms_of_other_servers_are_passed_on() {
    let forms: [(&str, Form); 3] = [
        ("nix-serve and nix-serve-ng", |hash, nar_hash| {
            format!("nar/{hash}-{nar_hash}.nar")
        }),
        ("old nix-serve", |hash, _| format!("nar/{hash}.nar")),
        ("harmonia", |hash, nar_hash| {
            format!("nar/{nar_hash}.nar?hash={hash}")
        }),
    ];
    for (name, form) in forms {
        let upstream = with_urls(form);
        let relay = Relay::start(&upstream.url(), &PLAIN.public_key);
        let built = Client::new().build(&relay, &PLAIN.public_key);
        assert!(
            !built.has_built("top") && !built.has_built("low"),
            "{name}: {}",
            built.messages
        );
        // A client that has the narinfo from before a restart.
        let narinfo = relay.narinfo(&PLAIN.top).0.text();
        let relay = relay.restarted();
        let nar = relay.get(&format!("/{}", field(&narinfo, "URL")));
        assert!(
            nar.status == 200 && nar.body == PLAIN.nar(&PLAIN.top),
            "{name}"
        );
    }
}

/// A bucket that everybody may read, with the files of [`CACHE`].
struct Bucket {
    _server: Process,
    _dir: tempfile::TempDir,
    url: String,
}

impl Bucket {
    /// Starts `SeaweedFS`; `None` if it is not installed.
    fn start() -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let program = root.join(".samovar/tools/seaweedfs/weed");
        if !program.exists() {
            eprintln!(
                "NOT TESTED: a bucket as an upstream; `xtask setup --test` installs SeaweedFS"
            );
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let identities = dir.path().join("identities.json");
        let text = r#"{"identities":[
            {"name":"admin","credentials":[{"accessKey":"a","secretKey":"b"}],"actions":["Admin"]},
            {"name":"anonymous","actions":["Read:cache"]}]}"#;
        fs::write(&identities, text).unwrap();
        let mut weed = Command::new(program);
        weed.args([
            "server",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-volume.max=3",
        ]);
        weed.args(["-filer", "-s3", "-s3.port.iceberg=0", "-s3.port.lance=0"]);
        weed.arg("-master.telemetry=false");
        for name in ["master", "volume", "filer", "s3"] {
            weed.arg(format!("-{name}.port.grpc={}", testkit::free_port()));
        }
        for name in ["master", "volume", "filer"] {
            weed.arg(format!("-{name}.port={}", testkit::free_port()));
        }
        let port = testkit::free_port();
        weed.arg(format!("-s3.port={port}"));
        weed.arg(format!("-s3.config={}", identities.display()));
        weed.arg(format!("-dir={}", dir.path().display()));
        let server = Process::spawn(&mut weed);
        let url = format!("http://127.0.0.1:{port}/cache");
        let put = |words: &[&str]| {
            let mut curl = Command::new("curl");
            curl.args([
                "--silent",
                "--fail",
                "--max-time",
                "10",
                "--output",
                "/dev/null",
            ]);
            curl.args(["--user", "a:b", "--aws-sigv4", "aws:amz:us-east-1:s3"]);
            curl.args(words).status().unwrap().success()
        };
        eventually("the bucket can be made", || {
            put(&["--request", "PUT", &url])
        });
        for path in [&CACHE.top, &CACHE.low] {
            for name in [format!("{}.narinfo", hash_part(path)), CACHE.nar_url(path)] {
                let file = CACHE.root().join(&name);
                let to = format!("{url}/{name}");
                assert!(
                    put(&["--upload-file", file.to_str().unwrap(), &to]),
                    "{name}"
                );
            }
        }
        Some(Self {
            _server: server,
            _dir: dir,
            url,
        })
    }
}

#[test]
fn a_bucket_is_passed_on() {
    let Some(bucket) = Bucket::start() else {
        return;
    };
    let (url, key) = (&bucket.url, &CACHE.public_key);
    let relay = Relay::with(&format!(
        "[upstreams.up]\nurl = {url:?}\npublic-keys = [{key:?}]\nbucket = true\n"
    ));
    all_clients_build_nothing(&relay, key);
    let absent = "/nix/store/00000000000000000000000000000000-absent";
    for path in [absent, absent] {
        let (response, _) = relay.narinfo(path);
        assert_eq!(response.header("Samovar-Miss"), Some("absent"));
    }
}
