//! A token uploads only into the caches, and only under the names, for which it was created.

mod support;
mod support_protocol;
mod support_push;
mod support_uploads;

use std::fs;

use serde_json::json;
use support::{samovar, secret_file, user};
use support_protocol::{Push, lines_of, open_line};
use support_push::{Pusher, exits_with};
use support_uploads::{MadePath, Running, Site, assert_refused};
use testkit::http1::{Connection, Response};
use testkit::nix::{OwnStore, local, nix};
use testkit::process::{fails, finish, output};

/// Uploads the NAR file of a path, then its narinfo. Returns the response to the latter.
fn put(server: &Running, token: &str, path: &MadePath) -> Response {
    let file = server.put(token, &path.file_target(), &path.file);
    assert_eq!(file.status, 200, "{}", file.text());
    server.put(token, &path.target(), path.narinfo())
}

#[test]
fn only_names_that_match_the_pattern_are_published() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&["--names", "mr-?-*"]);
    for name in ["mr-1-", "mr-1-app"] {
        let path = MadePath::new(name);
        assert_eq!(put(&server, &token, &path).status, 200, "{name}");
        server.assert_serves(&path);
    }
    // The hash part is not part of the name.
    for name in ["mr-12-app", "mr-1", "app", "a-mr-1-app", "MR-1-app"] {
        let path = MadePath::new(name);
        let response = put(&server, &token, &path);
        let quoted = format!("{name:?}");
        assert_refused(&response, 422, &[&quoted, "\"mr-?-*\"", "another token"]);
        server.assert_lacks(&path);
    }
    // A path that exists is not changed either: a second upload could add signatures.
    let main = MadePath::new("main");
    server.publish(&site.token(&[]), &main);
    let before = server.get(&main.target()).text();
    let signed = format!("{}Sig: a-1:{}==\n", main.narinfo(), "A".repeat(86));
    server.put(&token, &main.file_target(), &main.file);
    assert_refused(
        &server.put(&token, &main.target(), signed),
        422,
        &["\"main\""],
    );
    assert_eq!(server.get(&main.target()).text(), before);
    // References may have other names if they are in the cache.
    let app = MadePath::new("mr-2-app").referring_to(&main.store_path);
    assert_eq!(put(&server, &token, &app).status, 200);
}

#[test]
fn a_push_with_one_other_name_publishes_nothing() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&["--names", "mr-*"]);
    let (good, bad) = (MadePath::new("mr-1"), MadePath::new("main"));
    let push = Push::new(&server, &token);
    let paths = [&good, &bad];
    let (id, _) = push.open(&paths);
    push.pack(&id, &paths);
    let response = push.publish(&id, &paths);
    assert_refused(
        &response,
        422,
        &["the narinfo of ", "-main: ", "\"main\"", "\"mr-*\""],
    );
    server.assert_lacks(&good);
    push.published(&id, &[&good]);
    server.assert_serves(&good);
}

#[test]
fn a_revoked_token_publishes_no_name_at_all() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&["--name", "mr", "--names", "mr-*"]);
    let path = MadePath::new("mr-1");
    let push = Push::new(&server, &token);
    let (id, _) = push.open(&[&path]);
    push.pack(&id, &[&path]);
    site.revoke("mr");
    assert_refused(&push.publish(&id, &[&path]), 401, &["revoked"]);
    server.assert_lacks(&path);
}

#[test]
fn a_token_that_is_revoked_while_a_nar_is_sent_stores_nothing() {
    let (site, server, _) = Site::serving();
    let path = MadePath::new("path").containing(&[b'a'; 100_000]);
    // Shorter bodies are received before a worker checks the token.
    let other = MadePath::new("other").containing(&[b'b'; 100_000]);
    let token = site.token(&["--name", "revoked"]);
    assert_eq!(
        server.put(&token, &other.file_target(), &other.file).status,
        200
    );
    let stored = || {
        (
            site.sql("select count(*) from nar"),
            site.sql("select * from sent"),
        )
    };
    let (before, files) = (stored(), site.files());
    // The server also reads the body of a file that it has already.
    let mut uploads = [&path, &other].map(|path| {
        let mut client = Connection::connect(server.address);
        client.send(format!(
            "PUT {} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\
             Content-Length: {}\r\nExpect: 100-continue\r\n\r\n",
            path.file_target(),
            path.file.len()
        ));
        // The server has accepted the token when it asks for the body.
        assert_eq!(client.response(false).status, 100);
        client.send(&path.file[..9]);
        (client, path)
    });
    site.revoke("revoked");
    for (client, path) in &mut uploads {
        client.send(&path.file[9..]);
        assert_refused(&client.response(false), 403, &["was revoked"]);
    }
    assert_eq!((stored(), site.files()), (before, files));
}

