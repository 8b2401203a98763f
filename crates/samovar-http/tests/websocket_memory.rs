//! An idle WebSocket takes little memory.
//!
//! The test has its own file, because it measures the memory of the whole process.

mod support;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use samovar_http::Request;
use samovar_http::ws::{Message, Socket, Upgrade};
use support::recorder::App;
use support::ws::{Client, frame, handshake};
use support::{resident_len, serve};
use testkit::limit;

/// Maximum user memory per idle WebSocket, in bytes, including the engine's bookkeeping.
const IDLE_LEN_MAX: usize = 1024;
const SOCKETS: usize = 4000;

#[test]
fn an_idle_websocket_costs_less_than_a_kilobyte() {
    let limit = getrlimit(Resource::Nofile);
    let enough = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, enough).unwrap();
    let app = |request: &mut Request| {
        let is_inline = request.head().path() == b"/inline";
        let upgrade = Upgrade::new(|socket: &Socket, message: Message<'_>| socket.send(message));
        let upgrade = if is_inline { upgrade.inline() } else { upgrade };
        upgrade.accept(request)
    };
    let (server, addr) = serve(App(app), |builder| builder.io_threads(1).workers(2));
    let message = "a message that took memory once ".repeat(1000);
    let use_once = |count: usize, streams: &mut Vec<std::net::TcpStream>| {
        for n in 0..count {
            let path = if n % 2 == 0 { "/worker" } else { "/inline" };
            let mut client = Client::with(addr, handshake(path, ""));
            // Sent in fragments, so that the server stores half a message for a while.
            let (a, b) = message.as_bytes().split_at(20_000);
            client.send(frame(0x01, a));
            client.send(frame(0x80, b));
            client.expect_text(&message);
            streams.push(client.connection.stream);
        }
    };
    let mut streams = Vec::with_capacity(SOCKETS + 200);
    use_once(200, &mut streams);
    let before = resident_len();
    use_once(SOCKETS, &mut streams);
    assert_eq!(server.connection_count(), SOCKETS + 200);
    let each = resident_len().saturating_sub(before) / SOCKETS;
    println!("{each} bytes for an idle WebSocket");
    limit::memory_at_most(
        "memory for an idle WebSocket",
        each as u64,
        IDLE_LEN_MAX as u64,
    );
}
