//! Worker threads: run jobs and handle their panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::exchange::{fulfil, handle};
use super::http1::{give_back, lose, pump};
use super::lent::Worker;
use crate::conn::{Conn, StreamNews, StreamRef, StreamWork, Verdict};
use crate::core::Shared;
use crate::jobs::Job;
use crate::lane::Lane;
use crate::net::key::Key;
use crate::observer::Incident;
use crate::request::Request;
use crate::service::Service;
use crate::sys;
use crate::ws::Socket;

/// Runs jobs until the queue is closed or this worker is not needed any more.
pub(crate) fn run<S: Service>(shared: &Shared<S>) {
    let running = shared.jobs.join();
    let _worker = Worker::new(&shared.core, &running);
    while let Some(job) = shared.queue.pop(running.slot.finish()) {
        running.slot.occupy(job.lane());
        let lost = Lost::with(&job);
        running.start(&job);
        // Panics of handlers and body sources are caught at their calls. This catches panics of the
        // observer, and of `Drop` implementations in the application.
        if catch_unwind(AssertUnwindSafe(|| work(shared, job))).is_err() {
            match lost {
                Lost::None => {}
                Lost::Conn(home, key) => lose(shared, (home, key)),
                Lost::Stream(stream, news) => shared.core.send_news(stream, news),
            }
        }
        running.end();
    }
}

/// The connection or stream to close if a job panics.
enum Lost {
    None,
    Conn(usize, Key),
    Stream(StreamRef, StreamNews),
}

impl Lost {
    fn with(job: &Job) -> Self {
        match job {
            Job::Handle(conn, _) | Job::Pump(conn) => Self::Conn(conn.home, conn.key),
            Job::Handshake(conn) => Self::Conn(conn.home, conn.key),
            Job::Events(_) | Job::Discard(_) => Self::None,
            Job::Stream(job) => Self::Stream(
                job.stream,
                match job.work {
                    StreamWork::Handle(_) => StreamNews::HandlerLost,
                    StreamWork::Fulfil(..) | StreamWork::Pull(_) => StreamNews::BodyFailed,
                },
            ),
        }
    }
}

fn work<S: Service>(shared: &Shared<S>, job: Job) {
    match job {
        Job::Handle(conn, request) if is_abandoned(shared, &conn, &request) => {
            give_back(shared, conn, Verdict::Reset);
        }
        Job::Handle(conn, request) => handle(shared, conn, request),
        Job::Pump(mut conn) => {
            if let Some(later) = conn.later.take() {
                return fulfil(shared, conn, later);
            }
            pump(shared, conn);
        }
        Job::Handshake(conn) => super::handshake::shake(shared, conn),
        Job::Discard(rest) => drop(rest),
        Job::Events(socket) => handle_events(shared, socket),
        Job::Stream(job) => super::http2::work(shared, *job),
    }
}

/// Returns whether a request needs no computation, because its client has closed the connection
/// meanwhile. A client that has only shut down its sending side looks the same: this client gets
/// its response, unless other requests wait.
fn is_abandoned<S: Service>(shared: &Shared<S>, conn: &Conn, request: &Request) -> bool {
    let has_closed = || sys::has_ended(&conn.transport);
    request.lane == Lane::Costly
        && request.claimant.is_some()
        && shared.queue.has_queued(Lane::Costly)
        && has_closed().unwrap_or(true)
}

/// Passes a limited number of a WebSocket's events to its handler; requeues the socket for the
/// rest.
fn handle_events<S: Service>(shared: &Shared<S>, socket: Socket) {
    let peer = socket.peer();
    let on_panic = || {
        let incident = Incident::SocketHandlerPanicked { peer };
        shared.service.observer().incident(&incident);
    };
    if socket.handle_events(on_panic) {
        // Cannot fail: the queue accepts every `Job::Events`.
        drop(shared.queue.push(Job::Events(socket)));
        shared.queue.wake();
    }
}
