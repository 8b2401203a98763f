//! An HTTP/2 connection lasts no longer than the trust in its client's certificate: the next
//! request is refused, and the client told to connect again. Requests in progress are answered.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it only inside functions marked as tests"
)]

mod support;
mod support_tls;

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use h2::client::Builder;
use samovar_http::http::Status;
use samovar_http::tls::{ClientCertificates, TlsConfig};
use samovar_http::{Listener, Request, Response, Server, Service};
use support::eventually;
use support::h2::{Client, get};
use support_tls::{Authority, Connector, Pair};

/// A service that tells the test of each request for `/slow`, and answers it once the test lets it
/// go on.
struct Site {
    begun: Sender<()>,
    wait: Mutex<Receiver<()>>,
}

impl Service for Site {
    type Local = ();

    fn local(&self) {}

    fn handle(&self, request: &mut Request) -> Response {
        if request.head().path() == b"/slow" {
            self.begun.send(()).unwrap();
            self.wait.lock().unwrap().recv().unwrap();
        }
        Response::text(Status::OK, "hello\n")
    }
}

struct Scene {
    authority: Authority,
    users: Authority,
    file: tempfile::NamedTempFile,
    config: TlsConfig,
    has_begun: Receiver<()>,
    go_on: Sender<()>,
    server: Server<Site>,
}

impl Scene {
    /// Starts a server that requests certificates of `users`.
    fn new() -> Self {
        let (authority, users) = (Authority::new("test"), Authority::new("users"));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, users.pem()).unwrap();
        let config = authority
            .sign(&["a.test"])
            .builder()
            .client_authorities_file(&file, ClientCertificates::Optional)
            .build()
            .unwrap();
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 128).unwrap();
        let ((begun, has_begun), (go_on, wait)) = (channel(), channel());
        let wait = Mutex::new(wait);
        let server = Server::builder(Site { begun, wait })
            .listen(listener.tls(config.clone()))
            .start()
            .unwrap();
        Self {
            authority,
            users,
            file,
            config,
            has_begun,
            go_on,
            server,
        }
    }

    fn address(&self) -> SocketAddr {
        self.server.local_addrs()[0]
    }

    fn client(&self, pair: Option<&Pair>) -> Client {
        let connector = self.authority.client().speaking(&["h2"]);
        let connector = pair.into_iter().fold(connector, Connector::with);
        let stream = connector.connect(self.address()).unwrap();
        assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));
        stream.sock.set_nonblocking(true).unwrap();
        Client::over(stream, &Builder::new())
    }
}

fn status_on(client: &mut Client) -> u16 {
    client.ask(get("/")).status()
}

#[test]
fn an_expired_certificate_ends_its_connection() {
    let scene = Scene::new();
    let user = scene.users.sign_for(&["user"], Duration::from_secs(8));
    let mut client = scene.client(Some(&user));
    assert_eq!(status_on(&mut client), 200);
    let mut status = 200;
    eventually("the certificate expires", || {
        status = status_on(&mut client);
        status != 200
    });
    assert_eq!(status, 403);
    client.wait_for_end().unwrap();
}

#[test]
fn a_connection_ends_when_its_authority_is_trusted_no_more() {
    let scene = Scene::new();
    let user = scene.users.sign(&["user"]);
    let (mut known, mut without) = (scene.client(Some(&user)), scene.client(None));
    assert_eq!([status_on(&mut known), status_on(&mut without)], [200; 2]);
    let others = Authority::new("others");
    std::fs::write(&scene.file, others.pem() + &scene.users.pem()).unwrap();
    scene.config.reload().unwrap();
    assert_eq!([status_on(&mut known), status_on(&mut without)], [200; 2]);
    let (slow, _) = known.start(get("/slow"), true);
    let patience = Duration::from_secs(60);
    scene.has_begun.recv_timeout(patience).unwrap();
    std::fs::write(&scene.file, others.pem()).unwrap();
    scene.config.reload().unwrap();
    let refused = known.ask(get("/"));
    assert_eq!(refused.status(), 403);
    assert!(
        refused.text().contains("connect again"),
        "{}",
        refused.text()
    );
    // The request from before is answered.
    scene.go_on.send(()).unwrap();
    assert_eq!(known.whole(slow).unwrap().status(), 200);
    known.wait_for_end().unwrap();
    assert_eq!(status_on(&mut without), 200);
}
