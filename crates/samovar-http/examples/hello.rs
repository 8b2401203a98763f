//! A `Service` without a router. The I/O thread answers `/inline`, workers answer other paths. Run
//! `hello 127.0.0.1:8080`; the server stops at the end of its standard input.

use std::io::Read;

use samovar_http::http::Status;
use samovar_http::{
    Head, Inline, Listener, Prepared, Reply, Request, Response, Server, Service, Turn,
};

struct Hello(Prepared);

impl Service for Hello {
    type Local = ();

    fn local(&self) {}

    fn inline(&self, _: &mut (), _: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        if head.path() == b"/inline" {
            reply.prepared(&self.0)
        } else {
            reply.dispatch()
        }
    }

    fn handle(&self, _: &mut Request) -> Response {
        Response::text(Status::OK, "Hello, world\n")
    }
}

fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    let fields = [("Content-Type", "text/plain")];
    let hello = Hello(Prepared::new(Status::OK, &fields, b"Hello, world\n"));
    let server = Server::builder(hello)
        .listen(Listener::bind(addr)?)
        .start()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.drain(std::time::Duration::from_secs(5));
    Ok(())
}
