//! ID tokens are exchanged by the rules of the configuration alone; forged and wrong ones give
//! nothing.

mod support;
mod support_oidc;
mod support_push;
mod support_uploads;

use std::fs;

use serde_json::{Value, json};
use support::{samovar, secret_file};
use support_oidc::{AUDIENCE, Issuer, Pair, Trusting, encode, exchange, now, token_of};
use support_push::exits_with;
use support_uploads::{Site, assert_refused, bearer, send};

#[test]
fn forged_and_wrong_id_tokens_are_refused() {
    let trusting = Trusting::new();
    let (issuer, pair) = (&trusting.issuer, &trusting.pair);
    let other = Pair::ec("key-1");
    let good = trusting.claims();
    let with = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        pair.token(&claims)
    };
    let head = |head: Value| pair.token_with(&head, &good);
    let unsigned = |alg: &str| {
        let head = encode(json!({"alg": alg, "kid": "key-1"}).to_string());
        format!("{head}.{}.", encode(good.to_string()))
    };
    let public = pair.public().to_string();
    let sub = |repository: &str| pair.token(&issuer.claims(repository, "main"));
    for (id_token, status, part) in [
        (unsigned("none"), 401, "an algorithm other than"),
        (unsigned("HS256"), 401, "an algorithm other than"),
        (unsigned("ES256"), 401, "a wrong signature"),
        (other.token(&good), 401, "a wrong signature"),
        (
            head(json!({"alg": "RS256", "kid": "key-1"})),
            401,
            "does not have",
        ),
        (
            head(json!({"alg": "ES256", "kid": "../../key-1"})),
            401,
            "does not have",
        ),
        (
            head(json!({"alg": "ES256", "kid": "/etc/passwd"})),
            401,
            "does not have",
        ),
        (
            other.token_with(&json!({"alg": "ES256", "kid": "x", "jwk": public}), &good),
            401,
            "does not have",
        ),
        (head(json!({"alg": "ES256"})), 401, "no kid"),
        (
            with("iss", json!("https://evil.example")),
            401,
            "not configured here",
        ),
        (
            with("iss", json!(format!("{}/", issuer.url))),
            401,
            "not configured here",
        ),
        (with("aud", json!("https://other.example")), 401, "audience"),
        (
            with("aud", json!([AUDIENCE, "https://other.example"])),
            401,
            "audience",
        ),
        (with("exp", json!(now() - 61)), 401, "has expired"),
        (with("exp", Value::Null), 401, "no valid claim exp"),
        (with("nbf", json!(now() + 600)), 401, "not valid yet"),
        (with("iat", json!(now() + 86_400)), 401, "not valid yet"),
        (with("pad", json!("x".repeat(10_000))), 401, "more than"),
        (
            with("ref", json!({"x": "refs/heads/main"})),
            403,
            "needs the claim",
        ),
        (
            with("ref", json!(["refs/heads/main"])),
            403,
            "needs the claim",
        ),
        (sub("example/group/app"), 403, "\"repository\""),
        (sub("Example/app"), 403, "\"repository\""),
        (sub("ex\u{430}mple/app"), 403, "\"repository\""),
        (sub("example-evil/app"), 403, "\"repository\""),
        (sub("example"), 403, "\"repository\""),
        ("a.b".to_owned(), 401, "not a signed JSON Web Token"),
        ("smv1_x".to_owned(), 401, "not a signed JSON Web Token"),
    ] {
        let response = trusting.exchange(&id_token);
        assert_refused(&response, status, &[part]);
        assert!(!response.text().contains("main"), "{}", response.text());
    }
    let long = trusting.exchange(&"x".repeat(100_000));
    assert_eq!(long.status, 431);
    let none = trusting.exchange("");
    assert_refused(&none, 401, &["needs the ID token"]);
    let method = trusting
        .server
        .request("GET", "/upload/oidc", &trusting.id_token());
    assert_refused(&method, 405, &["use POST"]);
    let body = exchange(trusting.server.address, &trusting.id_token(), "renew x\n");
    assert_refused(&body, 400, &["renew"]);
    assert_eq!(trusting.site.sql("select count(*) from token").trim(), "0");
    // Each attack was about a known issuer at most once a minute: no request for each.
    assert!(issuer.count("/jwks") <= 2);
    // The ID token itself gives no rights.
    assert_eq!(trusting.open(&trusting.id_token()).status, 401);
    trusting.token(&trusting.id_token());
}

#[test]
fn rules_limit_caches_names_rights_and_time() {
    let more = "cache = \"team-*\"\nnames = \"app-*\"\nrights = [\"push\"]\nexpires = \"10 min\"\n\
                [caches.team-a]\n[caches.other]\n";
    let trusting = Trusting::with(more);
    let id_token = trusting.id_token();
    let at = |cache: &str| {
        let target = format!("/{cache}/upload/oidc");
        send(
            trusting.server.address,
            "POST",
            &target,
            &bearer(&id_token),
            "",
        )
    };
    assert_refused(&at("other"), 403, &["rule 1 is for other caches"]);
    let token = token_of(&at("team-a"));
    let row = trusting
        .site
        .sql("select name, cache, names, rights, expires_at - created_at from token");
    assert_eq!(
        row.trim(),
        "oidc:github:example/app:4711|team-*|app-*|8|600"
    );
    let open = |cache: &str| {
        let target = format!("/{cache}/upload/push/1/open");
        trusting.server.request("POST", &target, &token).status
    };
    assert_eq!((open("team-a"), open("other")), (200, 401));
}

