//! Running handlers and sending their answers.
//!
//! A worker writes the answer to the socket itself and goes on with the body until the socket takes
//! no more. Then the connection goes home; its I/O thread sends it back here when there is room.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

use super::queue::{Job, Work};
use crate::body::{Batch, Outcome, Progress, Source, Transfer};
use crate::head::{Head, Request};
use crate::http::{Method, Status, Version};
use crate::io::conn::{Answer, Conn};
use crate::io::inbox::{Message, Verdict};
use crate::io::slab::Key;
use crate::proto::encode::{self, Delimiter};
use crate::response::{Body, Response};
use crate::server::Shared;
use crate::service::{Exchange, Incident, Service};

/// Bodies up to this length are copied behind their head and leave in the same write.
const INLINE_BODY_LEN: usize = 64 * 1024;

/// Works until the queue is closed.
pub(crate) fn run<S: Service>(shared: &Shared<S>) {
    while let Some(job) = shared.queue.pop() {
        let (home, key) = (job.conn.home, job.conn.key);
        // Handlers and sources have their own nets. This one is for what is left of an
        // application: its reports, and the dropping of its values.
        if catch_unwind(AssertUnwindSafe(|| work(shared, job))).is_err() {
            lose(shared, home, key);
        }
    }
}

fn work<S: Service>(shared: &Shared<S>, job: Job) {
    let Job { mut conn, work } = job;
    if let Work::Handle(request) = work {
        handle(shared, &mut conn, request);
    }
    pump(shared, conn);
}

/// A panic took the connection with it: its socket is closed, what is left is its place.
fn lose<S: Service>(shared: &Shared<S>, home: usize, key: Key) {
    if shared.send_home(home, Message::Lost(key)).is_err() {
        shared.connection_count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Makes the answer: its head into `output`, its body there too or into a transfer.
fn handle<S: Service>(shared: &Shared<S>, conn: &mut Conn, request: Box<Request>) {
    let head = request.head();
    let handled = catch_unwind(AssertUnwindSafe(|| {
        let response = shared.service.handle(&request);
        let body_len = response.body.len();
        (response, body_len)
    }));
    let (response, body_len) = handled.unwrap_or_else(|_panic| {
        shared.service.incident(&Incident::HandlerPanicked { head });
        let response = Response::text(Status::INTERNAL_SERVER_ERROR, "Internal Server Error\n");
        let body_len = response.body.len();
        (response, body_len)
    });
    render(conn, head, response, body_len);
    conn.restart_clock(Instant::now());
    if shared.service.observes() {
        conn.request = Some(request);
    }
}

fn render(conn: &mut Conn, request: Head<'_>, response: Response, body_len: Option<u64>) {
    let version = request.version();
    let Response {
        status,
        fields,
        body,
    } = response;
    let delimiter = match (status.allows_body(), body_len, version) {
        (false, ..) => Delimiter::None,
        (true, Some(len), _) => Delimiter::Length(len),
        (true, None, Version::Http11) => Delimiter::Chunked,
        (true, None, Version::Http10) => Delimiter::Close,
    };
    if delimiter == Delimiter::Close {
        conn.answer.keep = false;
    }
    conn.answer.status = status;
    conn.answer.version = version;
    let out = &mut conn.output;
    let before_len = out.len();
    encode::status_line(out, status);
    out.extend_from_slice(&fields);
    encode::delimiter(out, delimiter);
    encode::finish(
        out,
        version,
        conn.answer.keep,
        httpdate::fmt_http_date(SystemTime::now()).as_bytes(),
    );
    if request.method() == Method::Head || !status.allows_body() {
        return;
    }
    let source: Box<dyn Source> = match body {
        Body::Empty => return,
        Body::Bytes(bytes) if bytes.len() <= INLINE_BODY_LEN => return append(conn, &bytes),
        Body::Shared(bytes) if bytes.len() <= INLINE_BODY_LEN => return append(conn, &bytes),
        Body::Bytes(bytes) => Box::new(Memory { bytes, at: 0 }),
        Body::Shared(bytes) => Box::new(Memory { bytes, at: 0 }),
        Body::Source(_) if body_len == Some(0) => return,
        Body::Source(source) => source,
    };
    conn.transfer = Some(Box::new(Transfer::new(
        source,
        body_len,
        delimiter == Delimiter::Chunked,
        before_len,
    )));
}

/// The answer instead of one whose body failed before any of it had left; `false` if it has.
fn answer_failure(conn: &mut Conn) -> bool {
    const BODY: &[u8] = b"temporarily unavailable, try again\n";
    let Some(transfer) = &conn.transfer else {
        return false;
    };
    if !transfer.recall(&mut conn.output) {
        return false;
    }
    conn.transfer = None;
    conn.answer.status = Status::SERVICE_UNAVAILABLE;
    let out = &mut conn.output;
    encode::status_line(out, conn.answer.status);
    encode::field(out, "Content-Type", b"text/plain");
    encode::field(out, "Retry-After", b"1");
    encode::delimiter(out, Delimiter::Length(BODY.len() as u64));
    encode::finish(
        out,
        conn.answer.version,
        conn.answer.keep,
        httpdate::fmt_http_date(SystemTime::now()).as_bytes(),
    );
    append(conn, BODY);
    true
}

fn append(conn: &mut Conn, bytes: &[u8]) {
    conn.output.extend_from_slice(bytes);
    conn.answer.memory_len = bytes.len() as u64;
}

/// Sends what there is to send and gives the connection away.
fn pump<S: Service>(shared: &Shared<S>, mut conn: Box<Conn>) {
    if shared.is_cut_off.load(Ordering::Acquire) {
        return cut_off(shared, conn);
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| conn.pump(&shared.buffers)))
        .unwrap_or_else(|_panic| Err(std::io::Error::other("body source panicked")));
    let verdict = match outcome {
        Ok(Outcome::Done) => {
            report(shared, &mut conn, true);
            conn.transfer = None;
            Verdict::Answered {
                keep: conn.answer.keep,
            }
        }
        Ok(Outcome::Blocked) => Verdict::Blocked,
        Ok(Outcome::Yield) => {
            // Pumping is always accepted.
            let work = Work::Pump;
            if let Err(job) = shared.queue.push(Job { conn, work }) {
                give_back(shared, job.conn, Verdict::Reset);
            }
            return;
        }
        Err(error) => {
            if !is_peers_doing(&error) {
                shared
                    .service
                    .incident(&Incident::BodyFailed { error: &error });
            }
            if answer_failure(&mut conn) {
                // There is no transfer any more, so this does not come back here.
                return pump(shared, conn);
            }
            fail(shared, &mut conn);
            Verdict::Reset
        }
    };
    give_back(shared, conn, verdict);
}

fn give_back<S: Service>(shared: &Shared<S>, conn: Box<Conn>, verdict: Verdict) {
    let home = conn.home;
    if let Err(Message::Returned(conn, _)) =
        shared.send_home(home, Message::Returned(conn, verdict))
    {
        cut_off(shared, conn);
    }
}

/// There is no I/O thread any more to give a connection back to.
pub(crate) fn cut_off<S: Service>(shared: &Shared<S>, mut conn: Box<Conn>) {
    // First: a report may panic.
    shared.connection_count.fetch_sub(1, Ordering::Relaxed);
    conn.reset_on_close();
    fail(shared, &mut conn);
}

/// A peer that goes away in mid-answer is its own business.
fn is_peers_doing(error: &std::io::Error) -> bool {
    use std::io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::BrokenPipe | Kind::ConnectionReset | Kind::ConnectionAborted
    )
}

