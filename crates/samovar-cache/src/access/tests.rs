//! Access rules admit and refuse clients over real connections; tests control the clock.

mod limits;
mod methods;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use samovar_http::http::Status;
use samovar_http::{Inline, Listener, Reply, Request, Server, Service, Turn};

use super::*;
use crate::refusal::Fixed;

/// A service that answers with the client's name, followed by "at once", or by "verified" if a
/// worker had to verify the password.
struct Door {
    access: Arc<RwLock<Arc<Access>>>,
    now: Arc<Mutex<Instant>>,
}

impl Door {
    fn access(&self) -> Arc<Access> {
        Arc::clone(&self.access.read().unwrap())
    }

    fn now(&self) -> Instant {
        *self.now.lock().unwrap()
    }
}

impl Service for Door {
    type Local = ();

    fn local(&self) {}

    fn inline(&self, (): &mut (), _: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        let access = self.access();
        match access.admit(head, self.now(), None) {
            Verdict::Granted => {
                let client = access.client(head, self.now());
                reply.response(welcome(&client, "at once"))
            }
            Verdict::Unverified => reply.dispatch_costly(),
            Verdict::Refused(refusal) => access
                .refuse(refusal, reply)
                .unwrap_or_else(|reply| reply.response(Fixed::NotFound.response())),
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        let access = self.access();
        match access.authenticate(request.head(), self.now()) {
            Verdict::Granted => {
                let client = access.client(request.head(), self.now());
                welcome(&client, "verified")
            }
            Verdict::Unverified => unreachable!(),
            Verdict::Refused(refusal) => access
                .refused(refusal)
                .unwrap_or_else(|| Fixed::NotFound.response()),
        }
    }
}

fn welcome(client: &Client, how: &str) -> Response {
    let name = client.name.as_deref().unwrap_or("somebody");
    Response::text(Status::OK, format!("{name} {how}"))
}

struct House {
    access: Arc<RwLock<Arc<Access>>>,
    now: Arc<Mutex<Instant>>,
    addr: SocketAddr,
    _server: Server<Door>,
    warnings: Vec<String>,
}

impl House {
    fn new(config: AccessConfig) -> Self {
        let (access, warnings) = Access::new(config).unwrap();
        let access = Arc::new(RwLock::new(Arc::new(access)));
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = Listener::tcp(addr, 64).unwrap();
        let now = Arc::new(Mutex::new(Instant::now()));
        let door = Door {
            access: Arc::clone(&access),
            now: Arc::clone(&now),
        };
        let server = Server::builder(door).listen(listener).start().unwrap();
        Self {
            access,
            now,
            addr: server.local_addrs()[0],
            _server: server,
            warnings,
        }
    }

    /// Advances the clock, which otherwise stands still.
    fn pass(&self, time: Duration) {
        *self.now.lock().unwrap() += time;
    }

    fn change(&self, config: AccessConfig) -> Result<Vec<String>, AccessError> {
        let before = Arc::clone(&self.access.read().unwrap());
        let (renewed, warnings) = before.renewed(config)?;
        *self.access.write().unwrap() = Arc::new(renewed);
        Ok(warnings)
    }

    fn reload(&self) -> Result<Vec<String>, AccessError> {
        let config = self.access.read().unwrap().config.clone();
        self.change(config)
    }

    /// Sends a request. Returns the status, the relevant header fields, and the body.
    fn ask(&self, fields: &str) -> String {
        exchange(TcpStream::connect(self.addr).unwrap(), fields)
    }

