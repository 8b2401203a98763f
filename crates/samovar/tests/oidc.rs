//! CI jobs push with the ID tokens of their CI service, without a stored secret. The issuer is a
//! server of this test, with keys and signatures of OpenSSL.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_oidc;
mod support_push;
mod support_uploads;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use support::{hash, samovar, sample, sample_store};
use support_oidc::{AUDIENCE, Pair, Trusting};
use support_push::{Pusher, exits_with};
use testkit::eventually;
use testkit::process::output;

#[test]
fn a_job_pushes_with_its_id_token() {
    let trusting = Trusting::new();
    let rsa = Pair::rsa("key-2");
    trusting
        .issuer
        .set(|answers| answers.keys.push(rsa.public()));
    let pusher = Pusher::new(&sample_store(), "unused");
    for (pair, name) in [(&trusting.pair, "self_reference"), (&rsa, "fixed")] {
        let id_token = pair.token(&trusting.claims());
        let path = sample(name);
        let text = output(trusting.push(&pusher, &id_token).arg(&path));
        assert!(text.starts_with("pushed "), "{text}");
        let narinfo = trusting.server.get(&format!("/{}.narinfo", hash(&path)));
        assert_eq!(narinfo.status, 200);
    }
    // One fetch serves both.
    assert_eq!(trusting.issuer.count("/jwks"), 1);
    // The operator sees where the tokens come from, and how long they are valid.
    let mut list = samovar();
    list.args(["token", "list", "--storage"]);
    let list = output(list.arg(trusting.site.storage()));
    let tokens = list
        .lines()
        .filter(|line| line.starts_with("oidc:github:example/app:4711 "));
    assert_eq!(
        tokens.filter(|line| line.ends_with(" valid")).count(),
        2,
        "{list}"
    );
    let left = trusting
        .site
        .sql("select max(expires_at) - unixepoch() from token");
    let left: i64 = left.trim().parse().unwrap();
    assert!((3500..=3600).contains(&left), "{left}");
    // The log has a line for each token, and no secret.
    let lines = "the token \"oidc:github:example/app:4711\" with the rights read,push was given";
    eventually("the log has both lines", || {
        trusting.server.process.count(lines) == 2
    });
    // Names of this form are no names for other tokens.
    let mut create = samovar();
    create.args(["token", "create", "--name", "oidc:github:x", "--storage"]);
    let refusal = exits_with(create.arg(trusting.site.storage()), 1);
    assert!(refusal.contains("choose another name"), "{refusal}");
}

#[test]
fn a_job_of_github_sets_up_nix_and_pushes() {
    let trusting = Trusting::new();
    let id_token = trusting.id_token();
    trusting.issuer.set(|answers| answers.id_token = id_token);
    let home = tempfile::tempdir().unwrap();
    let job = |arguments: &[&str]| {
        let mut command = samovar();
        command
            .args(arguments)
            .env("HOME", home.path())
            .env("XDG_CONFIG_HOME", home.path())
            .env("NIX_CONF_DIR", home.path())
            .env("GITHUB_ACTIONS", "true")
            .env(
                "ACTIONS_ID_TOKEN_REQUEST_URL",
                format!("{}/github?api-version=2.0", trusting.issuer.url),
            )
            .env("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "request-token");
        command
    };
    let url = trusting.server.url();
    let audience = format!("--oidc={AUDIENCE}");
    let mut setup = job(&["use", "--yes", &audience, &url]);
    let text = output(&mut setup);
    let masked = text
        .lines()
        .find_map(|line| line.strip_prefix("::add-mask::"));
    let masked = masked.unwrap();
    assert!(
        masked.starts_with("smv1_") && text.contains("which may push"),
        "{text}"
    );
    let request = format!(
        "/github?api-version=2.0&audience={}",
        "https%3A%2F%2Fcache%2Eexample%2Eorg"
    );
    assert_eq!(trusting.issuer.count(&request), 1);
    // The token is in the netrc file, which only the user can read.
    let mut found = Vec::new();
    for entry in walk(home.path()) {
        let text = fs::read_to_string(&entry).unwrap();
        if text.contains(masked) {
            assert_eq!(fs::metadata(&entry).unwrap().mode() & 0o777, 0o600);
            found.push(entry);
        }
    }
    assert_eq!(found.len(), 1, "{found:?}");
    let path = sample("self_reference");
    let mut push = samovar();
    push.args(["push", &url, "--store", &sample_store(), &path])
        .env("HOME", home.path())
        .env("XDG_CONFIG_HOME", home.path())
        .env("NIX_CONFIG", format!("netrc-file = {}", found[0].display()));
    output(&mut push);
    assert_eq!(
        trusting
            .server
            .get(&format!("/{}.narinfo", hash(&path)))
            .status,
        200
    );
    // A job that may not request an ID token learns what is missing.
    let mut forbidden = job(&["push", &url, "--store", &sample_store(), &audience, &path]);
    let refusal = exits_with(forbidden.env_remove("ACTIONS_ID_TOKEN_REQUEST_URL"), 2);
    assert!(
        refusal.contains("permissions: id-token: write"),
        "{refusal}"
    );
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(walk(&path)),
            false => files.push(path),
        }
    }
    files
}

