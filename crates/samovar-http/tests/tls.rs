//! HTTPS works with the clients rustls, OpenSSL and curl.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it only inside functions marked as tests"
)]

mod support;
mod support_tls;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use samovar_http::http::Status;
use samovar_http::tls::{ClientCertificates, TlsBuilder, TlsConfig};
use samovar_http::{
    Body, Builder, Head, Incident, Inline, Intake, Limits, Listener, Observer, Prepared, Reply,
    Request, Response, Server, Service, Turn,
};

use support::{Reader, connect, eventually};
use support_tls::{Authority, Pair, open_with};

/// A service that sends every kind of response.
struct Site {
    hello: Prepared,
    incidents: Incidents,
}

#[derive(Default)]
struct Incidents(Mutex<Vec<String>>);

impl Observer for Incidents {
    fn incident(&self, incident: &Incident<'_>) {
        self.0.lock().unwrap().push(incident.to_string());
    }
}

impl Site {
    fn new() -> Self {
        Self {
            hello: Prepared::new(Status::OK, &[], b"hello\n"),
            incidents: Incidents::default(),
        }
    }
}

impl Service for Site {
    type Local = ();

    fn local(&self) {}

    fn inline(&self, (): &mut (), _turn: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        match head.path() {
            b"/inline" => reply.prepared(&self.hello),
            _ => reply.dispatch(),
        }
    }

    fn intake(&self, head: Head<'_>) -> Intake {
        match head.path() {
            b"/stream" => Intake::Streamed(1 << 30),
            _ => Intake::Buffered(16 << 20),
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        let ok = |body| Response::new(Status::OK, body);
        match request.head().path() {
            b"/who" => {
                let head = request.head();
                assert!(head.is_secure());
                let count = head.peer_certificates().count();
                let first = head.peer_certificates().next().unwrap_or_default();
                ok(Body::Bytes(
                    [&[b'0' + u8::try_from(count).unwrap()], first]
                        .concat()
                        .into(),
                ))
            }
            b"/large" => ok(Body::Bytes(pattern(LARGE_LEN).into())),
            b"/file" => {
                let mut file = tempfile::tempfile().unwrap();
                file.write_all(&pattern(LARGE_LEN)).unwrap();
                ok(Body::file(file).unwrap())
            }
            b"/echo" => ok(Body::Bytes(request.body().to_vec().into())),
            b"/stream" => {
                let mut reader = request.reader();
                let mut sum = 0_u64;
                let mut buffer = [0; 10_000];
                loop {
                    let len = reader.read(&mut buffer).unwrap();
                    if len == 0 {
                        break;
                    }
                    sum += buffer[..len]
                        .iter()
                        .map(|byte| u64::from(*byte))
                        .sum::<u64>();
                }
                Response::text(Status::OK, sum.to_string())
            }
            _ => Response::text(Status::OK, "hello\n"),
        }
    }

    fn observer(&self) -> &dyn Observer {
        &self.incidents
    }
}

const LARGE_LEN: usize = 10_000_000;

fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| u8::try_from((at * 31 + at / 251) % 256).unwrap())
        .collect()
}

fn start_with(
    config: TlsConfig,
    configure: impl FnOnce(Builder<Site>) -> Builder<Site>,
) -> (Server<Site>, SocketAddr) {
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 128).unwrap();
    let builder = Server::builder(Site::new()).listen(listener.tls(config));
    let server = configure(builder).start().unwrap();
    let addr = server.local_addrs()[0];
    (server, addr)
}

fn start(builder: TlsBuilder) -> (Server<Site>, SocketAddr) {
    start_with(builder.build().unwrap(), |builder| builder)
}

/// Starts a server with a certificate for `a.test`; also returns the CA and the address.
fn site() -> (Authority, Server<Site>, SocketAddr) {
    let authority = Authority::new("test");
    let (server, addr) = start(authority.sign(&["a.test"]).builder());
    (authority, server, addr)
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n")
}