#[test]
fn names_are_refused_before_their_contents_are_sent() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&["--names", "mr-*"]);
    let taken = MadePath::new("mr-taken");
    server.publish(&token, &taken);
    let push = Push::new(&server, &token);
    let open = |path: &MadePath, name: &str| {
        let line = open_line(path).replace('\n', &format!(" {name}\n"));
        let response = push.send("POST", "open", line);
        assert_eq!(response.status, 200, "{}", response.text());
        let end = response.text().lines().last().unwrap().to_owned();
        (lines_of(&response)[1].clone(), end)
    };
    let free = MadePath::new("free");
    let is = |word: &str, path: &MadePath, end: &str| {
        (format!("{word} {}", path.hash_part()), end.to_owned())
    };
    assert_eq!(open(&free, "mr-1"), is("need", &free, "end 0 0 1"));
    assert_eq!(open(&taken, "mr-taken"), is("have", &taken, "end 1 0 0"));
    for (path, name, reason) in [
        (&free, "main", "\"mr-*\""),
        (&taken, "mr-other", "the cache has "),
    ] {
        let (line, end) = open(path, name);
        let start = format!("refused {} ", path.hash_part());
        assert!(line.starts_with(&start) && line.contains(reason), "{line}");
        assert_eq!(end, "end 0 0 0 1");
    }
    let nameless = push.send("POST", "open", open_line(&free).replace('\n', " a/b\n"));
    assert_refused(&nameless, 400, &["line 1", "a name"]);

    let store = OwnStore::new();
    let main = store.add_file("main", b"main");
    let pusher = Pusher::new(&local(store.root()), &token);
    let text = exits_with(&mut pusher.push(&server.url(), &[&main]), 1);
    assert!(
        text.contains("\"mr-*\"") && text.contains("1 failed"),
        "{text}"
    );
    let text = exits_with(&mut pusher.push(&server.url(), &["--dry-run", &main]), 1);
    assert!(text.contains("\"mr-*\""), "{text}");
    let nars = site.sql("select count(*) from nar");
    assert_eq!(nars.trim(), "1", "nothing was sent");
}

#[test]
fn build_logs_and_realisations_need_matching_names() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&["--names", "mr-*"]);
    let (good, bad) = (MadePath::new("mr-1"), MadePath::new("main"));
    for path in [&good, &bad] {
        server.publish(&site.token(&[]), path);
    }
    let log = |path: &MadePath| format!("/log/{}.drv", &path.store_path[11..]);
    assert_eq!(server.put(&token, &log(&good), "log").status, 200);
    assert_refused(&server.put(&token, &log(&bad), "log"), 422, &["\"main\""]);
    assert_eq!(server.get(&log(&bad)).status, 404);

    let document = |path: &MadePath| json!({ "outPath": path.store_path[11..] }).to_string();
    let of = |path: &MadePath| format!("/build-trace-v2/{}.drv/out.doi", &path.store_path[11..]);
    for (derivation, path, status) in [
        (&good, &good, 200),
        (&good, &bad, 422),
        (&bad, &good, 422),
        (&bad, &bad, 422),
    ] {
        let response = server.put(&token, &of(derivation), document(path));
        assert_eq!(response.status, status, "{}", response.text());
    }
    assert_refused(
        &server.put(&token, &of(&bad), document(&good)),
        422,
        &["main.drv", "mr-1", "\"mr-*\"", "a token for all names"],
    );
    // In this form, the name of the derivation is unknown.
    let id = format!("sha256:{}!out", "1".repeat(64));
    let text = json!({ "id": id, "outPath": good.store_path[11..] }).to_string();
    let target = format!("/realisations/{id}.doi");
    assert_refused(
        &server.put(&token, &target, &text),
        422,
        &["only by a hash"],
    );
    assert_eq!(server.put(&site.token(&[]), &target, &text).status, 200);
}

#[test]
fn nix_and_samovar_push_report_the_name_and_the_pattern() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&["--names", "mr-*"]);
    let store = OwnStore::new();
    let (good, bad) = (
        store.add_file("mr-app", b"merge request"),
        store.add_file("main-app", b"main"),
    );
    let home = tempfile::tempdir().unwrap();
    let login = format!("machine 127.0.0.1 login a password {token}\n");
    let netrc = secret_file(home.path(), "netrc", &login);
    let copy = |path: &str| {
        let mut command = nix("nix", home.path());
        command.args(["copy", "--from", &local(store.root()), "--no-check-sigs"]);
        command.args(["--to", &format!("{}/upload", server.url()), path]);
        command.args(["--option", "netrc-file"]).arg(&netrc);
        command
    };
    output(&mut copy(&good));
    let error = fails(&mut copy(&bad));
    assert!(
        error.contains("\"main-app\"") && error.contains("\"mr-*\""),
        "{error}"
    );

    // The push protocol: a path that is refused does not stop the others.
    let other = store.add_file("mr-other", b"other");
    let pusher = Pusher::new(&local(store.root()), &token);
    let text = exits_with(&mut pusher.push(&server.url(), &[&other, &bad]), 1);
    let failed = format!("failed {bad}: ");
    assert!(
        text.contains(&failed) && text.contains("\"mr-*\""),
        "{text}"
    );
    assert!(text.contains("pushed 1 path,"), "{text}");
}

