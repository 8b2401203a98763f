//! Section 2: messages.

use super::{ask, get, refused, understood};

#[test]
fn octets_beyond_ascii_are_no_error() {
    // RFC 9112, 2.2: "A recipient MUST parse an HTTP message as a sequence of octets in an encoding
    // that is a superset of US-ASCII"
    let mut request = get("X: ").into_bytes();
    request.truncate(request.len() - 2);
    request.extend(b"\xff\xc3\x28\r\n\r\n");
    understood(request);
}

#[test]
fn a_bare_cr_is_invalid() {
    // RFC 9112, 2.2: "A recipient of such a bare CR MUST consider that element to be invalid or
    // replace each bare CR with SP"
    refused(get("X: a\rb\r\n"), 400);
    refused("GET /\r HTTP/1.1\r\nHost: a\r\n\r\n", 400);
}

#[test]
fn white_space_before_the_first_field() {
    // RFC 9112, 2.2: "A recipient that receives whitespace between the start-line and the first
    // header field MUST either reject the message as invalid or consume each whitespace-preceded
    // line"
    refused("GET / HTTP/1.1\r\n Host: a\r\nHost: a\r\n\r\n", 400);
}

#[test]
fn one_empty_line_before_a_request() {
    understood(format!("\r\n{}", get("")));
}

#[test]
fn the_version_is_case_sensitive() {
    refused("GET / http/1.1\r\nHost: a\r\n\r\n", 400);
    refused("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505);
}

#[test]
fn answers_have_clean_heads() {
    // RFC 9112, 2.2: "A sender MUST NOT generate a bare CR"
    // RFC 9112, 2.2: "A sender MUST NOT send whitespace between the start-line and the first header
    // field."
    // RFC 9112, 5.2: "A sender MUST NOT generate a message that includes line folding"
    for request in [
        get(""),
        "BAD\r\n\r\n".to_owned(),
        get("").replace("/", "/none"),
    ] {
        for answer in ask(request).answers {
            let text = String::from_utf8(answer.head).unwrap();
            for line in text.split("\r\n") {
                assert!(!line.contains(['\r', '\n', '\0']), "{line:?}");
                assert!(!line.starts_with([' ', '\t']), "{line:?}");
            }
        }
    }
}
