//! A failed command states its reason once, in one line without control characters, whatever a
//! server or another client has sent.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;
mod support_users;
mod support_workspaces;

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use support::{samovar, sample, sample_store};
use support_users::{as_user, has_users};
use support_workspaces::{Home, assert_has, exits, write};
use testkit::process::{fails, finish};

/// Sequences that clear a terminal, set its title, and begin a line.
const EVIL: &str = "evil\x1b[2J\x1b]0;title\x07\rmore\n\u{9b}31m second line\0";

/// Asserts that an error is one line of moderate length, without control characters.
#[track_caller]
fn assert_plain(text: &str) {
    let line = text.strip_suffix('\n').unwrap();
    assert!(!line.contains(char::is_control), "{text:?}");
    assert!(line.len() < 1000, "{} bytes: {text:?}", line.len());
}

/// Starts a server that refuses each request with this text. Returns its URL.
fn refusing(text: String) -> String {
    refusing_as("403 Forbidden", text)
}

/// Starts a server that refuses each request with this status and fields, and with this text.
fn refusing_as(head: &'static str, text: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let text = text.clone();
            thread::spawn(move || refuse(&stream, head, &text));
        }
    });
    url
}

/// Refuses the first request of a connection.
fn refuse(mut stream: &TcpStream, head: &str, text: &str) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    // A limit of the size refuses no request without a body.
    let (head, text) = match head.starts_with("413") && line.starts_with("GET ") {
        true => ("200 OK", "StoreDir: /nix/store\n"),
        false => (head, text),
    };
    while line != "\r\n" {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
    }
    let len = text.len();
    let head = format!("HTTP/1.1 {head}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
    stream.write_all(&[head.as_bytes(), text.as_bytes()].concat())?;
    stream.shutdown(Shutdown::Write)?;
    // The rest of the request is read: closing a connection with unread bytes resets it, and the
    // client may lose the response.
    io::copy(&mut reader, &mut io::sink())?;
    Ok(())
}

#[test]
fn the_text_of_a_server_cannot_control_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("tree"), "a", "a");
    // A long text is left out.
    for (count, part) in [(1, "evil"), (10_000, "403")] {
        let url = refusing(EVIL.repeat(count));
        let source = format!("{url}#app");
        let commands: [&[&str]; 6] = [
            &["ref", "log", &source],
            &["pull", &source, "copy"],
            &["push", "tree", &source],
            &["mount", &source, "mnt"],
            &["ws", "open", &source, "two"],
            &["ws", "run", &source, "--", "true"],
        ];
        for arguments in commands {
            let mut command = support::samovar();
            command.args(arguments).current_dir(dir.path());
            for variable in ["XDG_STATE_HOME", "XDG_CACHE_HOME"] {
                command.env(variable, dir.path().join(variable));
            }
            let found = finish(command.env("SAMOVAR_TOKEN", "smv1_x"));
            assert!(!found.status.success());
            let text = String::from_utf8(found.stderr).unwrap();
            assert_has(&text, part);
            assert_plain(&text);
        }
    }
}

/// Another client may send any host and message, and any names of files.
#[test]
fn the_texts_of_other_clients_cannot_control_the_terminal() {
    let home = Home::new();
    let one = home.open("app", "one");
    write(&one, "a", "a");
    home.push(&one);
    let two = home.open("app", "two");
    write(&two, "a", "b");
    write(&two, "new\x1b[2J\nline", "c");
    home.push(&two);
    let pin = home
        .server
        .request("GET", "/upload/pin/app", &home.token)
        .text();
    let newest = pin.lines().next().unwrap().split(' ').nth(2).unwrap();
    let evil: String = EVIL.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let body = format!("{newest}\nhost {evil}\nmessage {evil}\n");
    let target = "/upload/pin/app?keep=10";
    // The same path is the same generation, so another one comes between.
    write(&one, "a", "c");
    home.run(&one, &["push", "--force"]);
    let pinned = home.server.put(&home.token, target, body);
    if pinned.status == 200 {
        write(&one, "a", "d");
        assert_plain(&home.exits(&one, &["push"], 1));
    }
    let is_plain = |text: &str| {
        text.lines()
            .for_each(|line| assert_plain(&format!("{line}\n")))
    };
    let mut log = support::samovar();
    log.args(["ref", "log", "app"])
        .env("SAMOVAR_CACHE", home.server.url());
    is_plain(&exits(log.env("SAMOVAR_TOKEN", &home.token), 0));
    for (arguments, code) in [(["log"], 0), (["status"], 1), (["pull"], 1), (["diff"], 1)] {
        let found = finish(&mut home.command_in(&one, &arguments));
        let text = String::from_utf8([found.stdout, found.stderr].concat()).unwrap();
        assert_eq!(found.status.code(), Some(code), "{text}");
        is_plain(&text);
    }
}

/// A page of a proxy, such as nginx with its default limit, has no word of Samovar.
#[test]
fn a_size_limit_of_a_proxy_is_not_that_of_the_cache() {
    let page = "<html><h1>413 Request Entity Too Large</h1><hr>nginx</html>".to_owned();
    let url = refusing_as("413 Payload Too Large\r\nContent-Type: text/html", page);
    let mut push = samovar();
    push.args(["push", "--store"]).arg(sample_store());
    let text = fails(push.arg(url).arg(sample("fixed")));
    let expected = "413 Payload Too Large: the answer is not Samovar's: a proxy limits the size";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_reason_is_stated_once() {
    if !has_users() {
        return;
    }
    let home = Home::new();
    let dir = tempfile::tempdir().unwrap();
    let run = |script: &str| {
        let mut command = as_user(dir.path());
        command.args(["sh", "-c", script]);
        command.env("SAMOVAR_CACHE", home.server.url());
        command.env("SAMOVAR_TOKEN", &home.token);
        command.env("XDG_STATE_HOME", dir.path().join("state"));
        finish(&mut command)
    };
    let opened = run("\"$SAMOVAR\" ws open app tree");
    assert!(opened.status.success(), "{opened:?}");
    let unreadable = [
        "mkdir tree/closed && chmod 000 tree/closed",
        "rmdir tree/closed; touch tree/closed && chmod 000 tree/closed",
    ];
    for prepare in unreadable {
        assert!(run(prepare).status.success());
        let status = run("exec \"$SAMOVAR\" ws status --dir tree");
        assert_eq!(status.status.code(), Some(1), "{status:?}");
        let text = String::from_utf8(status.stderr).unwrap();
        assert_eq!(text, "samovar: left out 1 unreadable path: \"closed\"\n");
        for command in ["push tree plain", "ws push --dir tree"] {
            let found = run(&format!("exec \"$SAMOVAR\" {command}"));
            let text = String::from_utf8(found.stderr).unwrap();
            assert_eq!(found.status.code(), Some(1), "{command}: {text}");
            assert_has(&text, "tree/closed");
            assert_eq!(
                text.matches("Permission denied").count(),
                1,
                "{command}: {text}"
            );
            assert_plain(&text);
        }
    }
    assert!(
        run("rm tree/closed; chmod 000 state/samovar/.samovar/*/")
            .status
            .success()
    );
    let found = run("exec \"$SAMOVAR\" ws status --dir tree");
    let text = String::from_utf8(found.stderr).unwrap();
    assert_eq!(found.status.code(), Some(3), "{text}");
    assert_has(&text, "/directory\": Permission denied");
}
