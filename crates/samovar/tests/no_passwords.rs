//! No command prints the password of a URL that contains a login, or a token, at any verbosity.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::process::{Command, Output};

use support::{File, samovar, sample, secret_file, serve, user};
use testkit::closed_port::ClosedPort;

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
    let closed = ClosedPort::new();
    let (address, other) = (closed.addr(), format!("http://{}", closed.addr()));
    // Whether the exit code is an error, and a part of the output.
    type Expected = (bool, &'static str);
    let mut commands: Vec<(Vec<String>, Expected)> = Vec::new();
    let mut add = |words: &[&str], expected: Expected| {
        let words = words.iter().map(|&word| word.to_owned());
        commands.push((words.collect(), expected));
    };
    let any: Expected = (false, "");
    for url in [
        format!("ftp://ada:{PASSWORD}@{address}"),
        format!("http://ada:{PASSWORD}@no such host"),
        format!("http://ada:{PASSWORD}@{address}/\u{7f}"),
    ] {
        for command in ["query", "closure", "status"] {
            add(&[command, &url], (true, ""));
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
            add(words, (true, "as %2F"));
        }
        add(&["doctor", "--verify", &url], any);
        add(&["query", &other, &url], any);
        add(&["serve", "--store", &url, "--listen", "127.0.0.1:0"], any);
    }
    let url = format!("http://ada:{PASSWORD}@{address}");
    add(&["doctor", "--verify", &url], any);
    add(&["query", &other, &url], any);
    add(&["serve", "--store", &url, "--listen", "127.0.0.1:0"], any);
    add(&["status", "--json", "--nonsense", &url], any);
    add(&["token", &url, &url], any);
    add(
        &["serve", "--set", &format!("store={url}"), "--config", &url],
        any,
    );
    // Several commands try for seconds to reach the closed port: run all at the same time.
    std::thread::scope(|scope| {
        for (words, (is_error, part)) in &commands {
            scope.spawn(move || {
                let (text, code) = printed(samovar().args(words));
                assert!(!is_error || code != Some(0), "{words:?}: {text}");
                assert!(text.contains(part), "{words:?}: {text}");
            });
        }
    });
}

/// Neither the logs of a server nor its admin pages contain credentials of clients.
#[test]
fn a_server_logs_no_credentials() {
    for format in ["combined", "json"] {
        let (_old, file, _) = private_cache();
        let dir = file.path.parent().unwrap();
        let (access, users) = (dir.join("access.log"), dir.join("users"));
        let (line, token) = support::token("ci");
        let tokens = secret_file(dir, "tokens", &line);
        file.write(&format!(
            "admin.listen = [\"127.0.0.1:0\"]\n\
             log = {{ verbose = true, access = {access:?}, access-format = {format:?} }}\n\
             [access]\nusers-file = {users:?}\ntokens-file = {tokens:?}\n"
        ));
        let server = file.serve();
        let address = server.wait_for_address().to_string();
        let line = server.wait_for("metrics and status on");
        let (_, admin) = line.split_once("http://").unwrap();
        let secrets = [PASSWORD, &token, "YWRhOmh1bnRlcjI"];
        let basic = format!("Authorization: Basic {}=\r\n", secrets[2]);
        let bearer = format!("Authorization: Bearer {token}\r\n");
        let wrong = format!("Authorization: Bearer {PASSWORD}\r\n");
        let referer = format!("Referer: http://ada:{PASSWORD}@{address}/\r\n");
        for (fields, status) in [
            (&basic, 200),
            (&bearer, 200),
            (&wrong, 401),
            (&referer, 401),
        ] {
            assert_eq!(support::status(&address, "/nix-cache-info", fields), status);
        }
        // The target is a whole URL, as for a proxy.
        let url = format!("http://ada:{PASSWORD}@{address}/nix-cache-info");
        support::status(&address, &url, "");
        let pages = ["/status", "/status.json", "/metrics"];
        let mut texts: Vec<String> = pages.map(|page| support::ask(admin, page, "")).into();
        server.signal("TERM");
        server.wait_for("events since the start");
        texts.push(server.lines().join("\n"));
        let mut log = String::new();
        testkit::eventually("all requests are logged", || {
            log = fs::read_to_string(&access).unwrap();
            log.lines().count() == 5
        });
        assert!(log.contains("http://***@"), "{log}");
        texts.push(log);
        for (text, secret) in texts.iter().flat_map(|text| secrets.map(|one| (text, one))) {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}

#[test]
fn a_configuration_is_shown_without_logins() {
    let file = File::new(&format!(
        "description = \"see http://ada:{PASSWORD}@a.example/\"\n"
    ));
    let mut check = samovar();
    check.args(["serve", "--check-config", "--config"]);
    check.arg(&file.path);
    let (text, code) = printed(&mut check);
    assert_eq!(code, Some(0), "{text}");
    // Every visitor would see the password.
    file.write(&format!(
        "public-url = \"http://ada:{PASSWORD}@a.example\"\n"
    ));
    let (text, code) = printed(&mut check);
    assert!(text.contains("without a login"), "{text}");
    assert_eq!(code, Some(2));
}

/// A token of the environment is sent and never printed.
#[test]
fn tokens_of_the_environment_are_not_printed() {
    let (_server, _file, address) = private_cache();
    let (url, path) = (format!("http://{address}"), sample("fixed"));
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("target");
    let target = target.to_str().unwrap();
    for words in [
        &["query", &url, &path][..],
        &["closure", &url, &path],
        &["push", "--store", &support::sample_store(), &url, &path],
        &["pull", &url, &path, target],
        &["pull", &format!("{url}#name"), target],
        &["ref", "list", &url],
        &["doctor", "--url", &url, "--listen", "127.0.0.1:0"],
    ] {
        let mut command = samovar();
        command
            .env("SAMOVAR_TOKEN", PASSWORD)
            .env("HOME", dir.path());
        command.env("RUST_LOG", "trace").env("RUST_BACKTRACE", "1");
        printed(command.args(words));
    }
}
