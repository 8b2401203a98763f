//! Metadata may be uploaded with a `Content-Encoding` and is stored without it. Build logs may have
//! up to 64 MiB.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;

use std::io::Write as _;
use std::process::{Command, Stdio};

use support_uploads::{MadePath, Running, Site, send};
use testkit::http1::Response;

/// Compresses `content` with this program.
fn compress(program: &str, content: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program)
        .arg("-c")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(content).unwrap());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{program}");
        output.stdout
    })
}

/// Uploads metadata with this `Content-Encoding`.
fn put_encoded(
    server: &Running,
    token: &str,
    target: &str,
    encoding: &str,
    body: &[u8],
) -> Response {
    let fields = format!("Authorization: Bearer {token}\r\nContent-Encoding: {encoding}\r\n");
    send(server.address, "PUT", target, &fields, body)
}

#[track_caller]
fn assert_status(response: &Response, status: u16, part: &str) {
    let text = response.text();
    assert_eq!(response.status, status, "{text}");
    assert!(text.contains(part), "{part:?} is not in {text:?}");
}

#[test]
fn encoded_metadata_is_decoded_once() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    for (encoding, program) in [
        ("gzip", "gzip"),
        ("zstd", "zstd"),
        ("xz", "xz"),
        ("none", "cat"),
        ("identity", "cat"),
    ] {
        let encode = |content: &[u8]| match program {
            "cat" => content.to_vec(),
            _ => compress(program, content),
        };
        let path = MadePath::new(encoding);
        let put = |target: &str, content: &[u8]| {
            put_encoded(&server, &token, target, encoding, &encode(content))
        };
        let file = server.put(&token, &path.file_target(), &path.file);
        assert_eq!(file.status, 200);
        assert_status(&put(&path.listing_target(), b"{}"), 200, "");
        assert_status(&put(&path.target(), path.narinfo().as_bytes()), 200, "");
        server.assert_serves(&path);
        let target = format!("/upload/log/{}", &path.store_path[11..]);
        assert_status(&put(&target, b"built\n"), 200, "");
        let log = server.get(&target["/upload".len()..]);
        assert_eq!(log.text(), "built\n");
        assert_eq!(log.header("Content-Encoding"), None);
        let cut = encode(path.narinfo().as_bytes());
        let cut = &cut[..cut.len() - 9];
        if program != "cat" {
            let refused = put_encoded(&server, &token, &path.target(), encoding, cut);
            assert_status(&refused, 422, encoding);
        }
    }
}

#[test]
fn the_limits_count_decoded_bytes() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let path = MadePath::new("path");
    let file = server.put(&token, &path.file_target(), &path.file);
    assert_eq!(file.status, 200);
    let padded = |len: usize| {
        let mut text = path.narinfo() + "Unknown: ";
        text.push_str(&"x".repeat(len - text.len() - 1));
        compress("zstd", (text + "\n").as_bytes())
    };
    let put = |target: &str, body: &[u8]| put_encoded(&server, &token, target, "zstd", body);
    assert_status(&put(&path.target(), &padded((1 << 20) + 1)), 413, "1048576");
    server.assert_lacks(&path);
    assert_status(&put(&path.target(), &padded(1 << 20)), 200, "");
    server.assert_serves(&path);

    // Build logs: one byte more than the limit, and a bomb that expands to 4 GiB.
    let log = format!("/log/{}", &path.store_path[11..]);
    let text = vec![b'x'; (64 << 20) + 1];
    let too_long = compress("zstd", &text);
    assert_status(&put(&log, &too_long), 413, "67108864");
    assert_eq!(server.get(&log).status, 404);
    let bomb = too_long.repeat(64);
    assert_status(&put(&log, &bomb), 413, "67108864");
    assert_status(&put(&log, &compress("zstd", &text[1..])), 200, "");
    assert!(server.get(&log).body == text[1..]);
    assert_status(&server.put(&token, &log, &text), 413, "67108864");
    assert_status(&server.put(&token, &log, b"short"), 200, "");
    assert_eq!(server.get(&log).text(), "short");
}