#[test]
fn tls_1_2_and_1_3_send_all_kinds_of_responses() {
    let (authority, _server, addr) = site();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let client = authority.client().only(version);
        let mut reader = Reader::new(client.connect(addr).unwrap());
        assert_eq!(reader.stream.conn.protocol_version(), Some(version.version));
        for path in ["/inline", "/worker"] {
            reader.send(get(path));
            assert_eq!(reader.next(false).unwrap().body, b"hello\n");
        }
        for path in ["/large", "/file"] {
            reader.send(get(path));
            assert!(
                reader.next(false).unwrap().body == pattern(LARGE_LEN),
                "{path}"
            );
        }
        let body = pattern(3_000_000);
        let head = |path: &str, len| {
            format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n")
        };
        reader.send(head("/echo", body.len()));
        reader.send(&body);
        assert!(reader.next(false).unwrap().body == body);
        let body = pattern(LARGE_LEN);
        reader.send(head("/stream", body.len()));
        reader.send(&body);
        let sum: u64 = body.iter().map(|byte| u64::from(*byte)).sum();
        assert_eq!(reader.next(false).unwrap().body, sum.to_string().as_bytes());
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let (authority, _server, addr) = site();
    let mut reader = Reader::new(authority.client().connect(addr).unwrap());
    let many: String = (0..200)
        .map(|at| get(if at % 3 == 0 { "/worker" } else { "/inline" }))
        .collect();
    reader.send(many);
    for _ in 0..200 {
        assert_eq!(reader.next(false).unwrap().body, b"hello\n");
    }
}

/// RFC 8446, 6.1: each side sends `close_notify` before it closes its write side.
#[test]
fn each_side_sends_close_notify() {
    let (authority, server, addr) = site();
    let mut client = authority.client().open(addr);
    client
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    // If the stream ended without `close_notify`, rustls would return an error here.
    client.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(b"hello\n"));

    let mut idle = authority.client().connect(addr).unwrap();
    idle.write_all(get("/inline").as_bytes()).unwrap();
    let stopping = thread::spawn(move || server.drain(Duration::from_secs(10)));
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    assert!(rest.ends_with(b"hello\n"));
    stopping.join().unwrap();
}

#[test]
fn a_client_that_has_sent_close_notify_gets_its_response() {
    let (authority, _server, addr) = site();
    let mut client = authority.client().connect(addr).unwrap();
    client.write_all(get("/worker").as_bytes()).unwrap();
    client.conn.send_close_notify();
    client.flush().unwrap();
    client.sock.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(b"hello\n"));
}

#[test]
fn the_server_name_selects_the_certificate() {
    let authority = Authority::new("test");
    let [a, b, wild] = [&["a.test"], &["b.test"], &["*.c.test"]].map(|names| authority.sign(names));
    let builder = wild.add_to(b.add_to(a.builder()));
    let (_server, addr) = start(builder);
    let shown = |addr, name| {
        let client = authority.client().named(name).connect(addr)?;
        let chain = client.conn.peer_certificates().unwrap();
        std::io::Result::Ok(chain[0].to_vec())
    };
    for (name, pair) in [("a.test", &a), ("b.test", &b), ("x.c.test", &wild)] {
        assert_eq!(shown(addr, name).unwrap(), pair.der(), "{name}");
    }
    // The client gets the default certificate, which does not match the name, and refuses it.
    let error = shown(addr, "d.test").unwrap_err().to_string();
    assert!(error.contains("not valid for name"), "{error}");
}

#[test]
fn alpn_selects_the_protocol() {
    let (authority, _server, addr) = site();
    let client = authority.client().speaking(&["http/1.1"]);
    let client = client.connect(addr).unwrap();
    assert_eq!(client.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    // RFC 7301, 3.2: the alert is "no_application_protocol" if client and server share no protocol.
    let error = authority.client().speaking(&["smtp"]).connect(addr);
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("NoApplicationProtocol")
    );
}

