//! WebSocket works over TLS regardless of how frames are split into TLS records.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it only inside functions marked as tests"
)]

mod support;
mod support_tls;

use std::io::{Read, Write};
use std::time::Duration;

use samovar_http::tls::ClientCertificates;
use samovar_http::ws::{Limits, Message, Socket, Upgrade};
use samovar_http::{Listener, Request, Response, Server, Service};
use support::ws::{BINARY, close, frame, handshake};
use support_tls::{Authority, Client};

struct Echo;

impl Service for Echo {
    type Local = ();

    fn local(&self) {}

    fn handle(&self, request: &mut Request) -> Response {
        let limits = Limits {
            message_len_max: LARGE_LEN,
            ..Limits::default()
        };
        let echo = |socket: &Socket, message: Message<'_>| socket.send(message);
        let upgrade = Upgrade::new(echo).limits(limits);
        let is_inline = request.head().path() == b"/inline";
        let upgrade = if is_inline { upgrade.inline() } else { upgrade };
        upgrade.accept(request)
    }
}

const LARGE_LEN: usize = 700_000;

/// Returns the payload of the next frame. Servers do not mask frames.
fn payload(client: &mut Client) -> Vec<u8> {
    let mut head = [0; 2];
    client.read_exact(&mut head).unwrap();
    let len = match head[1] {
        126 => {
            let mut len = [0; 2];
            client.read_exact(&mut len).unwrap();
            usize::from(u16::from_be_bytes(len))
        }
        127 => {
            let mut len = [0; 8];
            client.read_exact(&mut len).unwrap();
            usize::try_from(u64::from_be_bytes(len)).unwrap()
        }
        len => usize::from(len),
    };
    let mut payload = vec![0; len];
    client.read_exact(&mut payload).unwrap();
    payload
}

#[test]
fn a_socket_ends_when_the_certificate_of_its_client_expires() {
    let (authority, users) = (Authority::new("test"), Authority::new("users"));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, users.pem()).unwrap();
    let config = authority.sign(&["a.test"]).builder();
    let config = config.client_authorities_file(&file, ClientCertificates::Optional);
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 128).unwrap();
    let server = Server::builder(Echo).listen(listener.tls(config.build().unwrap()));
    let server = server.start().unwrap();
    for path in ["/worker", "/inline"] {
        let user = users.sign_for(&["user"], Duration::from_secs(5));
        let connector = authority.client().with(&user);
        let mut client = connector.connect(server.local_addrs()[0]).unwrap();
        client.write_all(handshake(path, "").as_bytes()).unwrap();
        client.write_all(&frame(BINARY, b"early")).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        assert_eq!(payload(&mut client), b"early");
        // The socket has nothing to do meanwhile.
        let closed = payload(&mut client);
        assert_eq!(closed[..2], 1008_u16.to_be_bytes(), "{closed:?}");
        client.write_all(&close(1008, "")).unwrap();
        assert_eq!(client.read_to_end(&mut Vec::new()).unwrap(), 0);
    }
}

#[test]
fn messages_of_all_sizes_are_echoed() {
    let authority = Authority::new("test");
    let config = authority.sign(&["a.test"]).builder().build().unwrap();
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 128).unwrap();
    let server = Server::builder(Echo).listen(listener.tls(config));
    let server = server.start().unwrap();
    let addr = server.local_addrs()[0];
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for path in ["/worker", "/inline"] {
            let mut client = authority.client().only(version).connect(addr).unwrap();
            // The client sends the handshake and its first message in one write.
            client.write_all(handshake(path, "").as_bytes()).unwrap();
            client.write_all(&frame(BINARY, b"early")).unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            assert!(head.starts_with(b"HTTP/1.1 101 "));
            assert_eq!(payload(&mut client), b"early");
            for len in [0, 1, 125, 126, 16_384, 16_385, 65_536, LARGE_LEN] {
                let message: Vec<u8> = (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect();
                client.write_all(&frame(BINARY, &message)).unwrap();
                assert!(payload(&mut client) == message, "{len}");
            }
            client.write_all(&close(1000, "")).unwrap();
            assert_eq!(payload(&mut client)[..2], 1000_u16.to_be_bytes());
            // If the stream ended without `close_notify`, rustls would return an error here.
            assert_eq!(client.read_to_end(&mut Vec::new()).unwrap(), 0);
        }
    }
}
