use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};

use super::*;
use crate::tls::TlsConfig;

type Client = StreamOwned<ClientConnection, UnixStream>;

fn pair(version: &'static SupportedProtocolVersion) -> (Stream, Client) {
    let made = rcgen::generate_simple_self_signed(vec!["a.test".into()]).unwrap();
    let config = TlsConfig::builder()
        .certificate_pem(
            made.cert.pem().as_bytes(),
            made.signing_key.serialize_pem().as_bytes(),
        )
        .build()
        .unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let stream = Stream::new(ours.into(), config.server_config());
    (stream, client(theirs, made.cert.der(), version))
}

fn client(
    socket: UnixStream,
    root: &CertificateDer<'static>,
    version: &'static SupportedProtocolVersion,
) -> Client {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("a.test").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    StreamOwned::new(connection, socket)
}

/// Waits until the socket is readable or writable.
fn wait(stream: &Stream, writable: bool) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let flags = if writable {
        PollFlags::OUT
    } else {
        PollFlags::IN
    };
    let timeout = Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    let ready = poll(&mut [PollFd::new(stream, flags)], Some(&timeout)).unwrap();
    assert_eq!(ready, 1, "nothing happens");
}

fn shake(stream: &mut Stream) -> io::Result<()> {
    loop {
        match stream.handshake()? {
            Handshake::Done => return Ok(()),
            Handshake::WantsRead => wait(stream, false),
            Handshake::WantsWrite => wait(stream, true),
            Handshake::Over => return Err(io::Error::other("in clear")),
        }
    }
}

fn recv(stream: &mut Stream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.recv(buffer)? {
            Some(len) => return Ok(len),
            None => wait(stream, false),
        }
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| u8::try_from((at * 31 + at / 251) % 256).unwrap())
        .collect()
}

/// Bytes arrive unchanged in both directions with any length of the reader's buffer.
#[test]
fn bytes_survive_any_buffer_size() {
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for buffer_len in [1, 7, 1000, 16 * 1024, 20_000, 64 * 1024, 300_000] {
            let (mut stream, mut client) = pair(version);
            let sent = pattern(if buffer_len < 10 { 20_000 } else { 700_000 });
            let expected = sent.clone();
            let peer = thread::spawn(move || {
                client.write_all(&sent).unwrap();
                client.conn.send_close_notify();
                client.flush().unwrap();
                let mut back = Vec::new();
                client.read_to_end(&mut back).unwrap();
                (back, sent)
            });
            shake(&mut stream).unwrap();
            assert_eq!(stream.alpn(), None, "the client offers nothing");
            assert!(stream.peer_certificates().is_empty());
            let mut received = Vec::new();
            let mut buffer = vec![0; buffer_len];
            loop {
                let len = recv(&mut stream, &mut buffer).unwrap();
                if len == 0 {
                    break;
                }
                received.extend_from_slice(&buffer[..len]);
            }
            assert!(received == expected, "{version:?}, {buffer_len}");
            let mut rest = received.as_slice();
            while !rest.is_empty() {
                match stream.send(rest, false).unwrap() {
                    Some(len) => rest = &rest[len..],
                    None => wait(&stream, true),
                }
            }
            stream.shutdown_write().unwrap();
            while !stream.flush().unwrap() {
                wait(&stream, true);
            }
            let (back, sent) = peer.join().unwrap();
            assert!(back == sent, "{version:?}, {buffer_len}");
            assert_eq!(
                stream.incoming.capacity() + stream.plain.capacity() + stream.outgoing.capacity(),
                0,
                "memory is given back"
            );
        }
    }
}

#[test]
fn truncation_is_an_error() {
    let (mut stream, mut client) = pair(&rustls::version::TLS13);
    let peer = thread::spawn(move || {
        client.write_all(b"half").unwrap();
        client.flush().unwrap();
        // The client ends the connection without `close_notify`.
        client.sock.shutdown(std::net::Shutdown::Write).unwrap();
        client
    });
    shake(&mut stream).unwrap();
    let mut buffer = [0; 100];
    assert_eq!(recv(&mut stream, &mut buffer).unwrap(), 4);
    let _client = peer.join().unwrap();
    let error = recv(&mut stream, &mut buffer).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_peer_that_does_not_read_holds_one_piece() {
    let (mut stream, mut client) = pair(&rustls::version::TLS13);
    let peer = thread::spawn(move || {
        client.write_all(b"x").unwrap();
        client.flush().unwrap();
        client
    });
    shake(&mut stream).unwrap();
    assert_eq!(recv(&mut stream, &mut [0; 10]).unwrap(), 1);
    let mut client = peer.join().unwrap();
    let sent = pattern(SEND_LEN);
    let mut taken_len = 0;
    while let Some(len) = stream.send(&sent, false).unwrap() {
        assert_eq!(len, SEND_LEN, "a piece is taken whole");
        taken_len += len;
    }
    assert!(!stream.flush().unwrap());
    assert!(stream.outgoing.len() <= SEND_LEN + SEAL_OVERHEAD);
    let reader = thread::spawn(move || {
        let mut received = vec![0; taken_len];
        client.read_exact(&mut received).unwrap();
        received
    });
    while !stream.flush().unwrap() {
        wait(&stream, true);
    }
    let received = reader.join().unwrap();
    assert!(received.chunks(SEND_LEN).all(|piece| piece == sent));
    assert_eq!(stream.outgoing.capacity(), 0);
}

#[test]
fn plain_http_gets_a_readable_response() {
    let (mut stream, client) = pair(&rustls::version::TLS13);
    let mut socket = client.sock;
    socket
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    assert_eq!(stream.handshake().unwrap(), Handshake::Over);
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
    socket.write_all(b"more").unwrap();
    drop(socket);
    assert_eq!(stream.recv(&mut [0; 10]).unwrap(), Some(4));
    assert_eq!(stream.recv(&mut [0; 10]).unwrap(), Some(0));
}

#[test]
fn garbage_is_an_error() {
    for bytes in [
        &b"\x80\x2e\x01"[..],
        b"\x16\x03\x01\xff\xff",
        b"\x15\x03\x03\x00\x02\x01\x00",
    ] {
        let (mut stream, client) = pair(&rustls::version::TLS13);
        let mut socket = client.sock;
        socket.write_all(bytes).unwrap();
        let error = stream.handshake().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    }
}

/// An endless handshake message is buffered only up to rustls's limit.
#[test]
fn an_endless_handshake_message_is_refused() {
    let (mut stream, client) = pair(&rustls::version::TLS13);
    let mut socket = client.sock;
    socket.set_nonblocking(true).unwrap();
    let mut records = Vec::new();
    for at in 0..20 {
        let mut payload = vec![0; 16_000];
        if at == 0 {
            payload[..4].copy_from_slice(&[1, 0, 0xff, 0xff]);
        }
        records.extend_from_slice(&[22, 3, 1]);
        records.extend_from_slice(&16_000_u16.to_be_bytes());
        records.extend_from_slice(&payload);
    }
    let mut rest = records.as_slice();
    loop {
        if let Ok(len) = socket.write(rest) {
            rest = &rest[len..];
        }
        match stream.handshake() {
            Ok(Handshake::WantsRead) => assert!(stream.incoming.len() <= INCOMING_LEN_MAX),
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
                return;
            }
        }
    }
}

#[test]
fn a_closed_reader_is_an_error() {
    let (mut stream, client) = pair(&rustls::version::TLS13);
    drop(client);
    assert_eq!(
        stream.handshake().unwrap_err().kind(),
        io::ErrorKind::UnexpectedEof
    );
}
