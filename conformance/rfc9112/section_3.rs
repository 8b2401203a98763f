//! Section 3: the request line.

use super::{ask, refused, understood};

#[test]
fn malformed_request_lines() {
    for line in [
        "GET",
        "GET /",
        "GET  / HTTP/1.1",
        "GET / HTTP/1.1 ",
        "GET / x HTTP/1.1",
        " / HTTP/1.1",
        "G(T / HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "GET a HTTP/1.1",
        "GET * HTTP/1.1",
        "GET / HTTP/1.",
    ] {
        refused(format!("{line}\r\nHost: a\r\n\r\n"), 400);
    }
}

#[test]
fn a_long_target() {
    // RFC 9112, 3: "A server that receives a request-target longer than any URI it wishes to parse
    // MUST respond with a 414 (URI Too Long) status code"
    refused(
        format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(100_000)),
        414,
    );
    // "It is RECOMMENDED that all HTTP senders and recipients support, at a minimum, request-line
    // lengths of 8000 octets."
    let target = "x".repeat(8000 - "GET / HTTP/1.1\r\n".len());
    understood(format!(
        "GET /{target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    ));
}

#[test]
fn exactly_one_valid_host() {
    // RFC 9112, 3.2: "A server MUST respond with a 400 (Bad Request) status code to any HTTP/1.1
    // request message that lacks a Host header field and to any request message that contains more
    // than one Host header field line or a Host header field with an invalid field value."
    for fields in [
        "",
        "Host: a\r\nHost: a\r\n",
        "Host: a\r\nhost: b\r\n",
        "Host: a b\r\n",
        "Host: a/b\r\n",
        "Host: a@b\r\n",
        "Host: a:b\r\n",
        "Host: [::1\r\n",
    ] {
        refused(format!("GET / HTTP/1.1\r\n{fields}\r\n"), 400);
    }
    understood("GET / HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n");
    understood("GET / HTTP/1.0\r\n\r\n");
}

#[test]
fn the_absolute_form() {
    // RFC 9112, 3.2.2: "A server MUST accept the absolute-form in requests"
    understood("GET http://a/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
}

#[test]
fn the_asterisk_form() {
    let outcome = ask("OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let [answer] = &outcome.answers[..] else {
        panic!("{outcome:?}");
    };
    assert_ne!(answer.status, 400);
}
