//! Our server for the conformance suites; it runs inside the test process or as a program.
//!
//! | target | response |
//! | --- | --- |
//! | `/` | echo of the body, for any method, from a worker; `empty` without a body |
//! | `/inline` | a response from the I/O thread |
//! | `/streamed` | the length of the body, which is counted while it is received |
//! | `/chunked` | a body of unknown length, sent in chunks |
//! | `/empty`, `/reset`, `/fresh` | 204, 205, 304 |
//! | `/early` | 103, then 200 |
//! | `/routed` | 200 from a router, for GET only |
//! | `/letters` | 2000 letters, compressed if the client accepts it |
//! | `/file` | [`FILE`], or the requested range of it |
//! | `/ws` | a WebSocket that echoes messages and supports the subprotocol `echo` |
//! | anything else | 404 |

use std::io;

use samovar_http::http::range::{RangeOutcome, resolve};
use samovar_http::http::{Method, Status};
use samovar_http::ws::{Message, Socket, Upgrade};
use samovar_http::{
    Batch, Body, Head, Inline, Intake, Listener, Prepared, Progress, Reply, Request, Response,
    Router, Server, Service, Source, Turn,
};

/// Content of `/file`.
pub(crate) const FILE: &[u8; 26] = b"abcdefghijklmnopqrstuvwxyz";

/// Maximum length of a request body, in bytes.
const BODY_LEN_MAX: u64 = 1 << 20;

/// Starts the server on these listeners.
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
    let builder = Server::builder(echo).compression();
    let builder = listeners
        .into_iter()
        .fold(builder, samovar_http::Builder::listen);
    builder.start()
}

/// Application of the server.
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
            // `OPTIONS *` is about the server as a whole and has no path. h2spec expects content in
            // the response.
            b"/" | b"" | b"*" if request.body().is_empty() => Response::text(Status::OK, "empty\n"),
            b"/" | b"" | b"*" => {
                Response::new(Status::OK, Body::Bytes(request.body().to_vec().into()))
            }
            b"/streamed" => match io::copy(&mut request.reader(), &mut io::sink()) {
                Ok(len) => Response::text(Status::OK, format!("{len}\n")),
                Err(_) => Response::text(Status::BAD_REQUEST, "cut off\n"),
            },
            b"/chunked" => Response::new(Status::OK, Body::Source(Box::new(Counted(3)))),
            b"/empty" => Response::new(Status::NO_CONTENT, Body::Empty),
            b"/reset" => Response::text(Status::RESET_CONTENT, "never sent\n"),
            b"/fresh" => {
                Response::new(Status::NOT_MODIFIED, Body::Empty).header("ETag", "\"letters\"")
            }
            b"/early" => {
                let link = ("Link", "</style.css>; rel=preload");
                match request.inform(Status::EARLY_HINTS, &[link]) {
                    Ok(()) => Response::text(Status::OK, "late\n"),
                    Err(_) => Response::text(Status::INTERNAL_SERVER_ERROR, "not informed\n"),
                }
            }
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

/// A body of this number of pieces.
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
}
