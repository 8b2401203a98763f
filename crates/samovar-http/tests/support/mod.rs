#![expect(clippy::unwrap_used, reason = "a test helper fails by panicking")]
#![allow(
    dead_code,
    unused_imports,
    clippy::allow_attributes,
    reason = "each test file is a crate of its own and uses a part"
)]
//! Starts servers on free ports, and provides test clients.

pub(crate) mod h2_app;
pub(crate) mod recorder;

use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;

use samovar_http::{
    Builder, Head, Intake, Listener, Observer, Request, Responder, Response, Router, Server,
    Service,
};
pub(crate) use testkit::eventually;
pub(crate) use testkit::http1::{Connection as Reader, Response as Answer};
pub(crate) use testkit::http2 as h2;
pub(crate) use testkit::websocket as ws;

/// Starts a server on a free port of the loopback interface.
pub(crate) fn serve<S: Service>(
    service: S,
    configure: impl FnOnce(Builder<S>) -> Builder<S>,
) -> (Server<S>, SocketAddr) {
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 128).unwrap();
    let server = configure(Server::builder(service).listen(listener))
        .start()
        .unwrap();
    let addr = server.local_addrs()[0];
    (server, addr)
}

/// A service that calls a function for each request.
pub(crate) struct By<F> {
    pub(crate) handle: F,
    pub(crate) intake: Intake,
}

impl<F: Fn(&mut Request) -> Response + Send + Sync + 'static> Service for By<F> {
    type Local = ();

    fn local(&self) {}

    fn intake(&self, _: Head<'_>) -> Intake {
        self.intake
    }

    fn handle(&self, request: &mut Request) -> Response {
        (self.handle)(request)
    }

    fn observer(&self) -> &dyn Observer {
        &()
    }
}

/// Returns a service that defers all responses, and the receiver of their responders.
pub(crate) fn promising(
    intake: Intake,
) -> (
    By<impl Fn(&mut Request) -> Response>,
    mpsc::Receiver<Responder>,
) {
    let (sender, promised) = mpsc::channel();
    let handle = move |_: &mut Request| {
        let (responder, response) = Response::later();
        sender.send(responder).unwrap();
        response
    };
    (By { handle, intake }, promised)
}

/// Returns the anonymous resident memory of this process, in bytes.
pub(crate) fn resident_len() -> usize {
    let len = testkit::procfs::memory(std::process::id(), "status", "RssAnon");
    usize::try_from(len.unwrap()).unwrap()
}

/// Connects with timeouts, so that a hang fails the test.
pub(crate) fn connect(addr: SocketAddr) -> TcpStream {
    Reader::connect(addr).stream
}

/// Checks that a router cannot be built, and that the message of the panic contains `expected`.
#[track_caller]
pub(crate) fn refused(expected: &str, build: impl FnOnce() -> Router + std::panic::UnwindSafe) {
    let panic = std::panic::catch_unwind(build).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains(expected), "{text}");
}
