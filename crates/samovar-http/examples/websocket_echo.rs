//! A WebSocket echo server. Run `websocket_echo 127.0.0.1:8080`; it stops at the end of its
//! standard input.
//!
//! The handler of `/inline` runs on the I/O thread, the handler of other paths on workers.

use std::io::Read;

use samovar_http::ws::{Limits, Message, Origins, Socket, Upgrade};
use samovar_http::{Listener, Request, Response, Server, Service};

struct Echo;

impl Service for Echo {
    type Local = ();

    fn local(&self) {}

    fn handle(&self, request: &mut Request) -> Response {
        // Large limits, which conformance tests need.
        let limits = Limits {
            message_len_max: 32 << 20,
            inbound_len_max: 1 << 20,
            outbound_len_max: 64 << 20,
            ..Limits::default()
        };
        let upgrade = Upgrade::new(|socket: &Socket, message: Message<'_>| socket.send(message))
            .limits(limits)
            .origins(Origins::Any);
        let upgrade = match request.head().path() {
            b"/inline" => upgrade.inline(),
            _ => upgrade,
        };
        upgrade.accept(request)
    }
}

fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    let server = Server::builder(Echo)
        .listen(Listener::bind(addr)?)
        .start()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.drain(std::time::Duration::from_secs(5));
    Ok(())
}
