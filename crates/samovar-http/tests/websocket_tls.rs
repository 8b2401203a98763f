//! The WebSocket client of tungstenite works with and without TLS.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it only inside functions marked as tests"
)]

mod support;
mod support_tls;

use std::io::{Read, Write};

use samovar_http::ws::{Message, Socket, Upgrade};
use samovar_http::{Listener, Request, Server};
use support::recorder::App;
use support::{connect, serve};
use support_tls::Authority;
use tungstenite::Message as Theirs;
use tungstenite::protocol::CloseFrame;

/// Echoes texts and byte strings at all lengths where the framing changes, then closes.
fn converse(stream: impl Read + Write) {
    let (mut socket, response) = tungstenite::client("ws://a.test/", stream).unwrap();
    assert_eq!(response.status(), 101);
    for len in [0, 1, 125, 126, 65_535, 65_536, 500_000] {
        let text = Theirs::text("é".repeat(len / 2));
        let data = Theirs::binary(vec![0xff; len]);
        socket.send(text.clone()).unwrap();
        socket.send(data.clone()).unwrap();
        assert_eq!(socket.read().unwrap(), text);
        assert_eq!(socket.read().unwrap(), data);
    }
    socket
        .send(Theirs::Ping(b"there?".to_vec().into()))
        .unwrap();
    assert_eq!(
        socket.read().unwrap(),
        Theirs::Pong(b"there?".to_vec().into())
    );
    let goodbye = CloseFrame {
        code: 4000.into(),
        reason: "done".into(),
    };
    socket.close(Some(goodbye)).unwrap();
    let Theirs::Close(Some(said)) = socket.read().unwrap() else {
        unreachable!("an answer to the close")
    };
    assert_eq!(u16::from(said.code), 4000);
    assert!(matches!(
        socket.read(),
        Err(tungstenite::Error::ConnectionClosed)
    ));
}

fn echo(request: &mut Request) -> samovar_http::Response {
    let is_inline = request.head().target().starts_with(b"/inline");
    let upgrade = Upgrade::new(|socket: &Socket, message: Message<'_>| socket.send(message));
    let upgrade = if is_inline { upgrade.inline() } else { upgrade };
    upgrade.accept(request)
}

#[test]
fn tungstenite_works_without_tls() {
    let (_server, addr) = serve(App(echo), |builder| builder);
    converse(connect(addr));
}

#[test]
fn over_tls() {
    let authority = Authority::new("authority");
    let config = authority.sign(&["a.test"]).builder().build().unwrap();
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 128).unwrap();
    let server = Server::builder(App(echo))
        .listen(listener.tls(config))
        .start()
        .unwrap();
    let addr = server.local_addrs()[0];
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        converse(authority.client().only(version).connect(addr).unwrap());
    }
}