#[test]
fn a_token_is_extended_and_a_job_has_a_limited_number() {
    let trusting = Trusting::new();
    let id_token = trusting.id_token();
    let token = trusting.token(&id_token);
    trusting
        .site
        .sql("update token set expires_at = unixepoch() + 30");
    let address = trusting.server.address;
    let renewed = exchange(address, &id_token, &format!("renew {token}\n"));
    assert_eq!(token_of(&renewed), token);
    let row = "select count(*), max(expires_at) - unixepoch() > 3500 from token";
    assert_eq!(trusting.site.sql(row).trim(), "1|1");
    assert_eq!(trusting.open(&token).status, 200);
    // A token of another job is not extended.
    let mut claims = trusting.claims();
    claims["run_id"] = json!("4712");
    let other = trusting.pair.token(&claims);
    let renewed = exchange(address, &other, &format!("renew {token}\n"));
    assert_ne!(token_of(&renewed), token);
    // After the revocation of its token, a job does not get it back.
    trusting.site.revoke("oidc:github:example/app:4711");
    assert_eq!(trusting.open(&token).status, 401);
    let renewed = exchange(address, &id_token, &format!("renew {token}\n"));
    assert_ne!(token_of(&renewed), token);
    for _ in 1..64 {
        trusting.token(&id_token);
    }
    let many = trusting.exchange(&id_token);
    assert_refused(&many, 429, &["64 tokens"]);
    trusting.token(&other);
}

#[test]
fn a_private_and_a_hidden_cache_exchange_id_tokens() {
    for (refuse, status) in [("", 401), ("access.refuse-with = \"404\"\n", 404)] {
        let pair = Pair::ec("key-1");
        let issuer = Issuer::start(&[&pair]);
        let site = Site::new();
        let dir = secret_file(site.dir(), "tokens", &format!("a:{}\n", "0".repeat(64)));
        let more = format!("access.tokens-file = {dir:?}\n{refuse}");
        site.configure_empty(&format!("{more}{}", issuer.configuration("")));
        let server = site.start();
        assert_eq!(server.get("/nix-cache-info").status, status);
        let token = pair.token(&issuer.claims("example/app", "main"));
        let good = exchange(server.address, &token, "");
        let bad = exchange(
            server.address,
            &pair.token(&issuer.claims("x/y", "main")),
            "",
        );
        let token = token_of(&good);
        match status {
            // The answer is as if there were no cache.
            404 => {
                let nothing = server.request("POST", "/nothing", "");
                assert_eq!((bad.status, bad.text()), (nothing.status, nothing.text()));
                // The operator learns the cause.
                let line = server.process.wait_for("was not exchanged");
                assert!(line.contains("no rule"), "{line}");
            }
            _ => assert_eq!(bad.status, 403, "{}", bad.text()),
        }
        let info = server.request("GET", "/nix-cache-info", &token);
        assert_eq!(info.status, 200);
    }
}

#[test]
fn rules_that_admit_everybody_are_refused_at_start() {
    let site = Site::new();
    for (issuer, claims, part) in [
        (
            "https://token.actions.githubusercontent.com",
            "ref = \"refs/heads/main\"",
            "name the owner without * and ? in repository",
        ),
        (
            "https://gitlab.com",
            "project_path = \"*/app\"",
            "no condition on the owner",
        ),
        (
            "https://issuer.example",
            "sub = \"**\"",
            "only patterns that match everything",
        ),
        (
            "https://issuer.example",
            "aud = \"x\"",
            "no condition on a claim besides",
        ),
        ("http://issuer.example", "sub = \"a\"", "an https URL"),
    ] {
        site.configure_empty(&format!(
            "\n[oidc.ci]\nissuer = {issuer:?}\naudience = \"https://a\"\n\
             rules = [{{ claims = {{ {claims} }} }}]\n"
        ));
        let text = exits_with(samovar().args(site.arguments()), 2);
        assert!(text.contains(part) && text.lines().count() == 1, "{text}");
    }
}

#[test]
fn metrics_count_exchanges_by_issuer_and_outcome() {
    let trusting = Trusting::new();
    let id_token = trusting.id_token();
    let port = testkit::free_port();
    let admin = format!("127.0.0.1:{port}");
    let text = fs::read_to_string(trusting.site.config()).unwrap();
    let text = text.replace("admin.listen = []", &format!("admin.listen = {admin:?}"));
    fs::write(trusting.site.config(), text).unwrap();
    let Trusting {
        site,
        server,
        issuer,
        pair,
    } = trusting;
    drop(server);
    let server = site.start();
    token_of(&exchange(server.address, &id_token, ""));
    assert_eq!(exchange(server.address, "a.b.c", "").status, 401);
    let other = pair.token(&issuer.claims("x/y", "main"));
    assert_eq!(exchange(server.address, &other, "").status, 403);
    let metrics = support::ask(&admin, "/metrics", "");
    for line in [
        "samovar_oidc_exchanges_total{issuer=\"github\",outcome=\"granted\"} 1",
        "samovar_oidc_exchanges_total{issuer=\"github\",outcome=\"refused\"} 1",
        "samovar_oidc_exchanges_total{issuer=\"(unknown)\",outcome=\"refused\"} 1",
        "samovar_oidc_keys_age_seconds{issuer=\"github\"} ",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
}
