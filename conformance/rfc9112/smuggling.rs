//! Request smuggling: messages whose end two servers may locate differently. The server must refuse
//! each of them with one response and close the connection. It must never respond to the request
//! that is hidden in the message.

use super::ask;

const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\n";
const CHUNKED: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Name, start line, and the part of the request before the hidden request.
const CASES: &[(&str, &str, &str)] = &[
    (
        "length before coding",
        POST,
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "coding before length",
        POST,
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    ),
    (
        "two equal lengths",
        POST,
        "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    ),
    (
        "two lengths",
        POST,
        "Content-Length: 5\r\nContent-Length: 0\r\n\r\nhello",
    ),
    (
        "a list of lengths",
        POST,
        "Content-Length: 5, 5\r\n\r\nhello",
    ),
    ("a signed length", POST, "Content-Length: +5\r\n\r\nhello"),
    (
        "a length with a space",
        POST,
        "Content-Length: 0 5\r\n\r\nhello",
    ),
    (
        "a hexadecimal length",
        POST,
        "Content-Length: 0x5\r\n\r\nhello",
    ),
    (
        "a length of 20 digits",
        POST,
        "Content-Length: 18446744073709551621\r\n\r\nhello",
    ),
    (
        "xchunked",
        POST,
        "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked, identity",
        POST,
        "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    ),
    (
        "identity, chunked",
        POST,
        "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked, chunked",
        POST,
        "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "two lines chunked",
        POST,
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked after a vertical tab",
        POST,
        "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked before a vertical tab",
        POST,
        "Transfer-Encoding: chunked\x0b\r\n\r\n0\r\n\r\n",
    ),
    (
        "a quoted coding",
        POST,
        "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
    ),
    (
        "a coding in HTTP/1.0",
        "POST / HTTP/1.0\r\nConnection: keep-alive\r\n",
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "a space before the colon",
        POST,
        "Content-Length : 5\r\n\r\nhello",
    ),
    (
        "a tab before the colon",
        POST,
        "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "a folded line",
        POST,
        "X: a\r\n Content-Length: 5\r\n\r\nhello",
    ),
    (
        "a folded coding",
        POST,
        "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    ),
    ("bare LF ends the head", GET, "X: a\n\n"),
    (
        "bare LF in a field",
        GET,
        "X: a\nContent-Length: 5\r\n\r\nhello",
    ),
    (
        "bare LF after the request line",
        "GET / HTTP/1.1\nHost: a\r\n",
        "\r\n",
    ),
    (
        "bare CR in a field",
        GET,
        "X: a\rContent-Length: 5\r\n\r\nhello",
    ),
    ("NUL in a field", GET, "X: a\0b\r\n\r\n"),
    ("NUL in a name", GET, "X\0: a\r\n\r\n"),
    ("an empty name", GET, ": a\r\n\r\n"),
    ("a chunk size with _", CHUNKED, "0_1\r\na\r\n0\r\n\r\n"),
    ("a chunk size with +", CHUNKED, "+1\r\na\r\n0\r\n\r\n"),
    ("a chunk size with -", CHUNKED, "-1\r\na\r\n0\r\n\r\n"),
    (
        "a space before a chunk size",
        CHUNKED,
        " 1\r\na\r\n0\r\n\r\n",
    ),
    ("a chunk size with 0x", CHUNKED, "0x1\r\na\r\n0\r\n\r\n"),
    ("an empty chunk size", CHUNKED, "\r\na\r\n0\r\n\r\n"),
    (
        "a chunk size that overflows",
        CHUNKED,
        "10000000000000001\r\na\r\n0\r\n\r\n",
    ),
    ("no CRLF after a chunk", CHUNKED, "1\r\na0\r\n\r\n"),
    (
        "another two bytes after a chunk",
        CHUNKED,
        "1\r\naXX0\r\n\r\n",
    ),
    ("bare LF after a chunk size", CHUNKED, "1\na\r\n0\r\n\r\n"),
    ("bare LF after a chunk", CHUNKED, "1\r\na\n0\r\n\r\n"),
    ("bare LF after the last chunk", CHUNKED, "0\n\r\n"),
    ("bare LF after the trailers", CHUNKED, "0\r\n\n"),
    (
        "bare CR in an extension",
        CHUNKED,
        "1;a\rb\r\na\r\n0\r\n\r\n",
    ),
    (
        "bare LF in an extension",
        CHUNKED,
        "1;a\nb\r\na\r\n0\r\n\r\n",
    ),
    (
        "a trailer that names a length",
        CHUNKED,
        "0\r\nContent-Length: 5\r\n\r\n",
    ),
    (
        "a trailer that names a coding",
        CHUNKED,
        "0\r\nTransfer-Encoding: chunked\r\n\r\n",
    ),
    (
        "a trailer that names a host",
        CHUNKED,
        "0\r\nHost: b\r\n\r\n",
    ),
    ("a trailer without a colon", CHUNKED, "0\r\nX\r\n\r\n"),
    (
        "two hosts that differ",
        "GET http://b/ HTTP/1.1\r\nHost: a\r\n",
        "\r\n",
    ),
    ("two Host lines", GET, "Host: b\r\n\r\n"),
    ("no Host", "GET / HTTP/1.1\r\n", "\r\n"),
    ("a fragment", "GET /#a HTTP/1.1\r\nHost: a\r\n", "\r\n"),
    (
        "a space in the target",
        "GET / a HTTP/1.1\r\nHost: a\r\n",
        "\r\n",
    ),
    (
        "a length with a semicolon",
        POST,
        "Content-Length: 5;\r\n\r\nhello",
    ),
    (
        "a length with a comma",
        POST,
        "Content-Length: 5,\r\n\r\nhello",
    ),
    ("a negative zero", POST, "Content-Length: -0\r\n\r\n"),
    ("a length with _", POST, "Content-Length: 0_5\r\n\r\nhello"),
    (
        "a length as a float",
        POST,
        "Content-Length: 5e0\r\n\r\nhello",
    ),
    ("an empty length", POST, "Content-Length:\r\n\r\nhello"),
    (
        "a length in quotes",
        POST,
        "Content-Length: \"5\"\r\n\r\nhello",
    ),
    (
        "two lengths in two cases",
        POST,
        "Content-Length: 5\r\ncontent-length: 0\r\n\r\nhello",
    ),
    (
        "a length before NUL",
        POST,
        "Content-Length: 5\0\r\n\r\nhello",
    ),
    (
        "an empty coding",
        POST,
        "Transfer-Encoding:\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked with a parameter",
        POST,
        "Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    ),
    (
        "half a quotation",
        POST,
        "Transfer-Encoding: \"chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked before a form feed",
        POST,
        "Transfer-Encoding: chunked\x0c\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked before NUL",
        POST,
        "Transfer-Encoding: chunked\0\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked, and a line without a coding",
        POST,
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: cow\r\n\r\n0\r\n\r\n",
    ),
    (
        "a parenthesis in a name",
        POST,
        "Content-Length(: 5\r\n\r\nhello",
    ),
    ("a name beyond ASCII", GET, "X\u{e9}: a\r\n\r\n"),
    ("a line of a colon", GET, ":\r\n\r\n"),
    (
        "a line without a colon",
        GET,
        "Content-Length 5\r\n\r\nhello",
    ),
    (
        "a space before a name",
        GET,
        " Content-Length: 5\r\n\r\nhello",
    ),
    (
        "bare CR ends the request line",
        "GET / HTTP/1.1\rHost: a\r\n",
        "\r\n",
    ),
    ("bare CR ends the head", GET, "X: a\r\r"),
    (
        "tabs in the request line",
        "GET\t/\tHTTP/1.1\r\nHost: a\r\n",
        "\r\n",
    ),
    (
        "two spaces before the target",
        "GET  / HTTP/1.1\r\nHost: a\r\n",
        "\r\n",
    ),
    (
        "two spaces before the version",
        "GET /  HTTP/1.1\r\nHost: a\r\n",
        "\r\n",
    ),
    (
        "a space after the version",
        "GET / HTTP/1.1 \r\nHost: a\r\n",
        "\r\n",
    ),
    (
        "a space before the method",
        " GET / HTTP/1.1\r\nHost: a\r\n",
        "\r\n",
    ),
    (
        "a version of two digits",
        "GET / HTTP/1.10\r\nHost: a\r\n",
        "\r\n",
    ),
    (
        "a version with a comma",
        "GET / HTTP/1,1\r\nHost: a\r\n",
        "\r\n",
    ),
    ("no method", "/ HTTP/1.1\r\nHost: a\r\n", "\r\n"),
    (
        "a colon in the method",
        "GET: / HTTP/1.1\r\nHost: a\r\n",
        "\r\n",
    ),
    (
        "NUL in the target",
        "GET /\0 HTTP/1.1\r\nHost: a\r\n",
        "\r\n",
    ),
    (
        "a comma in Host",
        "GET / HTTP/1.1\r\nHost: a, b\r\n",
        "\r\n",
    ),
    ("a path in Host", "GET / HTTP/1.1\r\nHost: a/b\r\n", "\r\n"),
    (
        "a space after a chunk size",
        CHUNKED,
        "1 \r\na\r\n0\r\n\r\n",
    ),
    ("NUL after a chunk size", CHUNKED, "1\0\r\na\r\n0\r\n\r\n"),
    (
        "two CR after a chunk size",
        CHUNKED,
        "1\r\r\na\r\n0\r\n\r\n",
    ),
    ("a chunk size of letters", CHUNKED, "g\r\na\r\n0\r\n\r\n"),
    ("a chunk size with a dot", CHUNKED, "1.0\r\na\r\n0\r\n\r\n"),
    ("NUL in an extension", CHUNKED, "1;a\0b\r\na\r\n0\r\n\r\n"),
    (
        "a chunk longer than its size",
        CHUNKED,
        "1\r\naa\r\n0\r\n\r\n",
    ),
    ("a folded trailer", CHUNKED, "0\r\nX: a\r\n b\r\n\r\n"),
    ("bare CR in a trailer", CHUNKED, "0\r\nX: a\rb\r\n\r\n"),
    ("NUL in a trailer", CHUNKED, "0\r\nX: a\0b\r\n\r\n"),
    (
        "a space before a trailer's colon",
        CHUNKED,
        "0\r\nX : a\r\n\r\n",
    ),
];

#[test]
fn one_refusal_and_the_end() {
    let long = format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(100_000));
    let cases = CASES
        .iter()
        .copied()
        .chain([("an endless extension", CHUNKED, &long[..])]);
    let mut failures = Vec::new();
    for (name, start, rest) in cases {
        let outcome = ask(format!("{start}{rest}{HIDDEN}"));
        if !outcome.is_refused() {
            failures.push(format!(
                "{name}: {:?}, {:?}",
                outcome.statuses(),
                outcome.end
            ));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn what_is_a_body_is_not_a_request() {
    let last = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let len = HIDDEN.len();
    for request in [
        format!("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n{HIDDEN}{last}"),
        format!("DELETE /none HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n{HIDDEN}{last}"),
        format!(
            "POST / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
             Content-Length: {len}\r\n\r\n{HIDDEN}{last}"
        ),
        format!("{CHUNKED}{len:x}\r\n{HIDDEN}\r\n0\r\n\r\n{last}"),
    ] {
        let outcome = ask(&request);
        assert!(
            (1..=2).contains(&outcome.answers.len()),
            "{request:?}: {outcome:?}"
        );
    }
}

#[test]
fn what_has_no_content_hides_none() {
    let len = HIDDEN.len();
    let last = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    for (method, target) in [("HEAD", "/"), ("POST", "/empty"), ("POST", "/fresh")] {
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n\
             {HIDDEN}{last}"
        );
        let outcome = ask(&request);
        let statuses = outcome.statuses();
        assert!(
            (1..=2).contains(&statuses.len()),
            "{method} {target}: {outcome:?}"
        );
    }
}