#[test]
fn client_certificates_are_verified() {
    let authority = Authority::new("test");
    let stranger = Authority::new("stranger");
    let users = Authority::new("users");
    let pair = authority.sign(&["a.test"]);
    let user = users.sign(&["user"]);
    let who = |addr, pair: Option<&Pair>| {
        let mut client = authority.client();
        if let Some(pair) = pair {
            client = client.with(pair);
        }
        let mut client = client.open(addr);
        client.write_all(get("/who").as_bytes())?;
        // In TLS 1.3, the client sees a refusal only when it reads.
        client.flush()?;
        let mut byte = [0];
        let mut answer = Vec::new();
        while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
            client.read_exact(&mut byte)?;
            answer.push(byte[0]);
        }
        client.read_exact(&mut byte)?;
        std::io::Result::Ok(byte[0])
    };
    let authorities = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&authorities, users.pem()).unwrap();
    let require = |clients| {
        start(
            pair.builder()
                .client_authorities_file(&authorities, clients),
        )
    };
    let (server, addr) = require(ClientCertificates::Required);
    assert_eq!(who(addr, Some(&user)).unwrap(), b'1');
    who(addr, None).unwrap_err();
    who(addr, Some(&stranger.sign(&["user"]))).unwrap_err();
    // The client may see the refusal before the observer gets the report.
    let incidents = || server.service().incidents.0.lock().unwrap().clone();
    eventually("both are told", || incidents().len() >= 2);
    let incidents = incidents();
    assert_eq!(incidents.len(), 2, "{incidents:?}");
    assert!(incidents[0].starts_with("TLS handshake with 127.0.0.1 failed: "));

    let (_server, addr) = require(ClientCertificates::Optional);
    assert_eq!(who(addr, Some(&user)).unwrap(), b'1');
    assert_eq!(who(addr, None).unwrap(), b'0');
    who(addr, Some(&stranger.sign(&["user"]))).unwrap_err();
}

/// Sends a request on an open connection. Returns the status.
fn status_on(reader: &mut Reader<support_tls::Client>) -> u16 {
    reader.send(get("/worker"));
    reader.next(false).unwrap().status
}

#[test]
fn an_expired_client_certificate_ends_its_connections_and_sessions() {
    let (authority, users) = (Authority::new("test"), Authority::new("users"));
    let authorities = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&authorities, users.pem()).unwrap();
    let builder = authority.sign(&["a.test"]).builder();
    let builder = builder.client_authorities_file(&authorities, ClientCertificates::Optional);
    let (server, addr) = start(builder);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let user = users.sign_for(&["user"], Duration::from_secs(15));
        let config = authority.client().only(version).with(&user).config();
        let open = || Reader::new(open_with(config.clone(), "a.test", addr));
        let mut first = open();
        assert_eq!(status_on(&mut first), 200);
        let mut second = open();
        assert_eq!(status_on(&mut second), 200);
        let kind = second.stream.conn.handshake_kind().unwrap();
        assert_eq!(kind, rustls::HandshakeKind::Resumed);
        let mut status = 200;
        eventually("the certificate expires", || {
            status = status_on(&mut second);
            status != 200
        });
        assert_eq!(status, 403);
        // The server has closed the connection.
        second.stream.read_exact(&mut [0]).unwrap_err();
        assert_eq!(status_on(&mut first), 403);
        // The verification counts whole seconds, so the handshake may succeed for one more.
        eventually("the session is refused", || {
            let mut third = open();
            drop(third.stream.write_all(get("/worker").as_bytes()));
            match third.try_next(false) {
                Ok(Some(answer)) => {
                    assert_eq!(answer.status, 403);
                    false
                }
                Ok(None) | Err(_) => true,
            }
        });
    }
    let incidents = server.service().incidents.0.lock().unwrap().join("\n");
    assert!(incidents.contains("resumed session"), "{incidents}");
}

