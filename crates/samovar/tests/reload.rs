//! A reload (HUP) replaces the whole configuration at once, and no request fails because of it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::{
    File, bare, hash, realise, samovar, sample, sample_store, secret_file, serve, token,
};
use testkit::eventually;
use testkit::process::{Process, fails};

const DONE: &str = "the configuration was reloaded";

/// A keep-alive connection.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn new(address: &str) -> Self {
        Self(BufReader::new(TcpStream::connect(address).unwrap()))
    }

    /// Sends a GET request. Returns the status and the body of the response.
    fn get(&mut self, target: &str, fields: &str) -> (u16, Vec<u8>) {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut status, mut len) = (0, None);
        loop {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "{target}: cut off");
            let line = line.trim_end().to_ascii_lowercase();
            if status == 0 {
                status = line[9..12].parse().unwrap();
            } else if let Some(text) = line.strip_prefix("content-length: ") {
                len = Some(text.parse().unwrap());
            } else if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; len.unwrap()];
        self.0.read_exact(&mut body).unwrap();
        (status, body)
    }

    fn status(&mut self, target: &str) -> u16 {
        self.get(target, "").0
    }
}

/// Stops background clients when dropped, also if the test fails.
struct Until<'a>(&'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Returns whether a new client can copy this path from the server at `address`.
fn copies(address: &str, path: &str) -> bool {
    let substituter = format!("http://{address}");
    realise(&substituter, path, "").status.success()
}

/// Without the file, the server would be public. A reload, an upgrade and a start fail if the file
/// of the service is missing, or if it is unknown whether there is one.
#[test]
fn the_file_of_the_service_is_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let etc = dir.path().join("etc/samovar");
    fs::create_dir_all(&etc).unwrap();
    let (line, token) = token("ci");
    let tokens = secret_file(dir.path(), "tokens", &line);
    let file = etc.join("samovar.toml");
    let text = format!(
        "store = {:?}\nlisten = \"127.0.0.1:0\"\nadmin.listen = []\n\
         access.tokens-file = {tokens:?}\n",
        sample_store()
    );
    fs::write(&file, text).unwrap();
    let in_etc = |script: &str| {
        let script = format!("mount --bind {}/etc /etc && {script}", dir.path().display());
        let mut command = bare("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", &script, "sh"]);
        command.arg(samovar().get_program());
        command
    };
    if !in_etc("true").output().unwrap().status.success() {
        assert!(std::env::var_os("CI").is_none(), "no mount namespaces");
        println!("not tested: mount namespaces cannot be made");
        return;
    }
    let mut serve = in_etc("exec \"$1\" serve");
    let (server, address) = Process::serving(&mut serve);
    let status = |token: &str| {
        let fields = format!("Authorization: Bearer {token}\r\n");
        support::status(&address.to_string(), "/nix-cache-info", &fields)
    };
    assert_eq!((status(&token), status("")), (200, 401));
    let away = etc.join("away");
    fs::rename(&file, &away).unwrap();
    for (count, signal) in ["HUP", "USR2", "HUP"].into_iter().enumerate() {
        server.signal(signal);
        eventually("the signal is handled", || {
            server.count("cannot read the configuration file") > count
        });
        assert_eq!((status(&token), status("")), (200, 401), "{signal}");
    }
    // A link that leads nowhere.
    symlink(etc.join("nothing"), &file).unwrap();
    let text = fails(&mut in_etc("exec \"$1\" serve"));
    assert!(
        text.contains("cannot read the configuration file"),
        "{text}"
    );
    fs::rename(&away, &file).unwrap();
    server.signal("HUP");
    server.wait_for(DONE);
    assert_eq!((status(&token), status("")), (200, 401));
}

