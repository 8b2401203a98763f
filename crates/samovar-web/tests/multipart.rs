//! Forms with files are read part by part, from memory and from the wire, within limits.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::io::{self, Read, Write};
use std::net::SocketAddr;

use samovar_http::{Error, Request, Route, Router};
use samovar_web::RequestExt;
use samovar_web::multipart::{Limits, Multipart, MultipartError};
use support::{Connection, serve};

/// Describes each part: name, file name, length and the sum of its bytes.
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
    let limits = Limits {
        part_count_max: 2,
        ..Limits::default()
    };
    let form = request.multipart_within(limits)?.collect(100)?;
    Ok(form.text("title").unwrap_or("untitled").to_owned())
}

fn router() -> Router {
    Router::new()
        .post("/buffered", describe)
        .route(Route::post("/streamed", describe).streaming(100 << 20))
        .route(Route::post("/short", describe).streaming(20))
        .post("/collect", collect)
}

fn post(addr: SocketAddr, path: &str, media_type: &str, body: &str) -> (u16, String) {
    let mut client = Connection::connect(addr);
    let len = body.len();
    client.send(format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {media_type}\r\n\
         Content-Length: {len}\r\n\r\n{body}"
    ));
    let answer = client.next(false).unwrap();
    (answer.status, answer.text())
}

const TYPE: &str = "multipart/form-data; boundary=\"x y\"";

fn field(name: &str, content: &str) -> String {
    format!("--x y\r\nContent-Disposition: form-data; name={name}\r\n\r\n{content}\r\n")
}

#[test]
fn parts_are_read_from_memory_and_from_the_wire() {
    let (_server, addr) = serve(router());
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
    assert_eq!(post(addr, "/short", TYPE, &body).0, 413);
}

#[test]
fn small_forms_are_collected_within_limits() {
    let (_server, addr) = serve(router());
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
    let (_server, addr) = serve(router());
    let head = "--x y\r\nContent-Disposition: form-data; name=f; filename=f\r\n\r\n";
    let len = head.len() + LEN + "\r\n--x y--".len();
    let mut client = Connection::connect(addr);
    client.send(format!(
        "POST /streamed HTTP/1.1\r\nHost: a\r\nContent-Type: {TYPE}\r\n\
         Content-Length: {len}\r\n\r\n"
    ));
    client.send(head);
    let content: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    for piece in content.chunks(99_999) {
        client.stream.write_all(piece).unwrap();
    }
    client.send("\r\n--x y--");
    let sum: u64 = content.iter().map(|byte| u64::from(*byte)).sum();
    let answer = client.next(false).unwrap();
    assert_eq!(answer.text(), format!("f Some(\"f\") {LEN} {sum}\n"));
}

fn form(body: &[u8]) -> Multipart<&[u8]> {
    Multipart::new(TYPE.as_bytes(), body, Limits::default()).unwrap()
}

fn fault(error: &io::Error) -> Option<MultipartError> {
    error.get_ref()?.downcast_ref().copied()
}

#[test]
fn parts_are_skipped_and_read_in_pieces() {
    let long = "x".repeat(50_000);
    let body = field("a", &long) + &field("b", "12345") + &field("c", "") + "--x y--";
    let mut form = form(body.as_bytes());
    let mut part = form.next_part().unwrap().unwrap();
    part.read_exact(&mut [0; 20_000]).unwrap();
    let mut part = form.next_part().unwrap().unwrap();
    let mut piece = [0; 3];
    assert_eq!(part.read(&mut piece).unwrap(), 3);
    assert_eq!(&piece, b"123");
    assert_eq!(part.text(2).unwrap(), "45");
    assert_eq!(part.read(&mut piece).unwrap(), 0);
    let part = form.next_part().unwrap().unwrap();
    assert_eq!(part.name(), "c");
    assert!(form.next_part().unwrap().is_none());
    assert!(form.next_part().unwrap().is_none());
}

#[test]
fn an_error_of_the_form_is_final() {
    let body = field("a", "12345") + "--x y--";
    let mut form = form(body.as_bytes());
    let mut part = form.next_part().unwrap().unwrap();
    let error = part.content(4).unwrap_err();
    assert_eq!(fault(&error), Some(MultipartError::PartTooLong));
    assert_eq!(
        part.read(&mut [0; 3]).unwrap_err().kind(),
        io::ErrorKind::InvalidData
    );
    let error = form.next_part().unwrap_err();
    assert_eq!(fault(&error), Some(MultipartError::PartTooLong));
}

#[test]
fn an_error_of_the_body_stays_as_it_is() {
    struct Fails;
    impl Read for Fails {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::ConnectionReset.into())
        }
    }
    let start = field("a", "");
    let body = start.strip_suffix("\r\n").unwrap().as_bytes().chain(Fails);
    let mut form = Multipart::new(TYPE.as_bytes(), body, Limits::default()).unwrap();
    let mut part = form.next_part().unwrap().unwrap();
    let error = part.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}
