//! A compressed body decodes to the bytes of its source, even if the source yields pieces of any
//! size with pauses between them.

#![cfg(feature = "compression")]
#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it only inside functions marked as tests"
)]

mod support;

use std::collections::VecDeque;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::{Mutex, OnceLock};

use proptest::prelude::*;
use samovar_http::http::Status;
use samovar_http::{Batch, Body, Progress, Request, Response, Server, Service, Source};

use support::{Reader, connect, serve};

/// Responds with a body that follows the script.
struct Scripted(Mutex<Vec<Step>>);

impl Service for Scripted {
    type Local = ();

    fn local(&self) {}

    fn handle(&self, _request: &mut Request) -> Response {
        let steps = std::mem::take(&mut *self.0.lock().unwrap());
        let source = Script {
            steps: steps.into(),
        };
        Response::new(Status::OK, Body::Source(Box::new(source)))
            .header("Content-Type", "text/plain")
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// Yields bytes and announces that more follow at once.
    Give(Vec<u8>),
    /// Yields any number of bytes, then pauses.
    Wait(Vec<u8>),
}

struct Script {
    steps: VecDeque<Step>,
}

impl Source for Script {
    fn len(&self) -> Option<u64> {
        None
    }

    fn pull(&mut self, batch: &mut Batch) -> std::io::Result<Progress> {
        let (bytes, progress) = match self.steps.pop_front() {
            None => return Ok(Progress::End),
            Some(Step::Give(bytes)) => (bytes, Progress::More),
            Some(Step::Wait(bytes)) => {
                batch.waker().wake();
                (bytes, Progress::Wait)
            }
        };
        let taken = batch.put(&bytes);
        if taken < bytes.len() {
            self.steps.push_front(match progress {
                Progress::Wait => Step::Wait(bytes[taken..].to_vec()),
                Progress::More | Progress::End => Step::Give(bytes[taken..].to_vec()),
            });
            return Ok(Progress::More);
        }
        Ok(progress)
    }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 1..2000),
        (any::<u8>(), 1..200_000_usize).prop_map(|(byte, len)| vec![byte; len]),
        (1..4000_usize).prop_map(|count| b"<td>samovar</td>".repeat(count)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        bytes().prop_map(Step::Give),
        bytes().prop_map(Step::Wait),
        Just(Step::Wait(Vec::new())),
    ]
}

fn server() -> &'static (Server<Scripted>, SocketAddr) {
    static SERVER: OnceLock<(Server<Scripted>, SocketAddr)> = OnceLock::new();
    SERVER.get_or_init(|| serve(Scripted(Mutex::default()), |builder| builder.compression()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn compressed_bodies_decode_to_the_bytes_of_their_source(steps in proptest::collection::vec(step(), 0..12)) {
        let (server, addr) = server();
        let expected: Vec<u8> = steps.iter().flat_map(|step| match step {
            Step::Give(bytes) | Step::Wait(bytes) => bytes.clone(),
        }).collect();
        for coding in ["gzip", "br", "zstd"] {
            *server.service().0.lock().unwrap() = steps.clone();
            let mut reader = Reader::new(connect(*addr));
            reader.send(format!("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {coding}\r\n\r\n"));
            let answer = reader.next(false).unwrap();
            prop_assert_eq!(answer.header("Content-Encoding"), Some(coding));
            let mut decoded = Vec::new();
            let body = answer.body.as_slice();
            match coding {
                "gzip" => flate2::read::GzDecoder::new(body).read_to_end(&mut decoded),
                "br" => brotli::Decompressor::new(body, 4096).read_to_end(&mut decoded),
                _ => zstd::Decoder::new(body).unwrap().read_to_end(&mut decoded),
            }.unwrap();
            prop_assert!(decoded == expected);
        }
    }
}