#[test]
fn a_refused_job_learns_why_and_the_log_has_one_line() {
    let trusting = Trusting::new();
    let pusher = Pusher::new(&sample_store(), "unused");
    let claims = trusting.issuer.claims("example/app", "feature");
    let id_token = trusting.pair.token(&claims);
    let mut push = trusting.push(&pusher, &id_token);
    let text = exits_with(push.arg(sample("fixed")), 1);
    assert!(
        text.contains("the cache refused the ID token") && text.contains("claim \"ref\""),
        "{text}"
    );
    // Neither the values of claims nor the token are shown.
    assert!(
        !text.contains("feature") && !text.contains(&id_token),
        "{text}"
    );
    let line = "an ID token of the issuer \"github\" for \
                \"repo:example/app:ref:refs/heads/feature\" from 127.0.0.1 was not exchanged: no \
                rule of the issuer \"github\" admits this ID token: rule 1 does not match the \
                claim \"ref\"";
    eventually("the log has the line", || {
        trusting.server.process.count(line) == 1
    });
    assert_eq!(trusting.site.sql("select count(*) from token").trim(), "0");
}

#[test]
fn a_long_push_extends_its_token() {
    let trusting = Trusting::new();
    let url = hasty(trusting.server.address);
    let pusher = Pusher::new(&sample_store(), "unused");
    let path = sample("self_reference");
    let mut push = pusher.without_token(&url);
    push.arg(format!("--oidc={AUDIENCE}")).arg(&path);
    output(push.env("SAMOVAR_ID_TOKEN", trusting.id_token()));
    let narinfo = trusting.server.get(&format!("/{}.narinfo", hash(&path)));
    assert_eq!(narinfo.status, 200);
    // One token was extended several times.
    assert_eq!(trusting.site.sql("select count(*) from token").trim(), "1");
    let given = trusting
        .server
        .process
        .count("the token \"oidc:github:example/app:4711\"");
    assert!(given > 2, "{given}");
}

#[test]
fn the_command_of_exec_gets_no_id_token() {
    let trusting = Trusting::new();
    let pusher = Pusher::new(&sample_store(), "unused");
    let mut push = trusting.push(&pusher, &trusting.id_token());
    let text = output(push.args(["--exec", "--", "sh", "-c", "env; echo done"]));
    assert!(
        text.contains("done\n") && !text.contains("SAMOVAR_ID_TOKEN"),
        "{text}"
    );
    assert!(!text.contains("smv1_"), "{text}");
}

/// Starts a proxy in front of a server that says of each token that it expires at once, so that
/// clients renew it with each request.
fn hasty(server: SocketAddr) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for client in listener.incoming() {
            std::thread::spawn(move || forward(client.unwrap(), server));
        }
    });
    url
}

/// Forwards one request and its response.
fn forward(mut client: TcpStream, server: SocketAddr) {
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let (mut head, mut len) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            len = value.trim().parse().unwrap();
        }
        match &*line {
            "\r\n" => break,
            _ if lower.starts_with("connection:") || lower.starts_with("expect:") => {}
            _ => head.push_str(&line),
        }
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).unwrap();
    let mut upstream = TcpStream::connect(server).unwrap();
    let head = format!("{head}Connection: close\r\n\r\n");
    upstream.write_all(head.as_bytes()).unwrap();
    upstream.write_all(&body).unwrap();
    let mut response = Vec::new();
    upstream.read_to_end(&mut response).unwrap();
    let is_exchange = head.starts_with("POST /upload/oidc ");
    if is_exchange {
        // The body becomes shorter, and ends with the connection.
        let text = String::from_utf8(response).unwrap();
        let text = text.replace(" 3600\n", " 0\n");
        response = text.replace("Content-Length: ", "X-Length: ").into_bytes();
    }
    client.write_all(&response).ok();
}