/// A request never sees a mixture of two configurations. Access rules and policy change together: a
/// client without a token never gets a path that both configurations deny to it, and always gets a
/// path that both allow.
#[test]
fn no_request_sees_a_mixed_configuration() {
    let file = File::new("");
    let (line, token) = token("ci");
    let tokens = secret_file(file.path.parent().unwrap(), "tokens", &line);
    let (denied, other) = (sample("big"), sample("fixed"));
    // One configuration is public and denies the path. The other is private and denies nothing.
    let public = "access.networks = [\"127.0.0.1\"]\npolicy.deny = [{ names = [\"big\"] }]\n";
    let private = format!("access.tokens-file = {tokens:?}\n");
    file.write(public);
    let (server, address) = serve(&file);
    let credentials = format!("Authorization: Bearer {token}\r\n");
    let urls = |path: &str| {
        let hash = hash(path);
        [
            format!("/{hash}.narinfo"),
            format!("/{hash}.ls"),
            format!("/nar/{hash}.nar"),
            format!("/path/{hash}"),
        ]
    };
    let (is_over, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let ask = |path: &str, fields: &str| {
        let mut connection = Connection::new(&address);
        let mut seen = BTreeMap::new();
        while !is_over.load(Ordering::Relaxed) {
            for url in urls(path) {
                let (status, _) = connection.get(&url, fields);
                *seen.entry(status).or_insert(0) += 1;
                asked.fetch_add(1, Ordering::Relaxed);
            }
        }
        seen
    };
    let seen = std::thread::scope(|scope| {
        let clients = [
            scope.spawn(|| ask(&denied, "")),
            scope.spawn(|| ask(&other, "")),
            scope.spawn(|| ask(&other, &credentials)),
            scope.spawn(|| ask(&denied, &credentials)),
        ];
        let until = Until(&is_over);
        let mut connection = Connection::new(&address);
        for round in 0..60 {
            let is_public = round % 2 == 1;
            file.write(if is_public { public } else { &private });
            server.signal("HUP");
            server.wait_for(DONE);
            // Every request from now on must get the answer of the new configuration.
            let [narinfo, _, nar, ..] = urls(&denied);
            let expected = if is_public { 404 } else { 401 };
            assert_eq!(connection.status(&narinfo), expected);
            assert_eq!(connection.status(&nar), expected);
            let expected = if is_public { 404 } else { 200 };
            assert_eq!(connection.get(&narinfo, &credentials).0, expected);
            let (before, start) = (asked.load(Ordering::Relaxed), Instant::now());
            while asked.load(Ordering::Relaxed) < before + 20 {
                assert!(start.elapsed() < Duration::from_secs(60), "nobody asks");
                std::thread::yield_now();
            }
        }
        drop(until);
        clients.map(|client| client.join().unwrap())
    });
    let statuses = |index: usize| -> Vec<u16> { seen[index].keys().copied().collect() };
    assert_eq!(statuses(0), [401, 404], "denied to who has no token");
    assert_eq!(statuses(1), [200, 401], "who has no token");
    assert_eq!(statuses(2), [200], "who may have it before and after");
    assert_eq!(statuses(3), [200, 404], "who has a token");
    println!("60 changes: {seen:?}");
}

/// While real clients copy paths, a rule that denies one of them is added. Clients that start later
/// do not get that path. All other copies succeed.
#[test]
fn a_policy_is_tightened_while_clients_copy() {
    let (denied, other) = (sample("fixed"), sample("self_reference"));
    let name = &denied["/nix/store/".len() + 33..];
    let file = File::new("");
    let (server, address) = serve(&file);
    let (is_tight, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let copied = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let of_denied = scope.spawn(|| {
            let mut after = 0;
            while after < 2 {
                let was_tight = is_tight.load(Ordering::SeqCst);
                let has_it = copies(&address, &denied);
                assert!(!(was_tight && has_it), "it is denied");
                assert!(was_tight || has_it || is_over.load(Ordering::SeqCst));
                copied.fetch_add(usize::from(has_it), Ordering::SeqCst);
                after += usize::from(was_tight);
            }
        });
        let (address, other) = (&address, &other);
        scope.spawn(move || {
            while !of_denied.is_finished() {
                assert!(copies(address, other));
            }
        });
        let (tight, until) = (Until(&is_tight), Until(&is_over));
        let start = Instant::now();
        while copied.load(Ordering::SeqCst) == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody copies");
            std::thread::yield_now();
        }
        file.write(&format!("policy.deny = [{{ names = [{name:?}] }}]\n"));
        // The rule takes effect from here on, so a copy of the denied path may succeed or fail.
        drop(until);
        server.signal("HUP");
        server.wait_for(DONE);
        drop(tight);
    });
}

