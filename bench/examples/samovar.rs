//! samovar-http as a contender of the engine benchmark, with the endpoints of `bench/rivals`.
//!
//! Usage: `samovar PORT IO_THREADS DIR [--inline] [--shared]`. It exits at the end of its standard
//! input.
//!
//! With `--inline`, the I/O threads run the handlers of responses that are in memory; without it,
//! workers run all handlers, as they must if handlers may block. With `--shared`, it listens on all
//! addresses, and shares the port with other processes.

mod endpoints;

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::ws::Upgrade;
use samovar_http::{
    Body, Head, Inline, Intake, Listener, Prepared, Reply, Request, Response, Server, Service, Turn,
};

use self::endpoints::items::Items;
use self::endpoints::{Hearer, TEXT, TEXT_500, UPLOAD_LEN_MAX};

struct Bench {
    is_inline: bool,
    dir: PathBuf,
    text: Prepared,
    text_500: Prepared,
    items: Items,
    hearer: Hearer,
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
                let json = endpoints::json();
                reply.prepared(&Prepared::new(Status::OK, &fields, json.as_bytes()))
            }
            _ => reply.dispatch(),
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        match request.head().path() {
            b"/text" | b"/pooled" => Response::text(Status::OK, TEXT),
            b"/text500" => Response::new(Status::OK, Body::Bytes(TEXT_500[..].into()))
                .header("Content-Type", "text/plain"),
            b"/json" => Response::json(Status::OK, endpoints::json()),
            b"/sleep10" => endpoints::sleep(10),
            b"/sleep1000" => endpoints::sleep(1000),
            b"/item" => endpoints::item(request, &self.items),
            b"/file" => endpoints::file(&self.dir.join("file")),
            b"/big" => endpoints::file(&self.dir.join("big")),
            b"/upload" => endpoints::upload(request),
            b"/ws" => self.upgrade(Upgrade::new(endpoints::echo), request),
            b"/broadcast" => self.upgrade(Upgrade::new(self.hearer.clone()), request),
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

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [port, io_threads, dir, rest @ ..] = &words[..] else {
        let usage = "PORT IO_THREADS DIR [--inline] [--shared]";
        return Err(io::Error::other(usage));
    };
    let has = |option: &str| rest.iter().any(|word| word == option);
    let port: u16 = port.parse().map_err(io::Error::other)?;
    let io_threads = io_threads.parse().map_err(io::Error::other)?;
    let fields = [("Content-Type", "text/plain")];
    let dir = PathBuf::from(dir);
    let bench = Bench {
        is_inline: has("--inline"),
        text: Prepared::new(Status::OK, &fields, TEXT.as_bytes()),
        text_500: Prepared::new(Status::OK, &fields, &TEXT_500),
        items: Items::new(dir.join("items.sqlite")),
        hearer: Hearer::default(),
        dir,
    };
    let listener = if has("--shared") {
        Listener::tcp_shared(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), 1024)?
    } else {
        Listener::tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), 1024)?
    };
    let server = Server::builder(bench)
        .listen(listener)
        .io_threads(io_threads)
        .start()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    server.drain(Duration::from_secs(5));
    Ok(())
}
