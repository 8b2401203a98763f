//! Dropping the body of an HTTP/2 response does not delay other requests, even if closing its files
//! blocks.

mod support;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use h2::Reason;
use samovar_http::http::Status;
use samovar_http::{Batch, Body, Progress, Response, Router, Source};
use support::h2::{Client, get};
use support::h2_app::{Gate, wait_until};
use support::serve;

/// Initial flow-control window, in bytes (RFC 9113, 6.9.2): the peer receives no more before it
/// opens the window.
const WINDOW_LEN: usize = 65_535;

/// An endless body whose drop blocks until the gate opens.
struct Held {
    gate: Arc<Gate>,
    dropped_count: Arc<AtomicUsize>,
}

impl Source for Held {
    fn len(&self) -> Option<u64> {
        None
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        let len = batch.room_len();
        batch.room().fill(b'h');
        batch.advance(len);
        Ok(Progress::More)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.dropped_count.fetch_add(1, Ordering::AcqRel);
        self.gate.pass();
    }
}

/// Opens the gate when dropped, so that a failing test does not hang.
struct Opened(Arc<Gate>);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.open();
    }
}

#[test]
fn dropping_a_body_slowly_delays_no_other_request() {
    let (gate, dropped_count) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(0)));
    let (held_gate, count) = (Arc::clone(&gate), Arc::clone(&dropped_count));
    let router =
        Router::new()
            .get("/", |_| "here\n")
            .get("/held", move |_: &mut samovar_http::Request| {
                let held = Held {
                    gate: Arc::clone(&held_gate),
                    dropped_count: Arc::clone(&count),
                };
                Response::new(Status::OK, Body::Source(Box::new(held)))
            });
    let (_server, addr) = serve(router, |builder| builder.workers(4).io_threads(1));
    let _opened = Opened(gate);
    let is_dropped = |count| dropped_count.load(Ordering::Acquire) == count;
    let mut other = Client::connect(addr);

    // First case: the client resets the stream.
    let mut client = Client::connect(addr);
    let (mut answer, mut send) = client.start(get("/held"), true);
    let mut body = client.head(&mut answer).unwrap().into_body();
    client.data(&mut body).unwrap().unwrap();
    send.send_reset(Reason::CANCEL);
    client.drive_for(Duration::ZERO, |_| Poll::<()>::Pending);
    wait_until("the body is let go of", || is_dropped(1));
    assert_eq!(other.ask(get("/")).text(), "here\n");
    assert_eq!(client.ask(get("/")).text(), "here\n");

    // Second case: the client closes the connection while bytes are in flight to it. The server
    // sees the resulting TCP reset.
    let (mut answer, _send) = client.start(get("/held"), true);
    let mut body = client.head(&mut answer).unwrap().into_body();
    client.data(&mut body).unwrap().unwrap();
    drop(client);
    wait_until("the body is let go of", || is_dropped(2));
    assert_eq!(other.ask(get("/")).text(), "here\n");

    // Third case: the client closes the connection after reading everything its windows allow. No
    // bytes are in flight, so there is no TCP reset.
    let mut client = Client::connect(addr);
    let (mut answer, _send) = client.start(get("/held"), true);
    let mut body = client.head(&mut answer).unwrap().into_body();
    let mut read_len = 0;
    while read_len < WINDOW_LEN {
        let bytes = client.drive(|context| body.poll_data(context));
        read_len += bytes.unwrap().unwrap().len();
    }
    drop(client);
    wait_until("the body is let go of", || is_dropped(3));
    assert_eq!(other.ask(get("/")).text(), "here\n");
}
