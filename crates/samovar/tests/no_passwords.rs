//! No command prints the password of a URL that contains a login.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::process::{Command, Output};

use support::{File, samovar, sample, secret_file, serve, user};

const PASSWORD: &str = "hunter2";

/// Starts a private cache whose only user is `ada`.
fn private_cache() -> (support::Server, File, String) {
    let file = File::new("");
    let users = user("ada", PASSWORD);
    let users = secret_file(file.path.parent().unwrap(), "users", &users);
    file.write(&format!(
        "admin.listen = []\n[access]\nusers-file = {users:?}\n"
    ));
    let (server, address) = serve(&file);
    (server, file, address)
}

/// Runs a command. Returns its standard output and standard error as one text, and its exit code.
#[track_caller]
fn printed(command: &mut Command) -> (String, Option<i32>) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = String::from_utf8([stdout, stderr].concat()).unwrap();
    assert!(!text.contains(PASSWORD), "{command:?} printed: {text}");
    (text, status.code())
}

#[test]
fn the_login_of_a_url_is_used_and_not_printed() {
    let (_server, file, address) = private_cache();
    let path = sample("fixed");
    let url = format!("http://ada:{PASSWORD}@{address}/");
    let shown = format!("http://{address}");

    for command in ["query", "closure"] {
        let (text, code) = printed(samovar().args([command, &url, &path]));
        assert_eq!(code, Some(0), "{text}");
        let (text, code) = printed(samovar().args([command, "--json", &url, &path]));
        assert_eq!(code, Some(0), "{text}");
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["cache"], *shown, "{text}");
    }

    let conf = file.path.with_file_name("nix.conf");
    fs::write(&conf, format!("substituters = {url}\n")).unwrap();
    let mut doctor = samovar();
    doctor.args(["doctor", "--url", &url, "--config"]);
    doctor.arg(&file.path).arg("--client-config").arg(&conf);
    let (text, _) = printed(&mut doctor);
    assert!(text.contains(&format!("{shown} serves ")), "{text}");
    assert!(text.contains(&format!("uses {shown}\n")), "{text}");
}

#[test]
fn a_refused_login_is_told_from_a_missing_one() {
    let (_server, file, address) = private_cache();
    let path = sample("fixed");
    let wrong = format!("http://bob:{PASSWORD}@{address}");
    let (text, code) = printed(samovar().args(["query", &wrong, &path]));
    assert!(text.contains("the login in the URL was refused"), "{text}");
    assert_eq!(code, Some(3));
    let none = format!("http://{address}");
    let (text, _) = printed(samovar().args(["query", &none, &path]));
    assert!(text.contains("the request had no login"), "{text}");

    let mut doctor = samovar();
    doctor.args(["doctor", "--url", &wrong, "--config"]);
    let (text, code) = printed(doctor.arg(&file.path));
    assert!(text.contains("the login in the URL was refused"), "{text}");
    assert_eq!(code, Some(1));
}

#[test]
fn errors_quote_a_url_without_its_login() {
    // No server listens at this address: the port was bound, and is closed again.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    for url in [
        format!("ftp://ada:{PASSWORD}@{address}"),
        format!("http://ada:{PASSWORD}@no such host"),
        format!("http://ada:{PASSWORD}@{address}/\u{7f}"),
    ] {
        for command in [&["query"][..], &["closure"], &["status"]] {
            let (text, code) = printed(samovar().args(command).arg(&url));
            assert_ne!(code, Some(0), "{text}");
        }
    }
    // The password is "hunter2", with a character that should have been percent-encoded.
    for separator in ["/", "?", "#", "/@"] {
        let url = format!("http://ada:{separator}{PASSWORD}@{address}/");
        for words in [
            &["query", &url, "."][..],
            &["closure", &url, "."],
            &["status", &url],
            &["doctor", "--url", &url],
        ] {
            let (text, code) = printed(samovar().args(words));
            assert_ne!(code, Some(0), "{text}");
            assert!(text.contains("as %2F"), "{text}");
        }
        printed(samovar().args(["doctor", "--verify", &url]));
        printed(samovar().args(["query", "http://127.0.0.1:1", &url]));
        printed(samovar().args(["serve", "--store", &url, "--listen", "127.0.0.1:0"]));
    }
    let url = format!("http://ada:{PASSWORD}@{address}");
    printed(samovar().args(["doctor", "--verify", &url]));
    printed(samovar().args(["query", "http://127.0.0.1:1", &url]));
    printed(samovar().args(["serve", "--store", &url, "--listen", "127.0.0.1:0"]));
    printed(samovar().args(["status", "--json", "--nonsense", &url]));
    printed(samovar().args(["token", &url, &url]));
    printed(samovar().args(["serve", "--set", &format!("store={url}"), "--config", &url]));
}