#[test]
fn a_cache_pattern_selects_caches() {
    let site = Site::new();
    site.configure_empty("[caches.team-a]\n[caches.team-ab]\n[caches.other]\n");
    let server = site.start();
    let path = MadePath::new("app");
    for (pattern, accepted) in [
        ("team-?", &["team-a"][..]),
        ("team-*", &["team-a", "team-ab"]),
        ("other", &["other"]),
        ("oth", &[]),
        ("*", &["team-a", "team-ab", "other"]),
    ] {
        let token = site.token(&["--cache", pattern]);
        for cache in ["team-a", "team-ab", "other"] {
            let target = format!("/{cache}{}", path.file_target());
            let response = server.put(&token, &target, &path.file);
            let is_accepted = accepted.contains(&cache);
            let status = if is_accepted { 200 } else { 401 };
            assert_eq!(
                response.status,
                status,
                "{pattern} {cache}: {}",
                response.text()
            );
        }
    }
    // A pattern is not the name of a cache.
    let mut list = samovar();
    let list = output(
        list.args(["cache", "list", "--storage"])
            .arg(site.storage()),
    );
    assert!(!list.contains('*') && !list.contains('?'), "{list}");
}

#[test]
fn the_command_shows_what_a_token_is_for() {
    let site = Site::new();
    let storage = site.storage();
    let token = |arguments: &[&str]| {
        let mut command = samovar();
        command
            .arg("token")
            .arg(arguments[0])
            .arg("--storage")
            .arg(&storage);
        let output = finish(command.args(&arguments[1..]));
        assert!(output.status.success(), "{output:?}");
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    };
    let new = [
        "create",
        "--name",
        "ci",
        "--cache",
        "team-*",
        "--names",
        "mr-*",
        "--expires",
        "30d",
    ];
    let (secret, notes) = token(&new);
    assert_eq!((secret.len(), secret.lines().count()), (5 + 43 + 1, 1));
    for part in [
        "is a new storage",
        storage.to_str().unwrap(),
        "It expires on 20",
        "samovar use --token-file FILE URL",
        "machine HOST login ci password TOKEN",
        "no cache of this storage has the name \"team-*\" yet",
    ] {
        assert!(notes.contains(part), "{part:?} is not in {notes:?}");
    }
    site.configure_empty("[caches.team-a]\n");
    site.start().process.terminate();
    let (_, notes) = token(&new);
    assert!(
        !notes.contains("new storage") && !notes.contains("no cache"),
        "{notes}"
    );
    let (_, notes) = token(&["create", "--name", "all", "--cache", "team-b"]);
    assert!(
        notes.contains("\"team-b\" yet") && notes.contains("never expires"),
        "{notes}"
    );

    let (list, _) = token(&["list"]);
    let rows: Vec<Vec<&str>> = list
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0][..4], ["NAME", "RIGHTS", "CACHE", "NAMES"]);
    assert_eq!(rows[1][..4], ["all", "read,push", "team-b", "all"]);
    assert_eq!(rows[2][..4], ["ci", "read,push", "team-*", "mr-*"]);
}