    fn basic(&self, user: &str, password: &str) -> String {
        let text = STANDARD.encode(format!("{user}:{password}"));
        self.ask(&format!("Authorization: Basic {text}\r\n"))
    }
}

fn exchange(mut stream: impl Read + Write, fields: &str) -> String {
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let mut told = head[9..12].to_owned();
    for line in head.lines() {
        if line.starts_with("WWW-") || line.starts_with("Retry-") {
            told.push(' ');
            told.push_str(line);
        }
    }
    format!("{told} {}", body.trim())
}

fn file(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn user(name: &str, password: &str) -> String {
    // The lowest cost, because the hash itself is not under test.
    format!("{name}:{}\n", bcrypt::hash(password, 4).unwrap())
}

const REFUSED: &str = "401 WWW-Authenticate: Basic realm=\"Nix binary cache\", charset=\"UTF-8\" \
                       The request has no valid credentials.";

#[test]
fn passwords_and_tokens_admit_their_clients() {
    let dir = tempfile::tempdir().unwrap();
    let (token, line) = new_token("ci").unwrap();
    let house = House::new(AccessConfig {
        users_file: Some(file(
            dir.path(),
            "users",
            &(user("ada", "x") + &user("", "y")),
        )),
        tokens_file: Some(file(dir.path(), "tokens", &line)),
        ..AccessConfig::default()
    });
    assert_eq!(house.warnings, [""; 0]);
    assert_eq!(house.ask(""), REFUSED);
    assert_eq!(house.basic("ada", "x"), "200 ada verified");
    assert_eq!(house.basic("ada", "x"), "200 ada at once");
    assert_eq!(house.basic("", "y"), "200 verified");
    for (user, password) in [("ada", "y"), ("eve", "x"), ("ada", ""), ("", "")] {
        assert_eq!(house.basic(user, password), REFUSED, "{user}:{password}");
    }
    assert_eq!(
        house.ask(&format!("Authorization: Bearer {token}\r\n")),
        "200 ci at once"
    );
    for user in ["", "ada", "whoever"] {
        assert_eq!(house.basic(user, &token), "200 ci at once");
    }
    assert_eq!(
        house.ask(&format!("Authorization: Bearer {token}x\r\n")),
        REFUSED
    );
    assert_eq!(house.ask("Authorization: Basic !\r\n"), REFUSED);
}

#[test]
fn clients_are_admitted_by_network_also_behind_a_trusted_proxy() {
    let own = House::new(AccessConfig {
        networks: vec!["127.0.0.0/8".into()],
        ..AccessConfig::default()
    });
    assert_eq!(own.ask(""), "200 somebody at once");
    // Forwarding headers of a client that is no proxy are ignored.
    assert_eq!(
        own.ask("X-Forwarded-For: 192.0.2.1\r\n"),
        "200 somebody at once"
    );
    let behind = House::new(AccessConfig {
        networks: vec!["192.0.2.0/24".into(), "2001:db8::/32".into()],
        trusted_proxies: vec!["127.0.0.1".into()],
        ..AccessConfig::default()
    });
    let refused = "403 Access is not allowed.";
    assert_eq!(behind.ask(""), refused);
    assert_eq!(
        behind.ask("X-Forwarded-For: 192.0.2.1\r\n"),
        "200 somebody at once"
    );
    assert_eq!(
        behind.ask("X-Forwarded-For: 192.0.2.1, 203.0.113.1\r\n"),
        refused
    );
    assert_eq!(
        behind.ask("X-Forwarded-For: 2001:db8::7\r\n"),
        "200 somebody at once"
    );
    assert_eq!(behind.ask("Forwarded: for=192.0.2.1\r\n"), refused);
}

#[test]
fn processes_are_admitted_on_a_unix_socket_by_uid_and_gid() {
    let own = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    let check = |uids: Vec<u32>, gids: Vec<u32>, expected: &str| {
        let dir = tempfile::tempdir().unwrap();
        let config = AccessConfig {
            uids,
            gids,
            ..AccessConfig::default()
        };
        let access = Arc::new(RwLock::new(Arc::new(Access::new(config).unwrap().0)));
        let path = dir.path().join("socket");
        let listener = Listener::unix(&path, 64).unwrap();
        let now = Arc::new(Mutex::new(Instant::now()));
        let server = Server::builder(Door { access, now })
            .listen(listener)
            .start();
        let answer = exchange(UnixStream::connect(&path).unwrap(), "");
        assert_eq!(answer, expected);
        drop(server);
    };
    let welcome = format!("200 uid:{own} at once");
    check(vec![own], vec![], &welcome);
    check(vec![], vec![group], &welcome);
    check(vec![own + 1], vec![group + 1], "403 Access is not allowed.");
}

#[test]
fn the_configured_status_is_sent_to_refused_clients() {
    let check = |refuse_with, expected: &str| {
        let config = AccessConfig {
            networks: vec!["192.0.2.0/24".into()],
            realm: "ours".to_owned(),
            refuse_with,
            ..AccessConfig::default()
        };
        assert_eq!(House::new(config).ask(""), expected);
    };
    let challenge = "401 WWW-Authenticate: Basic realm=\"ours\", charset=\"UTF-8\" \
                     The request has no valid credentials.";
    check(RefuseWith::Unauthorized, challenge);
    check(RefuseWith::Forbidden, "403 Access is not allowed.");
    check(RefuseWith::NotFound, "404 File not found.");
}

#[test]
fn a_reload_changes_the_admitted_clients_or_fails_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (ada, bob) = (user("ada", "x"), user("bob", "x"));
    let path = file(dir.path(), "users", &(ada.clone() + &bob));
    let house = House::new(AccessConfig {
        users_file: Some(path.clone()),
        ..AccessConfig::default()
    });
    assert_eq!(house.basic("ada", "x"), "200 ada verified");
    assert_eq!(house.basic("bob", "x"), "200 bob verified");
    for bad in ["ada:x\n", "nobody"] {
        std::fs::write(&path, bad).unwrap();
        let error = house.reload().unwrap_err().to_string();
        assert!(
            error.contains("line 1") && error.contains("samovar password"),
            "{error}"
        );
        assert_eq!(house.basic("bob", "x"), "200 bob at once");
    }
    std::fs::remove_file(&path).unwrap();
    house.reload().unwrap_err();
    assert_eq!(house.basic("bob", "x"), "200 bob at once");
    std::fs::write(&path, &ada).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let warnings = house.reload().unwrap();
    assert!(
        warnings[0].contains("is readable by all users"),
        "{warnings:?}"
    );
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(house.reload().unwrap().is_empty());
    assert_eq!(house.basic("ada", "x"), "200 ada at once");
    assert_eq!(house.basic("bob", "x"), REFUSED);
    std::fs::write(&path, user("ada", "z")).unwrap();
    house.reload().unwrap();
    assert_eq!(house.basic("ada", "x"), REFUSED);
    assert_eq!(house.basic("ada", "z"), "200 ada verified");
}

#[test]
fn a_client_that_exceeds_its_rate_limit_gets_429() {
    let rate_limit = Some(RateLimit {
        per_second: 1,
        burst: 3,
    });
    let (token, line) = new_token("ci").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = AccessConfig {
        tokens_file: Some(file(dir.path(), "tokens", &line)),
        networks: vec!["127.0.0.1".into()],
        rate_limit,
        ..AccessConfig::default()
    };
    let house = House::new(config.clone());
    let let_in = (0..20).take_while(|_| house.ask("") == "200 somebody at once");
    assert_eq!(let_in.count(), 3);
    house.pass(Duration::from_millis(1));
    let refused = "429 Retry-After: 1 Too many requests. Try again later.";
    // A known client has a bucket of its own.
    let known = format!("Authorization: Bearer {token}\r\n");
    assert_eq!(house.ask(&known), "200 ci at once");
    // A reload refills no bucket.
    house.change(config).unwrap();
    assert_eq!(house.ask(""), refused);
}

#[test]
fn guessed_passwords_are_limited_and_verified_users_are_not_affected() {
    let dir = tempfile::tempdir().unwrap();
    let house = House::new(AccessConfig {
        users_file: Some(file(dir.path(), "users", &user("ada", "x"))),
        ..AccessConfig::default()
    });
    assert_eq!(house.basic("ada", "x"), "200 ada verified");
    // Repeating one wrong password does not count as guessing.
    for _ in 0..2 * ATTEMPTS_BURST {
        assert_eq!(house.basic("ada", "wrong"), REFUSED);
    }
    let answers = (0..30).map(|number| house.basic("ada", &number.to_string()));
    let verified = answers.take_while(|answer| answer == REFUSED).count();
    assert_eq!(verified, 9);
    let answer = house.basic("ada", "one more");
    assert!(answer.starts_with("429 Retry-After: "), "{answer}");
    assert_eq!(house.basic("ada", "wrong"), REFUSED);
    assert_eq!(house.basic("ada", "x"), "200 ada at once");
}

/// Many machines may share an address, and one of them may have a wrong password or be hostile.
#[test]
fn guessed_passwords_do_not_affect_other_users_at_the_address() {
    let dir = tempfile::tempdir().unwrap();
    let lines = [user("ada", "x"), user("bob", "y"), user("eve", "z")].concat();
    let house = House::new(AccessConfig {
        users_file: Some(file(dir.path(), "users", &lines)),
        ..AccessConfig::default()
    });
    let guess = |name: &str| {
        let guesses = (0..60).map(|number| house.basic(name, &number.to_string()));
        guesses.filter(|answer| answer == REFUSED).count()
    };
    assert_eq!(guess("ada"), 10);
    assert!(house.basic("ada", "x").starts_with("429 "));
    // Another user at that address, not known yet, is still verified.
    assert_eq!(house.basic("bob", "y"), "200 bob verified");
    // Unknown names behave like known ones, so that clients cannot tell them apart.
    assert_eq!(guess("nobody"), 10);
    // Guessing a few passwords for each of many names is limited as well.
    let verified: usize = (0..30).map(|number| guess(&format!("name{number}"))).sum();
    assert_eq!(verified, 80);
    assert!(house.basic("eve", "z").starts_with("429 "));
    assert_eq!(house.basic("bob", "y"), "200 bob at once");
}

#[test]
fn an_invalid_access_configuration_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let check = |config: AccessConfig, expected: &str| {
        let error = Access::new(config).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let default = AccessConfig::default;
    let missing = Some(dir.path().join("missing"));
    check(
        AccessConfig {
            users_file: missing,
            ..default()
        },
        "cannot be read",
    );
    let directory = Some(dir.path().to_owned());
    check(
        AccessConfig {
            tokens_file: directory,
            ..default()
        },
        "cannot be read",
    );
    let tokens = file(dir.path(), "tokens", "");
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o604)).unwrap();
    check(
        AccessConfig {
            tokens_file: Some(tokens),
            ..default()
        },
        "readable by all users",
    );
    let networks = vec!["10.0.0.0/8".into(), "example.org".into()];
    check(
        AccessConfig {
            networks,
            ..default()
        },
        "\"example.org\" is not a network",
    );
    let trusted_proxies = vec!["unix".into(), "nginx".into()];
    check(
        AccessConfig {
            trusted_proxies,
            ..default()
        },
        "\"nginx\" is not a network",
    );
    let certificates = CertificateConfig {
        fingerprints: vec!["AB:CD".into()],
        ..CertificateConfig::default()
    };
    check(
        AccessConfig {
            certificates,
            ..default()
        },
        "\"AB:CD\" is not a SHA-256",
    );
    let realm = "a\"b".to_owned();
    check(AccessConfig { realm, ..default() }, "realm");
    let rate_limit = Some(RateLimit {
        per_second: 0,
        burst: 1,
    });
    check(
        AccessConfig {
            rate_limit,
            ..default()
        },
        "at least 1 request",
    );
}