/// A cache moves to another prefix together with its rules, some of which need look-ups in the
/// store. The server answers no request there before the look-ups are complete.
#[test]
fn a_cache_moves_to_another_prefix() {
    let file = File::new("");
    let profile = file.path.with_file_name("profile");
    let (inside, outside) = (sample("self_reference"), sample("big"));
    symlink(&inside, &profile).unwrap();
    let allow = format!("policy.allow = [{{ roots = [{profile:?}] }}]\n");
    let at = |prefix: &str, title: &str, priority: u32| {
        format!(
            "[caches.stays]\npriority = 7\n[caches.moves]\nprefix = {prefix:?}\n\
             priority = {priority}\ntitle = {title:?}\n{allow}"
        )
    };
    file.write("[caches.stays]\npriority = 7\n");
    let (server, address) = serve(&file);
    let narinfo = |prefix: &str, path: &str| format!("{prefix}/{}.narinfo", hash(path));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut connection = Connection::new(&address);
                    let mut moved_count = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        assert_eq!(connection.status(&narinfo("/stays", &outside)), 200);
                        for prefix in ["/a", "/b", "/c/d"] {
                            let status = connection.status(&narinfo(prefix, &inside));
                            assert!([200, 404].contains(&status), "{prefix}: {status}");
                            moved_count += usize::from(status == 200);
                            assert_eq!(connection.status(&narinfo(prefix, &outside)), 404);
                        }
                    }
                    moved_count
                })
            })
            .collect();
        let until = Until(&is_over);
        let mut connection = Connection::new(&address);
        for (round, prefix) in ["/a", "/b", "/c/d", "/a", "/b"].iter().enumerate() {
            let priority = 20 + u32::try_from(round).unwrap();
            file.write(&at(prefix, &format!("Round {round}"), priority));
            server.signal("HUP");
            server.wait_for(DONE);
            for other in ["/a", "/b", "/c/d"] {
                let expected = if other == *prefix { 200 } else { 404 };
                let url = format!("{other}/nix-cache-info");
                assert_eq!(connection.status(&url), expected, "{url}");
                let status = connection.status(&narinfo(other, &inside));
                assert_eq!(status, expected, "{other}");
            }
            let (_, info) = connection.get(&format!("{prefix}/nix-cache-info"), "");
            let info = String::from_utf8(info).unwrap();
            assert!(
                info.contains(&format!("\nPriority: {priority}\n")),
                "{info}"
            );
            let (_, page) = connection.get(&format!("{prefix}/"), "");
            let page = String::from_utf8(page).unwrap();
            assert!(page.contains(&format!("<h1>Round {round}</h1>")), "{page}");
        }
        drop(until);
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
        // Under the new prefix, the server also notices that a root has changed.
        let other = profile.with_file_name("next");
        symlink(&outside, &other).unwrap();
        fs::rename(&other, &profile).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while connection.status(&narinfo("/b", &outside)) != 200 {
            assert!(Instant::now() < deadline, "the roots are followed");
        }
    });
    assert!(copies(&format!("{address}/b"), &outside));
}

/// An invalid configuration is reported in one line, and no part of it is applied.
#[test]
fn an_invalid_configuration_changes_nothing() {
    let file = File::new("");
    let users = secret_file(file.path.parent().unwrap(), "users", "nobody\n");
    file.write("priority = 10\n[caches.a]\n[caches.b]\naccess.networks = [\"127.0.0.1\"]\n");
    let (server, address) = serve(&file);
    let mut connection = Connection::new(&address);
    let users_of_all = format!("[access]\nusers-file = {users:?}\n[caches.a]\n[caches.b]\n");
    for (bad, why) in [
        ("nonsense = 1\n", "unknown option `nonsense`"),
        (
            "[caches.a]\nprefix = \"/x\"\n[caches.b]\nprefix = \"/x\"\n",
            "have the same prefix /x",
        ),
        (&users_of_all, "samovar password"),
        (
            "access.networks = [\"10.0.0.0/99\"]\n[caches.a]\n[caches.b]\n",
            "10.0.0.0/99",
        ),
        ("secret-key-files = [\"/nowhere/key\"]\n", "/nowhere/key"),
        (
            "policy.allow = [{ names = [] }]\n",
            "names is a list of at least one text",
        ),
        (
            "[caches.a]\npolicy.deny = [{ roots = [\"/nowhere/root\"] }]\n",
            "the root of a policy cannot be followed: \"/nowhere/root\"",
        ),
        (
            "[tls]\ncertificate = \"c\"\nkey = \"k\"\nclient-authorities = \"a\"\n\
             [access.certificates]\nany = true\n",
            "tls.client-authorities takes effect only after a restart",
        ),
    ] {
        file.write(&format!("priority = 20\n{bad}"));
        server.signal("HUP");
        let line = server.wait_for("the configuration was not changed");
        assert!(line.contains(why), "{bad}: {line}");
        server.signal("USR1");
        let lines = server.lines_to("events since the start");
        assert_eq!(lines.len(), 1, "{bad}: {line}\n{lines:?}");
        for cache in ["/a", "/b"] {
            let (status, info) = connection.get(&format!("{cache}/nix-cache-info"), "");
            let info = String::from_utf8(info).unwrap();
            assert!(status == 200 && info.contains("\nPriority: 10\n"), "{bad}");
        }
        assert_eq!(connection.status("/x/nix-cache-info"), 404, "{bad}");
        assert_eq!(connection.status("/nix-cache-info"), 404, "{bad}");
    }
    file.write("priority = 20\n");
    server.signal("HUP");
    server.wait_for(DONE);
    assert_eq!(connection.status("/nix-cache-info"), 200);
    assert_eq!(connection.status("/a/nix-cache-info"), 404);
}

