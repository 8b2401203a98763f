//! A request with a valid token of the storage is counted and logged as that of the token, from the
//! first one on.

mod support;
mod support_uploads;

use std::fs;

use serde_json::Value;
use support::{secret_file, token};
use support_uploads::{MadePath, Running, Site};
use testkit::eventually;

/// Creates a site whose cache only a token may read.
fn private(more: &str) -> Site {
    let site = Site::new();
    let (line, _) = token("other");
    let tokens = secret_file(site.dir(), "tokens", &line);
    site.configure_empty(&format!("access.tokens-file = {tokens:?}\n{more}"));
    site
}

/// Sends requests without a token until the rate limit of the address refuses one.
#[track_caller]
fn use_up(server: &Running) {
    let statuses: Vec<u16> = (0..100)
        .map(|_| server.get("/nix-cache-info").status)
        .take_while(|status| *status != 429)
        .collect();
    assert!(statuses.len() < 100, "{statuses:?}");
}

#[test]
fn a_stranger_at_the_same_address_does_not_use_up_the_rate_of_a_token() {
    let site = private("access.rate = 1\naccess.burst = 3\n");
    let reader = site.token(&["--name", "reader"]);
    let pusher = site.token(&["--name", "pusher"]);
    let server = site.start();
    use_up(&server);
    let response = server.request("GET", "/nix-cache-info", &reader);
    assert_eq!(response.status, 200, "{}", response.text());
    let path = MadePath::new("path");
    let response = server.put(&pusher, &path.file_target(), &path.file);
    assert_eq!(response.status, 200, "{}", response.text());
    // A token that is made later is known soon, and is limited, too.
    let later = site.token(&["--name", "later"]);
    let ask = || server.request("GET", "/nix-cache-info", &later).status;
    eventually("the new token is known", || {
        use_up(&server);
        ask() == 200
    });
    assert!((0..10).any(|_| ask() == 429));
    // Tokens that the storage does not have count as their address.
    let forged = format!("{}x", &later[..later.len() - 1]);
    use_up(&server);
    assert_eq!(
        server.request("GET", "/nix-cache-info", &forged).status,
        429
    );
}

#[test]
fn the_access_log_names_the_tokens_of_the_storage() {
    for is_private in [true, false] {
        let site = match is_private {
            true => private(""),
            false => Site::new(),
        };
        let log = site.dir().join("access.log");
        let more = format!("log.access = {log:?}\nlog.access-format = \"json\"\n");
        let config = fs::read_to_string(site.config()).unwrap();
        fs::write(site.config(), format!("{more}{config}")).unwrap();
        let server = site.start();
        let token = site.token(&["--name", "reader"]);
        let path = MadePath::new("path");
        server.publish(&token, &path);
        server.request("GET", &path.target(), &token);
        server.request("GET", &path.target(), "smv1_unknown");
        site.revoke("reader");
        server.put(&token, &path.file_target(), &path.file);
        let mut lines = Vec::new();
        eventually("all requests are logged", || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            lines = text.lines().map(str::to_owned).collect();
            lines
                .last()
                .is_some_and(|line| line.contains("\"status\":401"))
        });
        let named = |line: &String| {
            let line: Value = serde_json::from_str(line).unwrap();
            let user = line["user"].as_str().map(str::to_owned);
            (line["method"].clone(), line["status"].clone(), user)
        };
        for (method, status, user) in lines.iter().map(named) {
            let is_admitted = status == 200 && (method != "GET" || user.is_some());
            let expected = is_admitted.then_some("reader");
            assert_eq!(user.as_deref(), expected, "{method} {status}: {lines:?}");
        }
        let count = lines
            .iter()
            .filter(|line| line.contains("\"reader\""))
            .count();
        assert!(count >= 3, "{lines:?}");
    }
}
