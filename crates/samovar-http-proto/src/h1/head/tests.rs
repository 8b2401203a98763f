use super::*;

fn parsed(text: &[u8]) -> Result<Option<(usize, HeadIndex)>, Refusal> {
    let mut index = HeadIndex::default();
    Ok(parse(text, &HeadLimits::default(), &mut index)?.map(|len| (len, index)))
}

#[track_caller]
fn refused(text: impl AsRef<[u8]>, expected: Refusal) {
    let text = text.as_ref();
    match parsed(text) {
        Err(refusal) => assert_eq!(refusal, expected, "{:?}", text.escape_ascii().to_string()),
        Ok(None) => panic!("incomplete: {:?}", text.escape_ascii().to_string()),
        Ok(Some(_)) => panic!("accepted: {:?}", text.escape_ascii().to_string()),
    }
}

#[track_caller]
fn accepted(text: impl AsRef<[u8]>) -> HeadIndex {
    let text = text.as_ref();
    let (len, index) = parsed(text).unwrap().unwrap();
    assert_eq!(len, text.len());
    index
}

/// Returns a head with `fields` after a valid request line and a `Host`.
fn with(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

#[test]
fn parts() {
    let text = b"GET /x/y?q=1 HTTP/1.1\r\nHost: a:80\r\nX-Odd:  v w \r\n\r\n";
    let index = accepted(text);
    assert_eq!(index.method, Method::Get);
    assert_eq!(index.target.of(text), b"/x/y?q=1");
    assert_eq!(index.path.of(text), b"/x/y");
    assert_eq!(index.query.unwrap().of(text), b"q=1");
    assert_eq!(index.headers[1].name.of(text), b"X-Odd");
    assert_eq!(index.headers[1].value.of(text), b"v w");
    assert!(index.keep_alive);
}

#[test]
fn one_empty_line_may_precede() {
    accepted("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    refused(
        "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        Refusal::RequestLine,
    );
    refused("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::RequestLine);
    refused(" GET / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::RequestLine);
    assert!(parsed(b"\r").unwrap().is_none());
}

#[test]
fn every_prefix_is_incomplete() {
    let text = with("Content-Length: 3\r\nConnection: close\r\n");
    for end in 0..text.len() {
        assert!(parsed(&text.as_bytes()[..end]).unwrap().is_none(), "{end}");
    }
}

#[test]
fn request_lines() {
    for line in [
        "GET /",
        "GET  / HTTP/1.1",
        "GET / HTTP/1.1 ",
        "GET / x HTTP/1.1",
        "GE(T / HTTP/1.1",
        " / HTTP/1.1",
        "GET / http/1.1",
        "GET / HTTP/1.",
        "GET /\x01 HTTP/1.1",
        "GET\t/ HTTP/1.1",
    ] {
        let text = format!("{line}\r\nHost: a\r\n\r\n");
        let refusal = parsed(text.as_bytes()).unwrap_err();
        assert_eq!(refusal.status().code(), 400, "{line:?}: {refusal:?}");
    }
}

#[test]
fn versions() {
    accepted("GET / HTTP/1.0\r\n\r\n");
    for version in ["HTTP/1.2", "HTTP/2.0", "HTTP/0.9", "HTTP/9.9"] {
        refused(
            format!("GET / {version}\r\nHost: a\r\n\r\n"),
            Refusal::HttpVersion,
        );
    }
}

#[test]
fn targets() {
    #[track_caller]
    fn path(line: &str, expected: &str) {
        let host = line.split("://").nth(1).unwrap_or("a");
        let host = host.split(['/', '?']).next().unwrap();
        let text = format!("{line} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(
            accepted(&text).path.of(text.as_bytes()),
            expected.as_bytes()
        );
    }
    path("GET /a?b?c", "/a");
    path("GET http://host/a?b", "/a");
    path("GET HTTP://host:80", "");
    path("GET https://[::1]:5/x", "/x");
    path("GET http://host?q", "");
    path("OPTIONS *", "*");
    path("CONNECT host:1", "");
    path("CONNECT [::1]:65535", "");
    for line in [
        "GET *",
        "GET a",
        "GET http://",
        "GET http:///x",
        "GET http://u@h/",
        "GET ftp://h/",
        "POST host:1",
        "CONNECT host",
        "CONNECT host:",
        "CONNECT host:0",
        "CONNECT host:65536",
        "CONNECT host:x",
        "CONNECT :1",
        "CONNECT /",
    ] {
        refused(
            format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n"),
            Refusal::Target,
        );
    }
    for target in ["/#", "/a#b", "http://a/#", "http://a#b"] {
        refused(
            format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"),
            Refusal::Target,
        );
    }
    refused("GET /\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::Target);
}

#[test]
fn hosts() {
    accepted("GET / HTTP/1.1\r\nHost:\r\n\r\n");
    accepted("GET / HTTP/1.1\r\nhOST: [::1]:80\r\n\r\n");
    refused("GET / HTTP/1.1\r\n\r\n", Refusal::Host);
    refused(
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        Refusal::Host,
    );
    refused(
        "GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n",
        Refusal::Host,
    );
    for host in [
        "a:",
        "a:80",
        "1.2.3.4:5",
        "[::1]",
        "[v1.a:b]:8",
        "a%20b",
        "-_.~!",
    ] {
        accepted(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    }
    for host in [
        "a b", "a/b", "a@b", "a,b", "a\"", "a\u{e9}", "a:b", "a:1:2", ":80", "[::1", "::1", "a]",
        "[]", "[::1]x", "[::1]:x", "[[::1]]", "a%2", "a%zz",
    ] {
        refused(
            format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            Refusal::Host,
        );
    }
}

#[test]
fn two_hosts_that_differ() {
    accepted("GET http://A:80/ HTTP/1.1\r\nHost: a:80\r\n\r\n");
    accepted("GET http://a/ HTTP/1.0\r\n\r\n");
    for host in ["b", "", "a:80"] {
        refused(
            format!("GET http://a/ HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            Refusal::OtherHost,
        );
    }
}

#[test]
fn line_ends() {
    refused("GET / HTTP/1.1\nHost: a\n\n", Refusal::BareLf);
    refused("GET / HTTP/1.1\r\nHost: a\n\r\n", Refusal::BareLf);
    refused("GET / HTTP/1.1\r\nHost: a\r\n\n", Refusal::BareLf);
    refused("GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n", Refusal::HeaderField);
}

#[test]
fn header_fields() {
    for field in [
        "A : b",
        " A: b",
        "\tA: b",
        "A\u{e9}: b",
        ": b",
        "A",
        "A: b\0",
        "A: b\x7f",
        "A: b\r\n c",
    ] {
        let refusal = parsed(with(&format!("{field}\r\n")).as_bytes()).unwrap_err();
        assert_eq!(refusal.status().code(), 400, "{field:?}: {refusal:?}");
    }
    accepted(with("A:\r\nB: \t\r\nC: \u{e9}\r\n"));
}

#[test]
fn content_lengths() {
    assert_eq!(
        accepted(with("Content-Length: 0\r\n")).framing,
        Framing::None
    );
    assert_eq!(
        accepted(with("Content-Length: 7\r\n")).framing,
        Framing::Length(7)
    );
    assert_eq!(
        accepted(with("Content-Length: 18446744073709551615\r\n")).framing,
        Framing::Length(u64::MAX)
    );
    for value in [
        "",
        "+5",
        "-5",
        "5 5",
        "5,5",
        "5, 6",
        "0x5",
        "5.0",
        "18446744073709551616",
        "١",
    ] {
        refused(
            with(&format!("Content-Length: {value}\r\n")),
            Refusal::ContentLength,
        );
    }
    refused(
        with("Content-Length: 5\r\nContent-Length: 5\r\n"),
        Refusal::ContentLength,
    );
    refused(
        with("Content-Length: 5\r\ncontent-length: 6\r\n"),
        Refusal::ContentLength,
    );
}

#[test]
fn transfer_encodings() {
    assert_eq!(
        accepted(with("Transfer-Encoding: Chunked\r\n")).framing,
        Framing::Chunked
    );
    for value in [
        "gzip, chunked",
        "identity, chunked",
        "x,\tchunked",
        "chunked;q=1, chunked",
    ] {
        refused(
            with(&format!("Transfer-Encoding: {value}\r\n")),
            Refusal::TransferCoding,
        );
    }
    for value in [
        "",
        "xchunked",
        "chunked, identity",
        "chunked, chunked",
        "chunked,",
        ",chunked",
        "identity",
        "chunked;q=1",
        "\"chunked\"",
        "chunked\u{b}",
        "chun ked",
    ] {
        let refusal = parsed(with(&format!("Transfer-Encoding: {value}\r\n")).as_bytes());
        assert_eq!(refusal.unwrap_err().status().code(), 400, "{value:?}");
    }
    refused(
        with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        Refusal::TransferEncoding,
    );
    refused(
        with("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"),
        Refusal::TransferEncoding,
    );
    refused(
        with("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n"),
        Refusal::TransferEncoding,
    );
    refused(
        "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        Refusal::TransferEncoding,
    );
}

#[test]
fn connection_tokens() {
    #[track_caller]
    fn keeps_alive(version: &str, fields: &str, expected: bool) {
        let text = format!("GET / {version}\r\nHost: a\r\n{fields}\r\n");
        assert_eq!(accepted(text).keep_alive, expected, "{version} {fields:?}");
    }
    keeps_alive("HTTP/1.1", "", true);
    keeps_alive("HTTP/1.0", "", false);
    keeps_alive("HTTP/1.0", "Connection: x, Keep-Alive\r\n", true);
    keeps_alive("HTTP/1.1", "Connection: CLOSE\r\n", false);
    keeps_alive(
        "HTTP/1.1",
        "Connection: keep-alive\r\nConnection: close\r\n",
        false,
    );
    keeps_alive("HTTP/1.1", "Connection: closed\r\n", true);
}

#[test]
fn expectations() {
    assert!(accepted(with("Content-Length: 1\r\nExpect: 100-Continue\r\n")).expect_continue);
    assert!(!accepted(with("Expect: 100-continue\r\n")).expect_continue);
    refused(with("Expect: 200-ok\r\n"), Refusal::Expectation);
}

#[test]
fn the_head_limit() {
    let limits = HeadLimits {
        head_len_max: 100,
        target_len_max: 50,
        header_count_max: 3,
        more: (),
    };
    let check = |text: &str, expected: Result<bool, Refusal>| {
        let outcome = parse(text.as_bytes(), &limits, &mut HeadIndex::default());
        assert_eq!(outcome.map(|len| len.is_some()), expected, "{text:?}");
    };
    let fill = |len: usize| {
        let fixed = "GET / HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n".len();
        format!(
            "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
            "x".repeat(len - fixed)
        )
    };
    check(&fill(100), Ok(true));
    check(&fill(101), Err(Refusal::HeadTooLarge));
    check(&fill(101)[..100], Err(Refusal::HeadTooLarge));
    check(&fill(101)[..99], Ok(false));
    let target = |len: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(len - 1));
    check(&target(50), Ok(true));
    check(&target(51), Err(Refusal::TargetTooLong));
    check(&target(51)[..54], Ok(false));
    check(&target(51)[..55], Err(Refusal::TargetTooLong));
    check(
        "GET / HTTP/1.1\r\nHost: a\r\nA: 1\r\nB: 2\r\n\r\n",
        Ok(true),
    );
    check(
        "GET / HTTP/1.1\r\nHost: a\r\nA: 1\r\nB: 2\r\nC: 3\r\n\r\n",
        Err(Refusal::TooManyHeaders),
    );
}