/// A URL that needs a token asks for one, whoever may read the cache. With a valid token, the
/// response names the right that is missing.
#[test]
fn a_missing_token_is_asked_for_and_a_missing_right_is_named() {
    let site = Site::new();
    let users = site.dir().join("users");
    fs::write(&users, user("ada", "secret")).unwrap();
    let networks = "access.networks = [\"192.0.2.0/24\"]\n";
    let with_users = format!("access.users-file = {users:?}\n");
    let token = |rights: &str| site.token(&["--rights", rights]);
    let [pusher, reader, pinner] = ["push", "read", "pin"].map(token);
    let expired = site.expired_token();
    let path = MadePath::new("path");
    let requests = [
        ("PUT", path.target(), "push"),
        ("PUT", format!("/upload{}", path.file_target()), "push"),
        ("POST", "/upload/push/1/open".to_owned(), "push"),
        ("PUT", "/upload/pin/main".to_owned(), "pin"),
        ("DELETE", "/upload/pin/main".to_owned(), "pin"),
        ("GET", "/upload/pin/main".to_owned(), "read or pin"),
        ("HEAD", "/upload/pin/main".to_owned(), "read or pin"),
        ("GET", "/upload/pin/".to_owned(), "read or pin"),
        ("GET", "/upload/pin-events".to_owned(), "read or pin"),
    ];
    for (access, is_hidden) in [
        (String::new(), false),
        (networks.to_owned(), false),
        (with_users.clone(), false),
        (format!("{networks}access.refuse-with = \"403\"\n"), false),
        (format!("{networks}access.refuse-with = \"401\"\n"), false),
        (format!("{networks}access.refuse-with = \"404\"\n"), true),
    ] {
        site.configure_empty(&access);
        let server = site.start();
        for (method, target, right) in &requests {
            for credentials in ["", "smv1_unknown", expired] {
                let response = server.request(method, target, credentials);
                // As if there were no cache.
                let statuses: &[u16] = if is_hidden { &[404, 405] } else { &[401] };
                let status = response.status;
                assert!(
                    statuses.contains(&status),
                    "{access}{method} {target}: {status}"
                );
                let challenge = response.header("WWW-Authenticate");
                assert_eq!(challenge.is_some(), !is_hidden, "{access}{target}");
            }
            let other = if *right == "push" { &reader } else { &pusher };
            let response = server.request(method, target, other);
            assert_eq!(response.status, 403, "{access}{method} {target}");
            assert_eq!(response.header("WWW-Authenticate"), None);
            let part = format!("a token with the right {right}\n");
            let is_named = response.text().ends_with(&part);
            assert!(is_named || *method == "HEAD", "{}", response.text());
        }
        if access.is_empty() || is_hidden {
            continue;
        }
        // Reading needs the right to read.
        for target in [path.target(), path.listing_target()] {
            let refused = server.request("GET", &target, &pusher);
            assert_refused(
                &refused,
                403,
                &["may not read", "a token with the right read"],
            );
        }
        for url in ["/upload/nar", "/upload/log"] {
            let target = path.file_target().replace("/nar", url);
            let refused = server.request("GET", &target, &pusher);
            assert_refused(&refused, 403, &["may not read"]);
        }
        // Whoever may push asks what is there. The right to pin does not include that.
        let below = format!("/upload{}", path.target());
        let refused = server.request("GET", &below, &pinner);
        assert_refused(&refused, 403, &["may not read"]);
        for token in [&pusher, &reader] {
            assert_eq!(server.request("GET", &below, token).status, 404);
        }
        assert_eq!(server.request("GET", &path.target(), &reader).status, 404);
    }
}

#[test]
fn a_directory_with_other_files_does_not_become_a_storage() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("photo"), "").unwrap();
    let mut command = samovar();
    command.args(["token", "create", "--name", "ci", "--storage"]);
    let error = fails(command.arg(dir.path()));
    assert!(
        error.contains("is not a storage") && error.contains("photo"),
        "{error}"
    );
    assert!(!dir.path().join(".samovar").exists());
}

/// Without `--storage`, the commands use the storage of the server's configuration.
#[test]
fn tokens_and_pins_are_those_of_the_configured_storage() {
    let site = Site::new();
    let mut create = samovar();
    create.args(["token", "create", "--name", "by-option", "--config"]);
    output(create.arg(site.config()));
    let mut create = samovar();
    create.args(["token", "create", "--name", "by-file"]);
    output(create.env("SAMOVAR_CONFIG", site.config()));
    for words in [["token", "list"], ["pin", "list"]] {
        let mut list = samovar();
        let list = output(list.args(words).env("SAMOVAR_STORAGE", site.storage()));
        if words[0] == "token" {
            assert!(
                list.contains("by-option") && list.contains("by-file"),
                "{list}"
            );
        }
    }
    // The configuration is not read if the storage is named.
    let mut list = samovar();
    list.args(["token", "list", "--storage"])
        .arg(site.storage());
    output(list.env("SAMOVAR_CONFIG", "/missing"));
}

/// A second token of a name is reported, because both are revoked together. A name with a blank
/// would break the line for netrc.
#[test]
fn names_of_tokens_are_checked() {
    let site = Site::new();
    let create = |name: &str| {
        let mut command = samovar();
        command.args(["token", "create", "--name", name, "--storage"]);
        command.arg(site.storage()).output().expect("runs")
    };
    let told = |output: &std::process::Output| {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        text.contains("There are 2 valid tokens named \"ci\" now")
    };
    let first = create("ci");
    assert!(first.status.success() && !told(&first), "{first:?}");
    let second = create("ci");
    assert!(second.status.success() && told(&second), "{second:?}");
    site.revoke("ci");
    let third = create("ci");
    assert!(third.status.success() && !told(&third), "{third:?}");
    for name in ["bad name", "tab\there", ""] {
        assert!(!create(name).status.success(), "{name:?}");
    }
}
