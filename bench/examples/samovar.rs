//! samovar-http as a contender of the engine benchmark, with the endpoints of `bench/rivals`.
//!
//! Usage: `samovar PORT IO_THREADS WORKERS FILE [--inline]`. It exits at the end of its
//! standard input.
//!
//! With `--inline`, the I/O threads run the handlers of responses that are in memory; without it,
//! workers run all handlers, as they must if handlers may block.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::ws::{Closed, Frame, Handler, Message, Socket, Upgrade};
use samovar_http::{
    Body, Head, Inline, Intake, Listener, Prepared, Reply, Request, Response, Server, Service, Turn,
};

const TEXT: &str = "Hello, World!";
static TEXT_500: [u8; 500] = [b'x'; 500];

/// Maximum length of an upload, in bytes.
const UPLOAD_LEN_MAX: u64 = 1 << 30;

/// Bytes of an upload to read at once.
const UPLOAD_PIECE_LEN: usize = 64 << 10;

struct Bench {
    is_inline: bool,
    file: PathBuf,
    text: Prepared,
    text_500: Prepared,
    hearers: Arc<Mutex<HashMap<u64, Socket>>>,
}

impl Service for Bench {
    type Local = ();

    fn local(&self) {}

    fn inline(&self, _: &mut (), _: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        if !self.is_inline {
            return reply.dispatch();
        }
        match head.path() {
            b"/text" => reply.prepared(&self.text),
            b"/text500" => reply.prepared(&self.text_500),
            b"/json" => {
                let fields = [("Content-Type", "application/json")];
                reply.prepared(&Prepared::new(Status::OK, &fields, &json()))
            }
            _ => reply.dispatch(),
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        match request.head().path() {
            b"/text" => Response::text(Status::OK, TEXT),
            b"/text500" => Response::new(Status::OK, Body::Bytes(TEXT_500[..].into()))
                .header("Content-Type", "text/plain"),
            b"/json" => Response::new(Status::OK, Body::Bytes(json().into()))
                .header("Content-Type", "application/json"),
            b"/file" => file(&self.file),
            b"/upload" => upload(request),
            b"/ws" => self.upgrade(
                Upgrade::new(|socket: &Socket, message: Message<'_>| {
                    socket.send(message);
                }),
                request,
            ),
            b"/broadcast" => {
                let hearer = Hearer(Arc::clone(&self.hearers));
                self.upgrade(Upgrade::new(hearer), request)
            }
            _ => Response::text(Status::NOT_FOUND, ""),
        }
    }

    fn intake(&self, _: Head<'_>) -> Intake {
        Intake::Streamed(UPLOAD_LEN_MAX)
    }
}

impl Bench {
    fn upgrade(&self, upgrade: Upgrade, request: &Request) -> Response {
        let upgrade = if self.is_inline {
            upgrade.inline()
        } else {
            upgrade
        };
        upgrade.accept(request)
    }
}

/// WebSocket of `/broadcast`, with the shared map of all open ones.
struct Hearer(Arc<Mutex<HashMap<u64, Socket>>>);

impl Hearer {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Socket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handler for Hearer {
    fn open(&mut self, socket: &Socket) {
        self.all().insert(socket.id(), socket.clone());
    }

    fn message(&mut self, _: &Socket, message: Message<'_>) {
        let frame = Frame::new(message);
        for socket in self.all().values() {
            socket.send_frame(&frame);
        }
    }

    fn close(&mut self, socket: &Socket, _: &Closed) {
        self.all().remove(&socket.id());
    }
}

fn json() -> Vec<u8> {
    let message = serde_json::json!({ "message": TEXT });
    message.to_string().into_bytes()
}

fn file(path: &PathBuf) -> Response {
    match File::open(path).and_then(Body::file) {
        Ok(body) => {
            Response::new(Status::OK, body).header("Content-Type", "application/octet-stream")
        }
        Err(_) => Response::text(Status::NOT_FOUND, ""),
    }
}

/// Reads the request's body and discards it.
fn upload(request: &mut Request) -> Response {
    let mut piece = vec![0; UPLOAD_PIECE_LEN];
    let mut reader = request.reader();
    let mut len = 0;
    loop {
        match reader.read(&mut piece) {
            Ok(0) => return Response::text(Status::OK, format!("{len}\n")),
            Ok(read_len) => len += read_len,
            Err(_) => return Response::text(Status::BAD_REQUEST, ""),
        }
    }
}

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [port, io_threads, workers, file, rest @ ..] = &words[..] else {
        return Err(io::Error::other("PORT IO_THREADS WORKERS FILE [--inline]"));
    };
    let number = |word: &String| word.parse::<usize>().map_err(io::Error::other);
    let port = port.parse().map_err(io::Error::other)?;
    let fields = [("Content-Type", "text/plain")];
    let bench = Bench {
        is_inline: rest.iter().any(|word| word == "--inline"),
        file: file.into(),
        text: Prepared::new(Status::OK, &fields, TEXT.as_bytes()),
        text_500: Prepared::new(Status::OK, &fields, &TEXT_500),
        hearers: Arc::default(),
    };
    let server = Server::builder(bench)
        .listen(Listener::tcp(
            SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            1024,
        )?)
        .io_threads(number(io_threads)?)
        .workers(number(workers)?)
        .start()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    server.drain(Duration::from_secs(5));
    Ok(())
}
