//! Section 5: field lines.

use super::{get, refused, understood};

#[test]
fn no_white_space_before_the_colon() {
    // RFC 9112, 5.1: "A server MUST reject, with a response status code of 400 (Bad Request), any
    // received request message that contains whitespace between a header field name and colon."
    refused(get("X : a\r\n"), 400);
    refused(get("X\t: a\r\n"), 400);
}

#[test]
fn line_folding() {
    // RFC 9112, 5.2: "A server that receives an obs-fold in a request message that is not within a
    // "message/http" container MUST either reject the message by sending a 400 (Bad Request)"
    refused(get("X: a\r\n b\r\n"), 400);
    refused(get("X: a\r\n\tb\r\n"), 400);
}

#[test]
fn malformed_fields() {
    for field in ["X", ": a", "X\0: a", "X: a\0b", "X(: a", "X: \x01"] {
        refused(get(&format!("{field}\r\n")), 400);
    }
    refused(get(&format!("X: {}\r\n", "x".repeat(100_000))), 431);
    understood(get("X:\r\nY:  \t a \t\r\n"));
}
