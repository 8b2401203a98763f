//! An idle HTTPS connection takes little memory, and frees the buffers that it needed while busy.
//!
//! The test has its own file, because it measures the memory of the whole process.

mod support;
mod support_tls;

use std::io::{Read, Write};
use std::net::TcpStream;

use rustls::ClientConnection;
use samovar_http::http::Status;
use samovar_http::{Listener, Request, Response, Server, Service};
use support::resident_len;
use support_tls::Authority;
use testkit::limit;

/// Maximum user memory per idle connection, in bytes: its TLS state and the engine's bookkeeping.
const IDLE_LEN_MAX: usize = 6 * 1024;
const CONNECTIONS: usize = 400;

struct Large;

impl Service for Large {
    type Local = ();

    fn local(&self) {}

    fn handle(&self, _: &mut Request) -> Response {
        Response::text(Status::OK, "x".repeat(200_000))
    }
}

#[test]
fn an_idle_tls_connection_keeps_no_buffer() {
    let authority = Authority::new("test");
    let config = authority.sign(&["a.test"]).builder().build().unwrap();
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 128).unwrap();
    let server = Server::builder(Large)
        .listen(listener.tls(config))
        .io_threads(1)
        .workers(2)
        .start()
        .unwrap();
    let addr = server.local_addrs()[0];
    let client = authority.client();
    // The client runs in the same process: drop its TLS state but keep its socket open.
    let use_once = |count: usize, sockets: &mut Vec<TcpStream>| {
        for _ in 0..count {
            let mut stream = client.connect(addr).unwrap();
            stream
                .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                .unwrap();
            let mut answer = Vec::new();
            let mut piece = [0; 16_384];
            while answer.len() < 200_000 {
                let len = stream.read(&mut piece).unwrap();
                answer.extend_from_slice(&piece[..len]);
            }
            let (_, socket): (ClientConnection, TcpStream) = stream.into_parts();
            sockets.push(socket);
        }
    };
    let mut sockets = Vec::with_capacity(CONNECTIONS + 100);
    use_once(100, &mut sockets);
    let before = resident_len();
    use_once(CONNECTIONS, &mut sockets);
    assert_eq!(server.connection_count(), CONNECTIONS + 100);
    let each = resident_len().saturating_sub(before) / CONNECTIONS;
    println!("{each} bytes for an idle connection");
    limit::memory_at_most(
        "memory for an idle connection",
        each as u64,
        IDLE_LEN_MAX as u64,
    );
}