#[test]
fn connections_end_when_their_authority_is_trusted_no_more() {
    let [authority, users, others] = ["test", "users", "others"].map(Authority::new);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, users.pem()).unwrap();
    let builder = authority.sign(&["a.test"]).builder();
    let config = builder
        .client_authorities_file(&file, ClientCertificates::Optional)
        .build()
        .unwrap();
    let (_server, addr) = start_with(config.clone(), |builder| builder);
    let mut known = Reader::new(authority.client().with(&users.sign(&["user"])).open(addr));
    let mut without = Reader::new(authority.client().open(addr));
    assert_eq!([status_on(&mut known), status_on(&mut without)], [200; 2]);
    std::fs::write(&file, others.pem() + &users.pem()).unwrap();
    config.reload().unwrap();
    assert_eq!([status_on(&mut known), status_on(&mut without)], [200; 2]);
    std::fs::write(&file, others.pem()).unwrap();
    config.reload().unwrap();
    assert_eq!(status_on(&mut known), 403);
    known.stream.read_exact(&mut [0]).unwrap_err();
    assert_eq!(status_on(&mut without), 200);
}

#[test]
fn a_renewed_certificate_closes_no_connection() {
    let authority = Authority::new("test");
    let (old, new) = (authority.sign(&["a.test"]), authority.sign(&["a.test"]));
    let config = old.builder().build().unwrap();
    let (_server, addr) = start_with(config.clone(), |builder| builder);
    let mut idle = Reader::new(authority.client().connect(addr).unwrap());
    let mut busy = Reader::new(authority.client().connect(addr).unwrap());
    busy.send(get("/large"));
    // Read only the start of the response, which is too long to be complete by now.
    let mut first = [0; 1000];
    busy.stream.read_exact(&mut first).unwrap();
    config.replace(new.builder()).unwrap();
    let fresh = authority.client().connect(addr).unwrap();
    assert_eq!(*fresh.conn.peer_certificates().unwrap()[0], *new.der());
    idle.send(get("/worker"));
    assert_eq!(idle.next(false).unwrap().body, b"hello\n");
    let mut rest = vec![0; LARGE_LEN - 1000];
    busy.stream.read_exact(&mut rest).unwrap();
}

#[test]
fn sessions_are_resumed() {
    let (authority, _server, addr) = site();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let config = authority.client().only(version).config();
        let mut kinds = Vec::new();
        for _ in 0..2 {
            let mut reader = Reader::new(open_with(config.clone(), "a.test", addr));
            reader.send(get("/inline"));
            reader.next(false).unwrap();
            kinds.push(reader.stream.conn.handshake_kind().unwrap());
        }
        assert_eq!(kinds[0], rustls::HandshakeKind::Full);
        assert_eq!(kinds[1], rustls::HandshakeKind::Resumed, "{version:?}");
    }
}

#[test]
fn plain_http_on_a_tls_port_gets_a_readable_400() {
    let (_authority, _server, addr) = site();
    let mut reader = Reader::new(connect(addr));
    reader.send(get("/"));
    let answer = reader.next(false).unwrap();
    assert_eq!(answer.status, 400);
    assert_eq!(answer.header("Connection"), Some("close"));
    reader.expect_end();
}

#[test]
fn connections_with_other_protocols_are_closed() {
    let (_authority, server, addr) = site();
    for bytes in [
        &b"\x00\x01\x02"[..],
        b"\x16\x03\x01\x00\x05hello",
        b"\x80\x2e\x01\x00\x02",
    ] {
        let mut stream = connect(addr);
        stream.write_all(bytes).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        // The rest is a TLS alert or empty.
        assert!(rest.is_empty() || rest[0] == 21, "{rest:?}");
    }
    eventually("all are gone", || server.connection_count() == 0);
}

