//! The access log states the name of the authenticated client, its address and the store path.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use support::{File, Server, hash, samovar, sample, secret_file, serve, status, token, user};

/// A server with an access log. Each request is sent over a new connection.
struct Logged {
    _server: Server,
    address: String,
    log: PathBuf,
    seen: usize,
}

impl Logged {
    fn new(file: &File, format: &str, more: &str) -> Self {
        let log = file.path.with_file_name("access.log");
        file.write(&format!(
            "admin.listen = []\nlog.access = {log:?}\nlog.access-format = {format:?}\n{more}"
        ));
        let (server, address) = serve(file);
        let seen = 0;
        Self {
            _server: server,
            address,
            log,
            seen,
        }
    }

    /// Sends a GET request. Returns the status of the response and the line in the access log.
    fn get(&mut self, target: &str, fields: &str) -> (u16, String) {
        let status = status(&self.address, target, fields);
        let mut line = None;
        testkit::eventually("the request is logged", || {
            let text = fs::read_to_string(&self.log).unwrap();
            let mut lines = text.split_inclusive('\n');
            line = lines.nth(self.seen).map(str::to_owned);
            line.as_ref().is_some_and(|line| line.ends_with('\n'))
        });
        self.seen += 1;
        (status, line.unwrap())
    }

    fn json(&mut self, target: &str, fields: &str) -> (u16, Value) {
        let (status, line) = self.get(target, fields);
        (status, serde_json::from_str(&line).unwrap())
    }
}

/// Writes a users file and a tokens file. Returns their lines and the token.
fn credentials(dir: &Path) -> (String, String) {
    let users = secret_file(dir, "users", &user("ada", "x"));
    let (line, token) = token("ci");
    let tokens = secret_file(dir, "tokens", &line);
    let access = format!("[access]\nusers-file = {users:?}\ntokens-file = {tokens:?}\n");
    (access, token)
}

#[test]
fn the_authenticated_user_is_logged() {
    let file = File::new("");
    let (access, token) = credentials(file.path.parent().unwrap());
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    // The base-64 texts encode the logins ada:x and ada:y.
    let basic = |text: &str| format!("Authorization: Basic {text}\r\n");
    let long = STANDARD.encode(format!("{}:y", "n".repeat(700)));
    let asked = [
        (bearer(&token), 200, Some("ci"), None),
        (bearer("nonsense"), 401, None, None),
        (String::new(), 401, None, None),
        // A worker verifies the first password. Later, its result is in memory.
        (basic("YWRhOng="), 200, Some("ada"), None),
        (basic("YWRhOng="), 200, Some("ada"), None),
        (basic("YWRhOnk="), 401, None, Some("ada")),
        (basic("YWRhOnk="), 401, None, Some("ada")),
        // The names are `a "[` and a long one.
        (basic("YSAiWzp5"), 401, None, Some("a \"[")),
        (basic(&long), 401, None, Some(&"n".repeat(64))),
    ];
    let mut logged = Logged::new(&file, "json", &access);
    let url = format!("/{}.narinfo", hash(&sample("fixed")));
    for (fields, status, name, refused) in &asked {
        let (said, line) = logged.json(&url, fields);
        assert_eq!(said, *status, "{fields}");
        assert_eq!(line["user"].as_str(), *name, "{fields}");
        assert_eq!(line["refused_user"].as_str(), *refused, "{fields}");
        assert_eq!(line["client"], "127.0.0.1");
    }
    drop(logged);
    fs::remove_file(file.path.with_file_name("access.log")).unwrap();
    let mut logged = Logged::new(&file, "combined", &access);
    for (fields, status, name, refused) in &asked {
        let (said, line) = logged.get(&url, fields);
        assert_eq!(said, *status, "{fields}");
        let name = name.or(*refused).unwrap_or("-");
        let name = name.replace('"', "\\\"").replace(' ', "\\x20");
        let expected = format!("127.0.0.1 - {name} [");
        assert!(line.starts_with(&expected), "{line}");
    }
}

