//! An upload of any size takes constant memory. The file has only one test, because it measures the
//! memory of the whole process.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use std::io::Read;

use samovar_http::http::Status;
use samovar_http::{Intake, Request, Response};
use support::{By, Reader, connect, resident_len, serve};
use testkit::limit;

/// Responds with the length and the sum of the body's bytes.
fn count(request: &mut Request) -> Response {
    let (mut len, mut sum) = (0_u64, 0_u64);
    let mut piece = vec![0; 10_000];
    let mut reader = request.reader();
    loop {
        let taken = reader.read(&mut piece).unwrap();
        if taken == 0 {
            return Response::text(Status::OK, format!("{len} {sum}"));
        }
        len += taken as u64;
        sum += piece[..taken]
            .iter()
            .map(|byte| u64::from(*byte))
            .sum::<u64>();
    }
}

fn post(path: &str, fields: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n")
}

#[test]
fn an_upload_of_any_size_takes_constant_memory() {
    const PIECE_COUNT: u64 = 3000;
    let service = By {
        handle: count,
        intake: Intake::Streamed(u64::MAX),
    };
    let (_server, addr) = serve(service, |builder| builder.io_threads(1).workers(2));
    let piece = vec![7_u8; 100_000];
    let total_len = PIECE_COUNT * piece.len() as u64;
    for is_chunked in [false, true] {
        let mut client = Reader::new(connect(addr));
        if is_chunked {
            client.send(post("/", "Transfer-Encoding: chunked"));
        } else {
            client.send(post("/", &format!("Content-Length: {total_len}")));
        }
        let before = resident_len();
        for _ in 0..PIECE_COUNT {
            if is_chunked {
                client.send(format!("{:x}\r\n", piece.len()));
            }
            client.send(&piece);
            if is_chunked {
                client.send("\r\n");
            }
        }
        if is_chunked {
            client.send("0\r\n\r\n");
        }
        let answer = client.next(false).unwrap();
        let expected = format!("{total_len} {}", total_len * 7);
        assert_eq!(String::from_utf8(answer.body).unwrap(), expected);
        let grown = resident_len().saturating_sub(before);
        limit::memory_at_most("memory for request bodies", grown as u64, 4 << 20);
    }
}
