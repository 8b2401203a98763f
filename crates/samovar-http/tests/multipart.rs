//! Forms with files, over sockets.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::io::{Read, Write};
use std::net::SocketAddr;

use samovar_http::multipart::MultipartLimits;
use samovar_http::{Error, Request, Route, Router, Server};
use support::{Reader, connect, serve};

fn start(router: Router) -> (Server<Router>, SocketAddr) {
    serve(router, |builder| builder.io_threads(1).workers(2))
}

/// Names every part, its file, its length and the sum of its bytes.
fn describe(request: &mut Request) -> Result<String, Error> {
    let mut form = request.multipart()?;
    let mut lines = String::new();
    while let Some(mut part) = form.next_part()? {
        let (mut len, mut sum, mut piece) = (0, 0_u64, [0; 8000]);
        loop {
            let taken = part.read(&mut piece)?;
            if taken == 0 {
                break;
            }
            len += taken;
            sum += piece[..taken]
                .iter()
                .map(|byte| u64::from(*byte))
                .sum::<u64>();
        }
        lines += &format!("{} {:?} {len} {sum}\n", part.name(), part.file_name());
    }
    Ok(lines)
}

fn collect(request: &mut Request) -> Result<String, Error> {
    let limits = MultipartLimits {
        part_count_max: 2,
        ..MultipartLimits::default()
    };
    let form = request.multipart_with(limits)?.collect(100)?;
    Ok(form.text("title").unwrap_or("untitled").to_owned())
}

fn router() -> Router {
    Router::new()
        .post("/buffered", describe)
        .route(Route::post("/streamed", describe).streaming(100 << 20))
        .post("/collect", collect)
}

fn post(addr: SocketAddr, path: &str, media_type: &str, body: &str) -> (u16, String) {
    let mut reader = Reader::new(connect(addr));
    let len = body.len();
    reader.send(format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {media_type}\r\n\
         Content-Length: {len}\r\n\r\n{body}"
    ));
    let answer = reader.next(false).unwrap();
    (answer.status, String::from_utf8(answer.body).unwrap())
}

const TYPE: &str = "multipart/form-data; boundary=\"x y\"";

fn field(name: &str, content: &str) -> String {
    format!("--x y\r\nContent-Disposition: form-data; name={name}\r\n\r\n{content}\r\n")
}

#[test]
fn parts_are_read_from_memory_and_from_the_wire() {
    let (_server, addr) = start(router());
    let file = "--x y\r\nContent-Type: text/plain\r\n\
                content-disposition: form-data; name=\"f\"; filename=\"a b.txt\"\r\n\r\n\
                \r\n--x\r\n";
    let body = format!("{}{file}{}--x y--\r\n", field("a", "12"), field("a", ""));
    let expected = "a None 2 99\nf Some(\"a b.txt\") 5 233\na None 0 0\n";
    for path in ["/buffered", "/streamed"] {
        assert_eq!(
            post(addr, path, TYPE, &body),
            (200, expected.to_owned()),
            "{path}"
        );
        assert_eq!(post(addr, path, TYPE, "--x y--"), (200, String::new()));
        assert_eq!(post(addr, path, "text/plain", &body).0, 415);
        assert_eq!(post(addr, path, "multipart/form-data", &body).0, 400);
        let (status, text) = post(addr, path, TYPE, &field("a", "1"));
        assert_eq!(status, 400);
        assert_eq!(text, "multipart body: it ends before its last boundary\n");
    }
}

#[test]
fn small_forms_are_collected_within_limits() {
    let (_server, addr) = start(router());
    let collect = |body: &str| post(addr, "/collect", TYPE, &format!("{body}--x y--"));
    assert_eq!(collect(&field("title", "Tea")), (200, "Tea".into()));
    assert_eq!(collect(""), (200, "untitled".into()));
    let long = |len: usize| field("title", &"x".repeat(len));
    assert_eq!(collect(&long(100)).0, 200);
    assert_eq!(collect(&long(101)).0, 413);
    assert_eq!(collect(&(field("a", "") + &long(1))).0, 200);
    assert_eq!(collect(&(field("a", "").repeat(2) + &long(1))).0, 413);
}

#[test]
fn a_large_file_passes_in_pieces() {
    const LEN: usize = 30_000_000;
    let (_server, addr) = start(router());
    let head = "--x y\r\nContent-Disposition: form-data; name=f; filename=f\r\n\r\n";
    let len = head.len() + LEN + "\r\n--x y--".len();
    let mut reader = Reader::new(connect(addr));
    reader.send(format!(
        "POST /streamed HTTP/1.1\r\nHost: a\r\nContent-Type: {TYPE}\r\n\
         Content-Length: {len}\r\n\r\n"
    ));
    reader.send(head);
    let content: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    for piece in content.chunks(99_999) {
        reader.stream.write_all(piece).unwrap();
    }
    reader.send("\r\n--x y--");
    let sum: u64 = content.iter().map(|byte| u64::from(*byte)).sum();
    let answer = reader.next(false).unwrap();
    let expected = format!("f Some(\"f\") {LEN} {sum}\n");
    assert_eq!(String::from_utf8(answer.body).unwrap(), expected);
}
