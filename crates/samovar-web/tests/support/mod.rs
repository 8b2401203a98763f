//! Starts servers on free ports.

#![expect(clippy::unwrap_used, reason = "a test helper fails by panicking")]
#![allow(
    dead_code,
    unused_imports,
    clippy::allow_attributes,
    reason = "each test file is a crate of its own and uses a part"
)]

use std::net::SocketAddr;

use samovar_http::{Listener, Request, Response, Router, Server};
pub(crate) use testkit::http1::{Connection, Response as Answer};

/// Starts a server on a free port of the loopback interface.
pub(crate) fn serve(router: Router) -> (Server<Router>, SocketAddr) {
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 128).unwrap();
    let server = Server::builder(router).listen(listener).start().unwrap();
    let addr = server.local_addrs()[0];
    (server, addr)
}

/// Returns the response of a router without a socket.
pub(crate) fn get(router: &Router, target: &str, fields: &[(&str, &str)]) -> Response {
    let mut builder = Request::builder("GET", target);
    for (name, value) in fields {
        builder = builder.header(name, value);
    }
    router.answer(builder.build())
}

/// Returns status and body of a response.
pub(crate) fn read(response: Response) -> (u16, String) {
    let status = response.status().code();
    let body = response.into_bytes().unwrap();
    (status, String::from_utf8(body).unwrap())
}
