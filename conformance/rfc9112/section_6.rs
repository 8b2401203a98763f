//! Section 6: message bodies.

use samovar_conformance::{End, send};

use super::{ask, get, refused, server};

fn post(fields: &str, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}")
}

#[test]
fn both_framings() {
    // RFC 9112, 6.1: "Regardless, the server MUST close the connection after responding to such a
    // request to avoid the potential attacks."
    let both = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n";
    let outcome = ask(post(both, "0\r\n\r\n") + &get(""));
    assert_eq!(outcome.answers.len(), 1, "{outcome:?}");
    assert_ne!(outcome.end, End::Open);
}

#[test]
fn a_coding_in_http_1_0() {
    // RFC 9112, 6.1: "A server or client that receives an HTTP/1.0 message containing a
    // Transfer-Encoding header field MUST treat the message as if the framing is faulty, even if a
    // Content-Length is present, and close the connection after processing the message."
    let fields = "Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n";
    let outcome = ask(format!(
        "POST / HTTP/1.0\r\n{fields}\r\n0\r\n\r\n{}",
        get("")
    ));
    assert_eq!(outcome.answers.len(), 1, "{outcome:?}");
    assert_ne!(outcome.end, End::Open);
}

#[test]
fn a_coding_that_is_not_known() {
    refused(
        post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"),
        501,
    );
}

#[test]
fn chunked_must_be_last() {
    // RFC 9112, 6.3: "If a Transfer-Encoding header field is present in a request and the chunked
    // transfer coding is not the final encoding, the message body length cannot be determined
    // reliably; the server MUST respond with the 400 (Bad Request) status code and then close the
    // connection."
    for codings in ["gzip", "chunked, gzip", "identity", "xchunked"] {
        refused(
            post(&format!("Transfer-Encoding: {codings}\r\n"), "0\r\n\r\n"),
            400,
        );
    }
}

#[test]
fn invalid_lengths() {
    // RFC 9112, 6.3: "If a message is received without Transfer-Encoding and with an invalid
    // Content-Length header field, then the message framing is invalid and the recipient MUST treat
    // it as an unrecoverable error"
    // RFC 9112, 6.3: "If the unrecoverable error is in a request message, the server MUST respond
    // with a 400 (Bad Request) status code and then close the connection."
    for length in [
        "",
        "a",
        "+5",
        "-5",
        "5 5",
        "0x5",
        "5,6",
        "5.0",
        "99999999999999999999",
    ] {
        refused(post(&format!("Content-Length: {length}\r\n"), "hello"), 400);
    }
    refused(
        post("Content-Length: 5\r\nContent-Length: 6\r\n", "hello!"),
        400,
    );
}

#[test]
fn a_body_that_stops() {
    // RFC 9112, 6.3: "If the sender closes the connection or the recipient times out before the
    // indicated number of octets are received, the recipient MUST consider the message to be
    // incomplete and close the connection."
    for request in [
        post("Content-Length: 50\r\n", "hello"),
        post("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n"),
    ] {
        let outcome = send(server::addr(), request.as_bytes(), true, false);
        assert!(
            outcome.answers.iter().all(|answer| answer.status >= 400),
            "{outcome:?}"
        );
        assert_ne!(outcome.end, End::Open);
    }
}

#[test]
fn answers_have_one_framing() {
    // RFC 9112, 6.1: "A server MUST NOT send a response containing Transfer-Encoding unless the
    // corresponding request indicates HTTP/1.1 (or later minor revisions)."
    // RFC 9112, 6.1: "A server MUST NOT send a Transfer-Encoding header field in any response with
    // a status code of 1xx (Informational) or 204 (No Content)."
    // RFC 9112, 6.2: "A sender MUST NOT send a Content-Length header field in any message that
    // contains a Transfer-Encoding header field."
    for request in [get(""), "GET / HTTP/1.0\r\n\r\n".to_owned()] {
        for answer in ask(&request).answers {
            let (len, coding) = (
                answer.header("content-length"),
                answer.header("transfer-encoding"),
            );
            assert!(len.is_none() || coding.is_none());
            assert!(coding.is_none() || request.contains("HTTP/1.1"));
            assert!(coding.is_none() || (answer.status >= 200 && answer.status != 204));
        }
    }
}

#[test]
fn no_content_to_head() {
    // RFC 9112, 6.3: "Any response to a HEAD request and any response with a 1xx (Informational),
    // 204 (No Content), or 304 (Not Modified) status code is always terminated by the first empty
    // line after the header fields"
    for path in ["/", "/inline", "/none"] {
        let head = format!("HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        let last = format!("HEAD {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let outcome = send(server::addr(), (head + &last).as_bytes(), false, true);
        assert_eq!(
            (outcome.answers.len(), outcome.end),
            (2, End::Closed),
            "{path}: {outcome:?}"
        );
    }
}