/// A hidden cache answers a wrong password with 404, as if it did not exist. Only the JSON log has
/// the name, in a field of its own.
#[test]
fn a_login_that_a_hidden_cache_refuses_is_logged() {
    let file = File::new("");
    let (access, _) = credentials(file.path.parent().unwrap());
    let access = format!("{access}refuse-with = \"404\"\n");
    let wrong = "Authorization: Basic YWRhOnk=\r\n";
    let mut logged = Logged::new(&file, "json", &access);
    let (status, line) = logged.json("/nix-cache-info", wrong);
    assert_eq!((status, &line["user"]), (404, &Value::Null));
    assert_eq!(line["refused_user"], "ada");
    drop(logged);
    fs::remove_file(file.path.with_file_name("access.log")).unwrap();
    let mut logged = Logged::new(&file, "combined", &access);
    let (status, line) = logged.get("/nix-cache-info", wrong);
    assert!(
        status == 404 && line.starts_with("127.0.0.1 - - ["),
        "{line}"
    );
}

/// Also while the command that runs the server has standard output.
#[test]
fn the_access_log_may_go_to_standard_output() {
    let file = File::new("admin.listen = []\nlog.access = \"-\"\n");
    let log = file.path.with_file_name("access.log");
    let mut command = samovar();
    command.args(["serve", "--config"]).arg(&file.path);
    let server = Server::spawn(command.stdout(fs::File::create(&log).unwrap()));
    let address = server.wait_for_address().to_string();
    assert_eq!(status(&address, "/nix-cache-info", ""), 200);
    testkit::eventually("the request is logged", || {
        fs::read_to_string(&log)
            .unwrap()
            .contains("GET /nix-cache-info")
    });
}

#[test]
fn readable_paths_are_logged_in_full() {
    let file = File::new("");
    let rules = "[caches.all]\n\
                 [caches.team]\npolicy.deny = [{ names = [\"big\"] }]\n";
    let mut logged = Logged::new(&file, "json", rules);
    let (path, absent) = (sample("fixed"), sample("absent"));
    let big = sample("big");
    let hash_of = |path: &str| hash(path).to_owned();
    for url in [
        format!("/all/nar/{}.nar", hash(&path)),
        format!("/all/nar/{}.nar", hash(&path)),
        format!("/all/{}.ls", hash(&path)),
        format!("/all/{}.narinfo", hash(&path)),
        format!("/team/{}.narinfo?x", hash(&path)),
        format!("/team/{}.narinfo", hash(&path)),
    ] {
        let (status, line) = logged.json(&url, "");
        assert_eq!(
            (status, &line["path"]),
            (200, &Value::from(&*path)),
            "{url}"
        );
    }
    let (status, line) = logged.json(&format!("/all/{}.narinfo", hash(&absent)), "");
    assert_eq!((status, &line["path"]), (404, &Value::Null));
    assert_eq!(line["hash"], hash_of(&absent));
    let (status, line) = logged.json(&format!("/team/{}.narinfo", hash(&big)), "");
    assert_eq!((status, &line["path"]), (404, &Value::Null));
    let (_, line) = logged.json("/all/nix-cache-info", "");
    assert_eq!(line["path"], Value::Null);
}

/// Forwarding headers from untrusted clients are ignored.
#[test]
fn only_trusted_proxies_set_the_address() {
    let check = |proxy: &str, header: &str, asked: &[(&str, Option<&str>)]| {
        let file = File::new("");
        let more = format!(
            "log.client-address = \"forwarded\"\n[access]\ntrusted-proxies = [{proxy:?}]\n\
             forwarded-header = {header:?}\n"
        );
        let mut logged = Logged::new(&file, "json", &more);
        for (fields, expected) in asked {
            let (status, line) = logged.json("/nix-cache-info", fields);
            assert_eq!(status, 200);
            assert_eq!(line["client"].as_str(), *expected, "{proxy}: {fields}");
        }
    };
    let own = Some("127.0.0.1");
    let by_one = "X-Forwarded-For: 203.0.113.9\r\n";
    let forged = "X-Forwarded-For: 1.2.3.4, 203.0.113.9\r\n";
    check(
        "127.0.0.1",
        "x-forwarded-for",
        &[
            (by_one, Some("203.0.113.9")),
            (forged, Some("203.0.113.9")),
            ("X-Forwarded-For: unknown\r\n", None),
            ("X-Real-IP: 203.0.113.9\r\n", own),
            ("Forwarded: for=203.0.113.9\r\n", own),
            ("", own),
        ],
    );
    check(
        "127.0.0.1",
        "forwarded",
        &[
            ("Forwarded: for=203.0.113.9\r\n", Some("203.0.113.9")),
            (by_one, own),
        ],
    );
    check(
        "192.0.2.1",
        "x-forwarded-for",
        &[(by_one, own), (forged, own)],
    );
}
