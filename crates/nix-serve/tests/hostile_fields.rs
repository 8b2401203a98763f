//! No header field of a request can appear in a response, forge a log line, or send control
//! characters to a terminal that shows the log.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_process;

use std::fs;
use std::net::IpAddr;

use support::{eventually, hash_part, sample};
use support_process::{Connection, at, serve_sample};

const INFO: &str = "/nix-cache-info";
/// Part of every field value. Must not appear in any response.
const CANARY: &str = "c4nary";
/// Length limit of a request head (`docs/book/limits.md`).
const HEAD_LEN_MAX: usize = 16 * 1024;

/// Valid field values that try to break out of their field in a log line.
const LEGAL: &[&[u8]] = &[
    b"c4nary",
    b"c4nary\" 200 0 \"-\" \"-",
    b"c4nary\\",
    b"c4nary\\\" 200 0 \"-\" \"-",
    b"\"",
    b"\"c4nary\\\"\\\\\"",
    b"c4nary\t\t\x3c!--",
    b"c4nary\\x0d\\x0a127.0.0.1 - - [",
    b"c4nary%0d%0aSet-Cookie: c4nary=1",
    b"<script>alert('c4nary')</script>",
    b"${jndi:ldap://c4nary/x} {{c4nary}} $(c4nary) `c4nary`",
    b"%n%s%x%h%u c4nary",
    b"\xc2\x9b2Jc4nary\xc2\x85",
    b"c4nary \xe2\x80\xae drowssap \xe2\x80\xa8 \xef\xbb\xbf",
    b"\xff\xfe\x80c4nary\xc0\xae",
    b"fe80::c4nary%eth0",
    b"-rf c4nary; --",
    b"file:///etc/c4nary",
];

/// Invalid field values. The server must refuse the request.
const ILLEGAL: &[&[u8]] = &[
    b"c4nary\x1b[2J\x1b]0;c4nary\x07",
    b"c4nary\0",
    b"c4nary\rSet-Cookie: c4nary=1",
    b"c4nary\nSet-Cookie: c4nary=1",
    b"c4nary\r\n folded",
    b"c4nary\x7f",
    b"c4nary\x08\x08",
];

/// Names of fields that a server might interpret.
const NAMES: &[&str] = &[
    "User-Agent",
    "Referer",
    "X-Forwarded-For",
    "X-Real-IP",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "Forwarded",
    "Via",
    "Origin",
    "Cookie",
    "Authorization",
    "Proxy-Authorization",
    "Accept",
    "Accept-Encoding",
    "Accept-Language",
    "Range",
    "If-Range",
    "If-None-Match",
    "If-Modified-Since",
    "Upgrade",
    "Access-Control-Request-Method",
    "X-Original-URL",
    "X-HTTP-Method-Override",
    "Cache-Control",
    "c4nary",
];

/// A line of the combined log format, parsed strictly by the format's grammar.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    client: String,
    request: Vec<u8>,
    status: u16,
    len: u64,
    referer: Vec<u8>,
    user_agent: Vec<u8>,
}

/// Returns the log's form of a field value; `-` if the field is absent.
fn logged(value: Option<&[u8]>) -> Vec<u8> {
    value.unwrap_or(b"-").to_vec()
}

impl Line {
    #[track_caller]
    fn parse(line: &str) -> Self {
        let quoted = |text: &'_ str| -> (Vec<u8>, usize) {
            let mut value = Vec::new();
            let mut bytes = text.strip_prefix('"').unwrap().bytes().enumerate();
            while let Some((index, byte)) = bytes.next() {
                match byte {
                    b'"' => return (value, index + 2),
                    b'\\' => match bytes.next().unwrap().1 {
                        b'x' => {
                            let digits: String = [(); 2]
                                .map(|()| bytes.next().unwrap().1 as char)
                                .iter()
                                .collect();
                            value.push(u8::from_str_radix(&digits, 16).unwrap());
                        }
                        other => value.push(other),
                    },
                    _ => value.push(byte),
                }
            }
            unreachable!("{text}")
        };
        assert!(
            line.bytes().all(|byte| matches!(byte, b' '..=b'~')),
            "{line}"
        );
        let (client, rest) = line.split_once(" - - [").unwrap();
        let (time, rest) = rest.split_once("] ").unwrap();
        assert!(time.len() == 26 && time.ends_with(" +0000"), "{line}");
        let (request, end) = quoted(rest);
        let (numbers, _) = rest[end..].trim_start().split_once('"').unwrap();
        let (status, len) = numbers.trim_end().split_once(' ').unwrap();
        let rest = &rest[end + 1 + numbers.len()..];
        let (referer, end) = quoted(rest);
        let (user_agent, last) = quoted(rest[end..].strip_prefix(' ').unwrap());
        assert_eq!(end + 1 + last, rest.len(), "{line}");
        Self {
            client: client.to_owned(),
            status: status.parse().unwrap(),
            len: len.parse().unwrap(),
            request,
            referer,
            user_agent,
        }
    }
}