/// Gives up an answer under way.
pub(crate) fn fail<S: Service>(shared: &Shared<S>, conn: &mut Conn) {
    report(shared, conn, false);
    conn.transfer = None;
}

/// Tells the service what became of an answer.
pub(crate) fn report<S: Service>(shared: &Shared<S>, conn: &mut Conn, complete: bool) {
    let Some(request) = conn.request.take() else {
        return;
    };
    shared.service.exchanged(&Exchange {
        head: request.head(),
        status: conn.answer.status,
        body_len: conn.sent_body_len(),
        complete,
        duration: conn.answer.started.elapsed(),
    });
}

/// Starts an answer.
pub(crate) fn begin(conn: &mut Conn, keep: bool, now: Instant) {
    conn.answer = Answer {
        status: Status::OK,
        version: Version::Http11,
        keep,
        started: now,
        memory_len: 0,
    };
}

/// Bytes too many to copy behind a head at once.
struct Memory<B> {
    bytes: B,
    at: usize,
}

impl<B: AsRef<[u8]> + Send> Source for Memory<B> {
    fn len(&self) -> Option<u64> {
        Some(self.bytes.as_ref().len() as u64)
    }

    fn pull(&mut self, batch: &mut Batch) -> std::io::Result<Progress> {
        let rest = self.bytes.as_ref().get(self.at..).unwrap_or_default();
        let taken = batch.put(rest);
        self.at += taken;
        Ok(if taken == rest.len() {
            Progress::End
        } else {
            Progress::More
        })
    }
}
