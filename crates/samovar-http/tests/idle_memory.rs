//! An idle connection takes less memory than a fixed limit.
//!
//! The test has its own file, because it measures the memory of the whole process.

mod support;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use samovar_http::http::Status;
use samovar_http::{Head, Inline, Prepared, Reply, Request, Response, Service, Turn};
use support::{Reader, connect, resident_len, serve};
use testkit::limit;

/// Maximum user memory per idle connection, in bytes, including the engine's bookkeeping.
const IDLE_LEN_MAX: usize = 1024;
const CONNECTIONS: usize = 5000;

struct Both(Prepared);

impl Service for Both {
    type Local = ();

    fn local(&self) {}

    fn inline(&self, _: &mut (), _: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        if head.path() == b"/inline" {
            reply.prepared(&self.0)
        } else {
            reply.dispatch()
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        // Longer than the output buffer that an idle connection may keep.
        Response::text(Status::OK, "x".repeat(20_000 + request.body().len()))
    }
}

#[test]
fn an_idle_connection_takes_less_than_a_kilobyte() {
    let limit = getrlimit(Resource::Nofile);
    let enough = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, enough).unwrap();
    let (server, addr) = serve(Both(Prepared::new(Status::OK, &[], b"ok")), |builder| {
        builder.io_threads(1).workers(2)
    });
    let requests = [
        "GET /inline HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /worker HTTP/1.1\r\nHost: a\r\n\r\n",
    ];
    let use_once = |count: usize, streams: &mut Vec<std::net::TcpStream>| {
        for _ in 0..count {
            let mut client = Reader::new(connect(addr));
            client.stream.set_nodelay(true).unwrap();
            for request in requests {
                // Sent in two parts, so that the connection stores half a head for a while.
                client.send(&request[..20]);
                client.send(&request[20..]);
                assert_eq!(client.next(false).unwrap().status, 200);
            }
            streams.push(client.stream);
        }
    };
    let mut streams = Vec::with_capacity(CONNECTIONS + 200);
    use_once(200, &mut streams);
    let before = resident_len();
    use_once(CONNECTIONS, &mut streams);
    assert_eq!(server.connection_count(), CONNECTIONS + 200);
    let each = resident_len().saturating_sub(before) / CONNECTIONS;
    println!("{each} bytes for an idle connection");
    limit::memory_at_most(
        "memory for an idle connection",
        each as u64,
        IDLE_LEN_MAX as u64,
    );
}
