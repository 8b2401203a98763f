//! The access log has one line for each response, which no client can forge, and no request waits
//! for the file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use samovar_http::log::{AccessLog, Level, Logger};
use samovar_http::{Error, Request, Router, Server};
use support::recorder::PATIENCE;
use support::{Reader, connect, serve};

fn start(access: &AccessLog) -> (Server<Router>, SocketAddr) {
    let broken =
        |_: &mut Request| -> Result<String, Error> { Err(std::io::Error::other("a\nb").into()) };
    let router = Router::new()
        .get("/{*any}", |_| "Hello\n")
        .get("/broken", broken)
        .observe(access.clone());
    serve(router, |builder| builder.io_threads(1))
}

fn ask(addr: SocketAddr, target: &str) -> u16 {
    let mut reader = Reader::new(connect(addr));
    reader.send(format!(
        "GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    ));
    let status = reader.next(false).unwrap().status;
    // The report follows the response, and precedes the end of the connection.
    reader.expect_end();
    status
}

/// Returns the lines without the time between brackets.
fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let without_time = |line: &str| {
        let (before, rest) = line.split_once(" [").unwrap();
        let (time, after) = rest.split_once(']').unwrap();
        assert!(time.len() == 26 && time.ends_with(" +0000"), "{line}");
        format!("{before}{after}")
    };
    text.lines().map(without_time).collect()
}

#[test]
fn each_response_is_one_line_and_each_failure_one_message() {
    let folder = tempfile::tempdir().unwrap();
    let (access_path, log_path) = (folder.path().join("access"), folder.path().join("log"));
    fs::write(
        &access_path,
        "::1 - - [01/Jan/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n",
    )
    .unwrap();
    let log = Logger::file(&log_path).unwrap();
    let access = AccessLog::file(&access_path, &log.clone().level(Level::Debug)).unwrap();
    let (_server, addr) = start(&access);
    assert_eq!(ask(addr, "/tea?a=b"), 200);
    assert_eq!(ask(addr, "/\"\\"), 200);
    assert_eq!(ask(addr, "/broken"), 500);
    assert_eq!(ask(addr, "/%zz"), 400);
    log.debug("not written");
    log.info("line\nnot another one \u{1b}[2J");
    assert!(access.flush(PATIENCE) && log.flush(PATIENCE));
    assert_eq!(
        lines(&access_path),
        [
            r#"::1 - - "GET / HTTP/1.1" 200 1"#,
            r#"127.0.0.1 - - "GET /tea?a=b HTTP/1.1" 200 6"#,
            r#"127.0.0.1 - - "GET /\"\\ HTTP/1.1" 200 6"#,
            r#"127.0.0.1 - - "GET /broken HTTP/1.1" 500 22"#,
            r#"127.0.0.1 - - "GET /%zz HTTP/1.1" 400 15"#,
        ]
    );
    let messages = fs::read_to_string(&log_path).unwrap();
    let messages: Vec<_> = messages
        .lines()
        .map(|line| line.split_once("Z ").unwrap().1)
        .collect();
    assert_eq!(
        messages,
        [
            "error: GET /broken failed: 500 Internal Server Error: a\\nb",
            "info: line\\nnot another one \\u{1b}[2J",
        ]
    );
}

#[test]
fn a_full_disk_stops_no_request_and_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let log_path = folder.path().join("log");
    let log = Logger::file(&log_path).unwrap();
    let access = AccessLog::file("/dev/full", &log).unwrap();
    let (_server, addr) = start(&access);
    for _ in 0..3 {
        assert_eq!(ask(addr, "/tea"), 200);
        assert!(access.flush(PATIENCE));
    }
    assert!(log.flush(PATIENCE));
    let messages = fs::read_to_string(&log_path).unwrap();
    assert_eq!(messages.lines().count(), 1, "{messages}");
    assert!(
        messages.contains("Z warning: access log: cannot write: No space"),
        "{messages}"
    );
}

#[test]
fn renamed_files_are_left_after_reopen() {
    let folder = tempfile::tempdir().unwrap();
    let (path, old) = (folder.path().join("access"), folder.path().join("access.1"));
    let access = AccessLog::file(&path, &Logger::stderr().unwrap()).unwrap();
    let (_server, addr) = start(&access);
    assert_eq!(ask(addr, "/one"), 200);
    assert!(access.flush(PATIENCE));
    fs::rename(&path, &old).unwrap();
    access.reopen();
    assert!(access.flush(Duration::from_secs(60)));
    assert_eq!(ask(addr, "/two"), 200);
    assert!(access.flush(PATIENCE));
    assert_eq!(lines(&old), [r#"127.0.0.1 - - "GET /one HTTP/1.1" 200 6"#]);
    assert_eq!(lines(&path), [r#"127.0.0.1 - - "GET /two HTTP/1.1" 200 6"#]);
}
