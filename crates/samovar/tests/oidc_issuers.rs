//! The keys of issuers of ID tokens: fetched rarely, by nobody's request alone, and only from the
//! issuer that the configuration names.

mod support;
mod support_oidc;
mod support_push;
mod support_uploads;

use std::fs;
use std::net::TcpStream;
use std::process::Command;

use serde_json::json;
use support::samovar;
use support_oidc::{
    AUDIENCE, Answers, Issuer, Pair, Trusting, certificate, exchange, now, token_of,
};
use support_uploads::{Site, assert_refused};
use testkit::eventually;
use testkit::process::{Process, output};

#[test]
fn keys_are_fetched_rarely_and_new_ones_are_found() {
    let trusting = Trusting::new();
    trusting.token(&trusting.id_token());
    let unknown = Pair::ec("key-9");
    let forged = unknown.token(&trusting.claims());
    for _ in 0..20 {
        assert_refused(&trusting.exchange(&forged), 401, &["does not have"]);
    }
    // The keys were just fetched, so a new key is looked for after a minute.
    assert_eq!(trusting.issuer.count("/jwks"), 1);
    // A reload keeps the keys; another URL of the issuer needs new ones.
    let lines = "the configuration was reloaded";
    trusting.server.process.signal("HUP");
    eventually("the reload", || trusting.server.process.count(lines) == 1);
    trusting.token(&trusting.id_token());
    assert_eq!(trusting.issuer.count("/jwks"), 1);
    let next = Issuer::start(&[&unknown]);
    trusting.site.configure_empty(&next.configuration(""));
    trusting.server.process.signal("HUP");
    eventually("the reload", || trusting.server.process.count(lines) == 2);
    let old = trusting.exchange(&trusting.id_token());
    assert_refused(&old, 401, &["not configured here"]);
    trusting.token(&unknown.token(&next.claims("example/app", "main")));
}

#[test]
fn an_issuer_that_misbehaves_is_not_believed() {
    let pair = Pair::ec("key-1");
    let keys = json!({"keys": [pair.public()]}).to_string();
    let pad = |len: usize| format!("{}{}", keys, " ".repeat(len));
    type Change = Box<dyn Fn(&mut Answers)>;
    let response = |text: &str| -> Change {
        let text = text.to_owned();
        Box::new(move |answers| answers.response = Some(text.clone()))
    };
    let keys_text = |text: String| -> Change {
        Box::new(move |answers| answers.keys_text = Some(text.clone()))
    };
    let changes: Vec<(Change, &str)> = vec![
        (
            Box::new(|answers| answers.issuer = Some("https://evil.example".to_owned())),
            "is that of the issuer",
        ),
        (
            response("HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n"),
            "redirects are not followed",
        ),
        (
            response("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"),
            "answered 500",
        ),
        (
            response("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"),
            "not JSON",
        ),
        (keys_text("<html>".to_owned()), "not a JSON Web Key Set"),
        (keys_text("{\"keys\": []}".to_owned()), "no key"),
        (keys_text(pad(300 << 10)), "longer than"),
        (
            keys_text(format!("{{\"keys\": {}", "[".repeat(100_000))),
            "not a JSON Web Key Set",
        ),
    ];
    for (change, part) in changes {
        let issuer = Issuer::start(&[&pair]);
        issuer.set(|answers| change(answers));
        let site = Site::new();
        site.configure_empty(&issuer.configuration(""));
        let server = site.start();
        let id_token = pair.token(&issuer.claims("example/app", "main"));
        let refused = exchange(server.address, &id_token, "");
        assert_refused(&refused, 503, &["cannot be fetched at the moment"]);
        assert!(refused.header("Retry-After").is_some());
        eventually(part, || server.process.count(part) == 1);
        if part != "answered 500" {
            continue;
        }
        // It is asked again after a few seconds.
        issuer.set(|answers| {
            *answers = Answers {
                keys: vec![pair.public()],
                ..Answers::default()
            };
        });
        eventually("the issuer is asked again", || {
            exchange(server.address, &id_token, "").status == 200
        });
    }
}

