//! If a service checks data once per turn, every request of that turn was sent before the check.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use samovar_http::http::Status;
use samovar_http::{Head, Inline, Reply, Request, Response, Service, Turn};
use support::{Reader, connect, serve};

/// Reads a clock once per turn, and responds with its value.
struct Looks(Arc<AtomicU64>);

impl Service for Looks {
    type Local = Option<(Turn, u64)>;

    fn local(&self) -> Self::Local {
        None
    }

    fn inline(
        &self,
        local: &mut Self::Local,
        turn: Turn,
        head: Head<'_>,
        reply: Reply<'_>,
    ) -> Inline {
        // A worker handles some requests, between others answered inline.
        if head.path() == b"/away" {
            return reply.dispatch();
        }
        let seen = match *local {
            Some((looked, seen)) if looked == turn => seen,
            _ => self.0.load(Ordering::SeqCst),
        };
        *local = Some((turn, seen));
        reply.response(Response::text(Status::OK, seen.to_string()))
    }

    fn handle(&self, _: &mut Request) -> Response {
        Response::text(Status::OK, u64::MAX.to_string())
    }
}

#[test]
fn no_response_contains_data_older_than_its_request() {
    const CLIENTS: usize = 24;
    const ROUNDS: usize = 400;
    let clock = Arc::new(AtomicU64::new(0));
    let (_server, addr) = serve(Looks(Arc::clone(&clock)), |builder| builder.io_threads(1));
    let start = Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (clock, start) = (&clock, &start);
            scope.spawn(move || {
                let mut client = Reader::new(connect(addr));
                start.wait();
                for round in 0..ROUNDS {
                    let away = (round + number) % 7 == 0;
                    // The clock advances. Then the client sends one request or two at once, with or
                    // without a request for a worker between them.
                    let sent_at = clock.fetch_add(1, Ordering::SeqCst) + 1;
                    let inline = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
                    let other = "GET /away HTTP/1.1\r\nHost: a\r\n\r\n";
                    client.send(if away {
                        format!("{inline}{other}{inline}")
                    } else {
                        inline.to_owned()
                    });
                    for _ in 0..if away { 3 } else { 1 } {
                        let body = client.next(false).unwrap().body;
                        let seen: u64 = String::from_utf8(body).unwrap().parse().unwrap();
                        assert!(seen >= sent_at, "{seen} was seen, sent at {sent_at}");
                    }
                }
            });
        }
    });
}
