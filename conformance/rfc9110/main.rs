//! Tests of RFC 9110 (HTTP semantics), with the requirements on a server whose resources an
//! application provides.
//!
//! Tests that need special resources, such as one that responds with 304, run only if [`is_own`]
//! returns true. For other servers, they verify nothing.

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

/// Returns whether the server under test is ours, with its resources.
fn is_own() -> bool {
    let named = ["CONFORMANCE_URL", "CONFORMANCE_COMMAND"];
    named.iter().all(|name| std::env::var_os(name).is_none())
}

/// Sends a request and reads until the server closes the connection.
fn ask(bytes: impl AsRef<[u8]>) -> Outcome {
    send(server::addr(), bytes.as_ref(), false, false)
}

/// Returns a request with `fields`, each with its line end, and `Connection: close`.
fn request(method: &str, target: &str, fields: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n")
}

/// Sends a request and returns its only response.
#[track_caller]
fn answer(method: &str, target: &str, fields: &str) -> Answer {
    let bytes = request(method, target, fields);
    let outcome = send(server::addr(), bytes.as_bytes(), false, method == "HEAD");
    let [answer] = &outcome.answers[..] else {
        panic!("{method} {target}: {outcome:?}");
    };
    answer.clone()
}

/// Asserts a single response of 4xx or 5xx, and the end of the connection.
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

/// Returns the header fields of a response.
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

/// Requests for tests of all kinds of responses: to a valid request, to an unknown target, and to
/// malformed requests.
const PLAIN: [&str; 4] = [
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "GET /none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nBad name: a\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
];