/// A reload that removes the last restriction of a cache is applied, with a warning.
#[test]
fn a_cache_that_is_opened_is_reported() {
    let file = File::new("");
    let restricted = "[caches.a]\naccess.networks = [\"10.0.0.1\"]\n[caches.b]\n";
    file.write(restricted);
    let (server, address) = serve(&file);
    let mut connection = Connection::new(&address);
    assert_eq!(connection.status("/a/nix-cache-info"), 403);
    file.write("[caches.a]\naccess.networks = [\"127.0.0.1\"]\n[caches.b]\n");
    server.signal("HUP");
    assert!(!server.wait_for(DONE).contains("warning"));
    for (opened, is_reported) in [
        ("[caches.a]\n[caches.b]\n", true),
        ("[caches.a]\npriority = 5\n[caches.b]\n", false),
        (restricted, false),
        ("[caches.a]\naccess.rate = 1000\n[caches.b]\n", true),
    ] {
        file.write(opened);
        server.signal("HUP");
        let lines = server.lines_to(DONE);
        let warning = "warning: every client may now read /a/: before the reload, an option of \
                       access restricted it";
        let is_found = lines.iter().any(|line| line.contains(warning));
        assert_eq!(is_found, is_reported, "{opened}: {lines:?}");
        let status = if opened == restricted { 403 } else { 200 };
        assert_eq!(connection.status("/a/nix-cache-info"), status, "{opened}");
    }
}

/// Naming the first cache takes the cache at the root off the air.
#[test]
fn a_cache_that_is_no_longer_served_is_reported() {
    let file = File::new("");
    let (server, address) = serve(&file);
    let mut connection = Connection::new(&address);
    let warning = "warning: the cache at / is no longer served: as soon as one cache is named, \
                   all caches must be named; to serve it again, add [caches.default] with \
                   prefix = \"/\"";
    for (text, status, is_reported, changed) in [
        (
            "[caches.team]\npriority = 20\n",
            404,
            true,
            "; changed: caches.team (new)",
        ),
        (
            "[caches.team]\npriority = 20\n[caches.default]\nprefix = \"/\"\n",
            200,
            false,
            "; changed: caches.default (new)",
        ),
        (
            "[caches.default]\nprefix = \"/\"\n",
            200,
            false,
            "; changed: caches.team (no longer served)",
        ),
        (
            "[caches.default]\nprefix = \"/cache\"\n",
            404,
            true,
            "; changed: caches.default.prefix",
        ),
        (
            "",
            200,
            false,
            "; changed: caches.default (no longer served)",
        ),
    ] {
        file.write(text);
        server.signal("HUP");
        let lines = server.lines_to(DONE);
        let is_found = lines.iter().any(|line| line.contains(warning));
        assert_eq!(is_found, is_reported, "{text}: {lines:?}");
        let done = lines.last().unwrap();
        assert!(done.ends_with(changed), "{done}");
        assert_eq!(connection.status("/nix-cache-info"), status, "{text}");
    }
}

/// A start that serves nothing at the root because the caches are named says so.
#[test]
fn a_start_without_a_cache_at_the_root_is_reported() {
    let start = |text: &str| {
        let file = File::new(text);
        let server = file.serve();
        server.lines_to("on http://")
    };
    let told = |lines: &[String], at: &str| {
        let part = format!("warning: nothing is served at /: {at}");
        lines.iter().any(|line| line.contains(&part))
    };
    let several = "the caches are at /a/, /b/; to serve the cache ";
    for (text, at) in [
        ("[caches.team]\n", "the only cache is at /team/".to_owned()),
        ("[caches.a]\n[caches.b]\n", format!("{several}a at /")),
        (
            "[caches.a]\nprefix = \"/a\"\n[caches.b]\n",
            format!("{several}b at /"),
        ),
    ] {
        let lines = start(text);
        assert!(told(&lines, &at), "{text}: {lines:?}");
    }
    for text in [
        "",
        "[caches.team]\nprefix = \"/\"\n",
        "[caches.team]\nprefix = \"/team\"\n",
        "[caches.a]\nprefix = \"/a\"\n[caches.b]\nprefix = \"/b\"\n",
        "[caches.a]\n[caches.b]\nprefix = \"/\"\n",
    ] {
        let lines = start(text);
        assert!(!told(&lines, ""), "{text}: {lines:?}");
    }
}