#[test]
fn a_slow_issuer_holds_nobody_up() {
    let trusting = Trusting::new();
    trusting.issuer.set(|answers| answers.is_held = true);
    let id_token = trusting.id_token();
    let address = trusting.server.address;
    let threads: Vec<_> = (0..40)
        .map(|_| {
            let id_token = id_token.clone();
            std::thread::spawn(move || exchange(address, &id_token, "").status)
        })
        .collect();
    eventually("the issuer is asked", || {
        trusting.issuer.count("/.well-known/openid-configuration") == 1
    });
    // Uploads, whose requests take the same way, are answered meanwhile.
    let token = trusting.site.token(&[]);
    for _ in 0..20 {
        assert_eq!(trusting.open(&token).status, 200);
    }
    assert_eq!(trusting.issuer.count("/jwks"), 0);
    trusting.issuer.set(|answers| answers.is_held = false);
    let statuses: Vec<u16> = threads.into_iter().map(|one| one.join().unwrap()).collect();
    assert!(
        statuses.iter().all(|status| [200, 503].contains(status)),
        "{statuses:?}"
    );
    assert!(statuses.contains(&200), "{statuses:?}");
    assert_eq!(trusting.issuer.count("/jwks"), 1);
}

#[test]
fn an_issuer_with_an_authority_of_its_own_is_trusted_by_ca_file() {
    let pair = Pair::rsa("key-1");
    let dir = tempfile::tempdir().unwrap();
    let authority = certificate(dir.path());
    let port = testkit::free_port();
    let url = format!("https://127.0.0.1:{port}/ci");
    let at = |path: &str| dir.path().join("ci").join(path);
    fs::create_dir_all(at(".well-known")).unwrap();
    let description = json!({"issuer": url, "jwks_uri": format!("{url}/jwks")});
    fs::write(
        at(".well-known/openid-configuration"),
        description.to_string(),
    )
    .unwrap();
    fs::write(at("jwks"), json!({"keys": [pair.public()]}).to_string()).unwrap();
    let mut openssl = Command::new("openssl");
    openssl.args([
        "s_server", "-quiet", "-WWW", "-cert", "cert", "-key", "key", "-accept",
    ]);
    openssl
        .arg(format!("127.0.0.1:{port}"))
        .current_dir(dir.path());
    let _issuer = Process::spawn(&mut openssl);
    eventually("the issuer listens", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let configuration = |ca: &str| {
        format!(
            "\n[oidc.own]\nissuer = {url:?}\naudience = {AUDIENCE:?}\n{ca}\
             rules = [{{ claims = {{ sub = \"job-*\" }} }}]\n"
        )
    };
    let claims = json!({"iss": url, "aud": AUDIENCE, "exp": now() + 300, "sub": "job-1"});
    let id_token = pair.token(&claims);
    let site = Site::new();
    site.configure_empty(&configuration(""));
    let server = site.start();
    assert_eq!(exchange(server.address, &id_token, "").status, 503);
    drop(server);
    site.configure_empty(&configuration(&format!("ca-file = {authority:?}\n")));
    let server = site.start();
    token_of(&exchange(server.address, &id_token, ""));
    assert_eq!(site.sql("select name from token").trim(), "oidc:own:job-1");
    let mut doctor = samovar();
    let text = output(doctor.args(["doctor", "--config"]).arg(site.config()));
    assert!(text.contains("the issuer \"own\" has 1 key"), "{text}");
}

#[test]
fn the_doctor_names_the_fault_of_an_issuer() {
    let trusting = Trusting::new();
    let doctor = || {
        let mut doctor = samovar();
        let doctor = doctor.args(["doctor", "--config"]);
        let output = doctor.arg(trusting.site.config()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let text = doctor();
    assert!(text.contains("the issuer \"github\" has 1 key"), "{text}");
    let other = format!("{}/", trusting.issuer.url);
    trusting.issuer.set(|answers| answers.issuer = Some(other));
    let text = doctor();
    assert!(
        text.contains("cannot be used: its description is that of the issuer")
            && text.contains("slashes included"),
        "{text}"
    );
    let late = "HTTP/1.1 200 OK\r\nDate: Mon, 01 Jan 2001 00:00:00 GMT\r\nContent-Length: ";
    let url = &trusting.issuer.url;
    let body =
        json!({"issuer": url, "jwks_uri": format!("{url}/jwks"), "keys": [trusting.pair.public()]});
    let body = body.to_string();
    let late = format!("{late}{}\r\n\r\n{body}", body.len());
    trusting.issuer.set(|answers| answers.response = Some(late));
    let text = doctor();
    assert!(text.contains("behind of that of this machine"), "{text}");
}
