//! Tests of RFC 9112 (HTTP/1.1), section by section.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod citations;
#[path = "../own.rs"]
mod own;
mod section_2;
mod section_3;
mod section_4;
mod section_5;
mod section_6;
mod section_7;
mod section_9;
mod server;
mod smuggling;

use samovar_conformance::{Outcome, send};

/// Sends a request and reads until the server closes the connection.
fn ask(bytes: impl AsRef<[u8]>) -> Outcome {
    send(server::addr(), bytes.as_ref(), false, false)
}

/// Returns a GET request with `fields` and `Connection: close`.
fn get(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n")
}

/// Asserts a single response with this status, and the end of the connection.
#[track_caller]
fn refused(bytes: impl AsRef<[u8]>, status: u16) {
    let bytes = bytes.as_ref();
    let outcome = ask(bytes);
    let text = bytes.escape_ascii().to_string();
    assert!(outcome.is_refused(), "{text:?}: {outcome:?}");
    assert_eq!(outcome.statuses(), [status], "{text:?}");
}

/// Asserts a single response that does not refuse the message, and the end of the connection.
#[track_caller]
fn understood(bytes: impl AsRef<[u8]>) {
    let bytes = bytes.as_ref();
    let outcome = ask(bytes);
    let text = bytes.escape_ascii().to_string();
    assert_eq!(outcome.end, samovar_conformance::End::Closed, "{text:?}");
    let [answer] = &outcome.answers[..] else {
        panic!("{text:?}: {outcome:?}");
    };
    let is_refusal = matches!(
        answer.status,
        400 | 408 | 411 | 413 | 414 | 417 | 431 | 500..
    );
    assert!(!is_refusal, "{text:?}: {outcome:?}");
}
