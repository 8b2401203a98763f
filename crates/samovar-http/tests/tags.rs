#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
//! What a service finds out about a request reaches its observer with the response.

mod support;

use std::sync::{Arc, Mutex};

use samovar_http::http::Status;
use samovar_http::{
    Exchange, Head, Inline, Observer, Prepared, Reply, Request, Response, Service, Tag, Turn,
};
use support::{Reader, connect, eventually, h2, serve};

type Seen = Arc<Mutex<Vec<(String, Tag)>>>;

/// Tags requests with the first bytes of their paths. Answers `/inline` on the I/O thread, and
/// sends `/back` back once.
#[derive(Default)]
struct Tagging(Seen);

fn tag_of(path: &[u8]) -> Tag {
    let mut tag = Tag::default();
    tag.0[..path.len()].copy_from_slice(path);
    tag
}

impl Service for Tagging {
    type Local = ();

    fn local(&self) {}

    fn inline(&self, (): &mut (), _: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        let reply = match head.path() {
            b"/none" => reply,
            b"/back" if !head.was_sent_back() => reply.with_tag(tag_of(b"first")),
            path => reply.with_tag(tag_of(path)),
        };
        match head.path() {
            b"/inline" => reply.prepared(&Prepared::new(Status::OK, &[], b"inline")),
            b"/slow" => reply.dispatch_slow(),
            b"/costly" => reply.dispatch_costly(),
            _ => reply.dispatch(),
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        match request.head().path() {
            b"/back" if !request.head().was_sent_back() => Response::send_back(),
            _ => Response::text(Status::OK, "handled"),
        }
    }

    fn observer(&self) -> &dyn Observer {
        self
    }
}

impl Observer for Tagging {
    fn observes(&self) -> bool {
        true
    }

    fn exchanged(&self, exchange: &Exchange<'_>) {
        let path = String::from_utf8_lossy(exchange.head.path()).into_owned();
        self.0.lock().unwrap().push((path, exchange.tag));
    }
}

const PATHS: [&str; 6] = ["/inline", "/prompt", "/slow", "/costly", "/back", "/none"];

fn check(seen: &Seen) {
    eventually("all requests are reported", || {
        seen.lock().unwrap().len() == PATHS.len()
    });
    let expected = PATHS.map(|path| match path {
        "/none" => (path.to_owned(), Tag::default()),
        path => (path.to_owned(), tag_of(path.as_bytes())),
    });
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[test]
fn over_http1() {
    let seen = Seen::default();
    let (_server, addr) = serve(Tagging(Arc::clone(&seen)), |builder| builder.workers(2));
    let mut client = Reader::new(connect(addr));
    for path in PATHS {
        assert_eq!(client.get(path).status, 200, "{path}");
    }
    check(&seen);
}

#[test]
fn over_http2() {
    let seen = Seen::default();
    let (_server, addr) = serve(Tagging(Arc::clone(&seen)), |builder| builder.workers(2));
    let mut client = h2::Client::connect(addr);
    for path in PATHS {
        assert_eq!(client.ask(h2::get(path)).status(), 200, "{path}");
    }
    check(&seen);
}
