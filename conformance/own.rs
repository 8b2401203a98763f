//! The server of ours that the suites meet, in the process of the tests or as a program.
//!
//! | target | answer |
//! | --- | --- |
//! | `/` | what was sent, to any method, or that nothing was, from a worker |
//! | `/inline` | from the I/O thread |
//! | `/streamed` | how many bytes came, counted while they came |
//! | `/chunked` | a body whose length is not known before, with a trailer |
//! | `/empty`, `/reset`, `/fresh` | 204, 205, 304 |
//! | `/early` | 103, then 200 |
//! | `/routed` | 200, to GET alone, from a router |
//! | `/letters` | 2000 letters, compressed for whom it suits |
//! | `/file` | [`FILE`], or the range of it that is asked for |
//! | `/ws` | a WebSocket that sends messages back; knows the subprotocol `echo` |
//! | anything else | 404 |

use std::io;

use samovar_http::compress::Compression;
use samovar_http::http::range::{RangeOutcome, resolve};
use samovar_http::http::{Method, Status};
use samovar_http::ws::{Message, Socket, Upgrade};
use samovar_http::{
    Batch, Body, Head, Inline, Intake, Listener, Prepared, Progress, Reply, Request, Response,
    Router, Server, Service, Source, Turn,
};

/// What `/file` holds.
pub(crate) const FILE: &[u8; 26] = b"abcdefghijklmnopqrstuvwxyz";

/// The largest body taken in.
const BODY_LEN_MAX: u64 = 1 << 20;

/// Starts the server.
pub(crate) fn start(listeners: Vec<Listener>) -> io::Result<Server<Echo>> {
    let router = Router::new()
        .get("/routed", |_: &mut Request| {
            Response::text(Status::OK, "routed\n")
        })
        .get("/letters", |_: &mut Request| {
            Response::text(Status::OK, "letters ".repeat(250))
        });
    let echo = Echo {
        inline: Prepared::new(Status::OK, &[], b"inline\n"),
        router,
    };
    let builder = Server::builder(echo).compression(Compression::default());
    let builder = listeners
        .into_iter()
        .fold(builder, samovar_http::Builder::listen);
    builder.start()
}

/// The application.
pub(crate) struct Echo {
    inline: Prepared,
    router: Router,
}

impl Service for Echo {
    type Local = ();

    fn local(&self) {}

    fn inline(&self, _: &mut (), _: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        if head.path() == b"/inline" {
            reply.prepared(&self.inline)
        } else {
            reply.dispatch()
        }
    }

    fn intake(&self, head: Head<'_>) -> Intake {
        if head.path() == b"/streamed" {
            Intake::Streamed(BODY_LEN_MAX)
        } else {
            Intake::Buffered(BODY_LEN_MAX)
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        match request.head().path() {
            // What OPTIONS asks about as a whole has no path. h2spec wants some content.
            b"/" | b"" | b"*" if request.body().is_empty() => Response::text(Status::OK, "empty\n"),
            b"/" | b"" | b"*" => {
                Response::new(Status::OK, Body::Bytes(request.body().to_vec().into()))
            }
            b"/streamed" => match io::copy(&mut request.reader(), &mut io::sink()) {
                Ok(len) => Response::text(Status::OK, format!("{len}\n")),
                Err(_) => Response::text(Status::BAD_REQUEST, "cut off\n"),
            },
            b"/chunked" => Response::new(Status::OK, Body::Source(Box::new(Counted(3))))
                .trailers(&["X-Pieces"]),
            b"/empty" => Response::new(Status::NO_CONTENT, Body::Empty),
            b"/reset" => Response::text(Status::RESET_CONTENT, "never sent\n"),
            b"/fresh" => {
                Response::new(Status::NOT_MODIFIED, Body::Empty).header("ETag", "\"letters\"")
            }
            b"/early" => match request.inform(103, &[("Link", "</style.css>; rel=preload")]) {
                Ok(()) => Response::text(Status::OK, "late\n"),
                Err(_) => Response::text(Status::INTERNAL_SERVER_ERROR, "not informed\n"),
            },
            b"/file" => file(request.head()),
            b"/ws" => {
                let echo = |socket: &Socket, message: Message<'_>| socket.send(message);
                Upgrade::new(echo).protocol("echo").accept(request)
            }
            b"/routed" | b"/letters" => self.router.handle(request),
            _ => Response::text(Status::NOT_FOUND, "not found\n"),
        }
    }
}

fn file(head: Head<'_>) -> Response {
    let is_read = matches!(head.method(), Method::Get | Method::Head);
    let range = head
        .header("range")
        .filter(|_| head.method() == Method::Get);
    let whole = || Body::Bytes(FILE[..].into());
    let response = match range.map(|value| resolve(value, FILE.len() as u64)) {
        _ if !is_read => {
            let response = Response::text(Status::METHOD_NOT_ALLOWED, "not allowed\n");
            return response.header("Allow", "GET, HEAD");
        }
        None | Some(RangeOutcome::Whole) => Response::new(Status::OK, whole()),
        Some(RangeOutcome::Unsatisfiable) => {
            let response = Response::new(Status::RANGE_NOT_SATISFIABLE, Body::Empty);
            return response.header("Content-Range", format!("bytes */{}", FILE.len()));
        }
        Some(RangeOutcome::Part { start, end }) => {
            let at = |at: u64| usize::try_from(at).unwrap_or(FILE.len());
            let part = FILE.get(at(start)..at(end)).unwrap_or_default();
            let range = format!("bytes {start}-{}/{}", end - 1, FILE.len());
            Response::new(Status::PARTIAL_CONTENT, Body::Bytes(part.into()))
                .header("Content-Range", range)
        }
    };
    response
        .header("ETag", "\"letters\"")
        .header("Accept-Ranges", "bytes")
}

/// So many pieces, and a trailer that says how many.
struct Counted(u32);

impl Source for Counted {
    fn len(&self) -> Option<u64> {
        None
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        batch.put(b"piece\n");
        self.0 -= 1;
        Ok(if self.0 == 0 {
            Progress::End
        } else {
            Progress::More
        })
    }

    fn trailers(&mut self) -> Vec<(String, Vec<u8>)> {
        vec![("X-Pieces".into(), b"3".to_vec())]
    }
}
