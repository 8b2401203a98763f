//! RFC 9110 (HTTP semantics), as far as it binds a server whose resources are an application's.
//!
//! Tests of what only the server of ours has, such as a resource that answers 304, say so with
//! [`is_own`] and show nothing of another server.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../rfc9112/citations.rs"]
mod citations;
mod content;
mod expectations;
mod fields;
mod methods;
#[path = "../own.rs"]
mod own;
mod ranges;
#[path = "../rfc9112/server.rs"]
mod server;
mod status;
mod targets;

use samovar_conformance::{Answer, Outcome, send};

/// Whether the server under test is ours, with its resources.
fn is_own() -> bool {
    let named = ["CONFORMANCE_URL", "CONFORMANCE_COMMAND"];
    named.iter().all(|name| std::env::var_os(name).is_none())
}

/// Sends a request and reads until the server ends the connection.
fn ask(bytes: impl AsRef<[u8]>) -> Outcome {
    send(server::addr(), bytes.as_ref(), false, false)
}

/// A request with `fields`, each with its line end, and for the end of the connection.
fn request(method: &str, target: &str, fields: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n")
}

/// The one answer to a request.
#[track_caller]
fn answer(method: &str, target: &str, fields: &str) -> Answer {
    let bytes = request(method, target, fields);
    let outcome = send(server::addr(), bytes.as_bytes(), false, method == "HEAD");
    let [answer] = &outcome.answers[..] else {
        panic!("{method} {target}: {outcome:?}");
    };
    answer.clone()
}

/// Asserts one answer of 4xx or 5xx, and the end of the connection.
#[track_caller]
fn refused(bytes: impl AsRef<[u8]>) {
    let bytes = bytes.as_ref();
    let outcome = ask(bytes);
    assert!(
        outcome.is_refused(),
        "{}: {outcome:?}",
        bytes.escape_ascii()
    );
}

/// The field lines of an answer.
fn lines(answer: &Answer) -> Vec<(String, String)> {
    let head = String::from_utf8(answer.head.clone()).unwrap();
    let lines = head.split("\r\n").skip(1).filter(|line| !line.is_empty());
    let pair = |line: &str| {
        line.split_once(": ")
            .map(|(name, value)| (name.into(), value.into()))
    };
    lines
        .map(|line| pair(line).unwrap_or_else(|| panic!("{line:?}")))
        .collect()
}

/// Requests whose answers are looked at as answers: good, unknown, refused.
const PLAIN: [&str; 4] = [
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "GET /none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nBad name: a\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
];