fn request(path: &str, host: &[u8], name: &str, value: &[u8]) -> Vec<u8> {
    let line = format!("GET {path} HTTP/1.1\r\nHost: ");
    [
        line.as_bytes(),
        host,
        b"\r\n",
        name.as_bytes(),
        b": ",
        value,
        b"\r\n\r\n",
    ]
    .concat()
}

#[test]
fn one_line_for_each_request_that_says_what_was_sent() {
    let dir = tempfile::tempdir().unwrap();
    let log = at(dir.path(), "access");
    let (mut server, addr) = serve_sample(&["--access-log", &log, "--log-format", "real-ip"]);
    let hash = hash_part(&sample("built")).to_owned();
    let paths = [
        INFO.to_owned(),
        "/x%0a\"\\c4nary".to_owned(),
        format!("/{hash}.narinfo"),
        format!("/nar/{hash}.nar"),
        format!("/{hash}.ls"),
        format!("/log/{hash}-c4nary"),
        format!("/closure/{hash}"),
    ];
    let mut connection = Connection::connect(addr);
    let mut refused_count = 0;
    let mut expected = Vec::new();
    let whole = [b'x'; HEAD_LEN_MAX - 100];
    for name in NAMES {
        for (value, path) in LEGAL
            .iter()
            .copied()
            .chain([&whole[..]])
            .zip(paths.iter().cycle())
        {
            connection.send(request(path, b"a", name, value));
            let reply = connection.response(false);
            assert!(
                matches!(reply.status, 200 | 404),
                "{name}: {}",
                value.escape_ascii()
            );
            let said = format!("{}{}", reply.head, reply.text()).to_lowercase();
            assert!(!said.contains(CANARY), "{name}: {}", value.escape_ascii());
            let of = |field| (*name == field).then_some(value);
            expected.push(Line {
                client: "127.0.0.1".to_owned(),
                request: format!("GET {path} HTTP/1.1").into_bytes(),
                status: reply.status,
                len: reply.body.len() as u64,
                referer: logged(of("Referer")),
                user_agent: logged(of("User-Agent")),
            });
        }
        // For a refused request only the refusal is logged. Lines before it stay intact.
        for value in ILLEGAL {
            refused_count += 1;
            let mut refused = Connection::connect(addr);
            refused.send(request(INFO, b"a", name, value));
            let (bytes, _) = refused.rest();
            let said = String::from_utf8(bytes).unwrap();
            assert!(
                said.starts_with("HTTP/1.1 400 "),
                "{name}: {}",
                value.escape_ascii()
            );
            assert!(!said.contains(CANARY), "{said}");
        }
    }
    // The logged client is the forwarded address if that is valid, else the peer.
    for (value, client) in [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:DB8::1, 192.0.2.1", "2001:db8::1"),
        ("192.0.2.1 - admin", "127.0.0.1"),
        ("192.0.2.1\t", "192.0.2.1"),
        ("fe80::1%eth0", "127.0.0.1"),
        ("[2001:db8::1]:80", "127.0.0.1"),
        ("192.0.2.1:80", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        (", 192.0.2.1", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("\" 200 0", "127.0.0.1"),
    ] {
        for name in ["X-Forwarded-For", "X-Real-IP"] {
            connection.send(request(INFO, b"a", name, value.as_bytes()));
            let len = connection.response(false).body.len() as u64;
            let client: IpAddr = client.parse().unwrap();
            expected.push(Line {
                client: client.to_string(),
                request: format!("GET {INFO} HTTP/1.1").into_bytes(),
                status: 200,
                len,
                referer: logged(None),
                user_agent: logged(None),
            });
        }
    }
    let read = || fs::read_to_string(&log).unwrap();
    let count = expected.len() + refused_count;
    eventually("all lines", || read().lines().count() >= count);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let text = read();
    let is_refused = |line: &&str| line.ends_with("] \"-\" 400 - \"-\" \"-\"");
    assert_eq!(text.lines().filter(is_refused).count(), refused_count);
    let lines = text.lines().filter(|line| !is_refused(line));
    let lines: Vec<Line> = lines.map(Line::parse).collect();
    assert_eq!(lines.len(), expected.len());
    for (line, expected) in lines.iter().zip(&expected) {
        assert_eq!(line, expected);
    }
}

/// No response repeats the `Host` field, and an invalid one is refused with 400.
#[test]
fn no_host_comes_back_and_only_hosts_are_hosts() {
    let (_server, addr) = serve_sample(&[]);
    let mut connection = Connection::connect(addr);
    for host in [
        "c4nary",
        "c4nary:65535",
        "[::1]:80",
        "[fe80::1%25c4nary]",
        "c4nary.%2e",
        "",
    ] {
        for path in [INFO, "/c4nary", "/../c4nary", "/nar/c4nary.nar"] {
            connection.send(request(path, host.as_bytes(), "X", b"c4nary"));
            let reply = connection.response(false);
            assert!(
                !format!("{}{}", reply.head, reply.text()).contains(CANARY),
                "{host}"
            );
            assert!(
                matches!(reply.status, 200 | 400 | 404),
                "{host} {}",
                reply.status
            );
            if reply.status == 400 {
                connection = Connection::connect(addr);
            }
        }
    }
    for host in LEGAL.iter().skip(1).chain(ILLEGAL) {
        let mut connection = Connection::connect(addr);
        connection.send(request(INFO, host, "X", b"c4nary"));
        let (bytes, _) = connection.rest();
        let said = String::from_utf8(bytes).unwrap();
        assert!(
            said.starts_with("HTTP/1.1 400 ") && !said.contains(CANARY),
            "{said}"
        );
    }
}

/// Even at the highest log level, the error log is plain text and quotes nothing of a request but
/// its request line.
#[test]
fn an_error_log_is_text() {
    let (mut server, addr) = serve_sample(&["--log-format", "debug"]);
    for value in LEGAL.iter().chain(ILLEGAL) {
        for request in [
            request(INFO, b"a", "User-Agent", value),
            request(INFO, value, "X", value),
            [b"GET /", *value, b" HTTP/1.1\r\nHost: a\r\n\r\n"].concat(),
            [*value, b" / HTTP/1.1\r\nHost: a\r\n\r\n"].concat(),
            [b"GET / HTTP/", *value, b"\r\nHost: a\r\n\r\n"].concat(),
            [b"GET / HTTP/1.1\r\nHost: a\r\n", *value, b": x\r\n\r\n"].concat(),
            [
                b"POST /narinfos HTTP/1.1\r\nHost: a\r\nContent-Length: ",
                *value,
                b"\r\n\r\n",
            ]
            .concat(),
            [
                b"POST /narinfos HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ",
                *value,
                b"\r\n\r\n",
            ]
            .concat(),
            [
                b"POST /narinfos HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
                *value,
                b"\r\n",
            ]
            .concat(),
        ] {
            let mut connection = Connection::connect(addr);
            connection.send(&request);
            connection
                .send(b"GET /nix-cache-info HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            let (bytes, _) = connection.rest();
            assert!(
                !String::from_utf8(bytes)
                    .unwrap()
                    .to_lowercase()
                    .contains(CANARY)
            );
        }
    }
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let lines = server.lines();
    assert!(
        lines.iter().any(|line| line.contains("refused request")),
        "{lines:#?}"
    );
    for line in lines {
        assert!(line.starts_with("nix-serve: "), "{line:?}");
        assert!(
            line.bytes().all(|byte| matches!(byte, b' '..=b'~')),
            "{line:?}"
        );
        assert!(
            !line.contains("panicked") && !line.contains(CANARY),
            "{line}"
        );
    }
}