#[test]
fn slow_handshakes_are_closed_after_their_time_limit() {
    let authority = Authority::new("test");
    let config = authority.sign(&["a.test"]).builder().build().unwrap();
    let (_server, addr) = start_with(config, |builder| {
        builder.limits(Limits {
            handshake_time: Duration::from_millis(1500),
            ..Limits::default()
        })
    });
    for start in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"] {
        let mut stream = connect(addr);
        stream.write_all(start).unwrap();
        let started = Instant::now();
        let mut rest = Vec::new();
        // The connection must end or be reset before the client's timeout.
        drop(stream.read_to_end(&mut rest));
        assert!(started.elapsed() >= Duration::from_secs(1));
    }
    // After the TLS handshake, only the other time limits apply.
    let mut reader = Reader::new(authority.client().connect(addr).unwrap());
    thread::sleep(Duration::from_millis(2000));
    reader.send(get("/worker"));
    assert_eq!(reader.next(false).unwrap().status, 200);
}

#[test]
fn concurrent_handshakes_are_limited() {
    let authority = Authority::new("test");
    let config = authority.sign(&["a.test"]).builder().build().unwrap();
    let (server, addr) = start_with(config, |builder| {
        builder.limits(Limits {
            handshakes_max: 8,
            ..Limits::default()
        })
    });
    let half: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = connect(addr);
            stream.write_all(b"\x16\x03\x01\x02").unwrap();
            stream
        })
        .collect();
    eventually("all are there", || server.connection_count() == 8);
    let mut ninth = connect(addr);
    let mut rest = Vec::new();
    drop(ninth.read_to_end(&mut rest));
    assert!(rest.is_empty());
    drop(half);
    eventually("they are gone", || server.connection_count() == 0);
    // Completed handshakes do not count towards the limit.
    let open: Vec<_> = (0..20)
        .map(|_| authority.client().connect(addr).unwrap())
        .collect();
    eventually("all are open", || server.connection_count() == open.len());
}

fn s_client(addr: SocketAddr, arguments: &[&str], input: &str) -> (String, String) {
    let mut child = Command::new("openssl")
        .args([
            "s_client",
            "-connect",
            &addr.to_string(),
            "-servername",
            "a.test",
        ])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    // `s_client` disconnects at the end of its input, so the input stays open until the server
    // closes.
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn openssl_can_connect() {
    let (_authority, _server, addr) = site();
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    for (version, name) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let (out, _) = s_client(addr, &[version, "-quiet", "-no_ign_eof"], request);
        assert!(out.ends_with("hello\n"), "{version}: {out}");
        let (out, _) = s_client(addr, &[version], request);
        assert!(out.contains(&format!("New, {name}, Cipher is")), "{out}");
        assert!(
            out.contains("AES_128_GCM") || out.contains("AES128-GCM"),
            "{out}"
        );
    }
    let (out, error) = s_client(addr, &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], request);
    assert!(out.contains("Cipher is (NONE)"), "{out}{error}");
}

/// Renegotiation in TLS 1.2 is refused, because it would let a client cause unlimited computation.
#[test]
fn renegotiation_is_refused() {
    let (_authority, _server, addr) = site();
    let (_, error) = s_client(addr, &["-tls1_2"], "R\n");
    assert!(error.contains("no renegotiation"), "{error}");
}

#[test]
fn curl_can_connect() {
    let (authority, _server, addr) = site();
    let dir = tempfile::TempDir::new().unwrap();
    let roots = dir.path().join("roots.pem");
    std::fs::write(&roots, authority.pem()).unwrap();
    for (version, shown) in [("--http1.1", "1.1"), ("--http2", "2")] {
        for (path, len) in [
            ("inline", 6),
            ("who", 1),
            ("large", LARGE_LEN),
            ("file", LARGE_LEN),
        ] {
            let output = Command::new("curl")
                .args([
                    "-sS",
                    version,
                    "-w",
                    "%{stderr}%{http_version}",
                    "--resolve",
                ])
                .arg(format!("a.test:{}:127.0.0.1", addr.port()))
                .arg("--cacert")
                .arg(&roots)
                .arg(format!("https://a.test:{}/{path}", addr.port()))
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
            assert_eq!(said, shown);
            assert_eq!(output.stdout.len(), len, "{path}");
        }
    }
}
