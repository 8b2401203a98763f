//! Running handlers and sending their answers.
//!
//! A worker writes the answer to the socket itself and goes on with the body until the socket takes
//! no more. Then the connection goes home; its I/O thread sends it back here when there is room.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

use super::lane::Lane;
use super::queue::Job;
use crate::body::{Batch, Framing, Outcome, Progress, Source, Transfer};
use crate::channel::Producer;
#[cfg(feature = "compression")]
use crate::compress;
use crate::head::Head;
use crate::http::{Method, Status, Version};
use crate::io::answer::{http_date, refusal};
use crate::io::conn::{Answer, Conn};
use crate::io::inbox::{Message, Verdict};
use crate::io::slab::Key;
#[cfg(feature = "http2")]
use crate::io::stream::{Place, StreamNews, StreamWork};
use crate::io::wake::Waker;
use crate::later::Later;
use crate::observer::{End, Exchange, Incident};
use crate::proto::encode::{self, Delimiter};
use crate::request::{Link, Request};
use crate::response::{Body, Response};
use crate::server::{Core, Shared};
use crate::service::Service;
use crate::upload::Upload;
use crate::ws::Socket;

/// Bodies up to this length are copied behind their head and leave in the same write.
const INLINE_BODY_LEN: usize = 64 * 1024;

/// Works until it is not needed any more.
pub(crate) fn run<S: Service>(shared: &Shared<S>) {
    let mut finished = None;
    while let Some(job) = shared.queue.pop(finished) {
        finished = Some(job.lane());
        let origin = Origin::of(&job);
        // Handlers and sources have their own nets. This one is for what is left of an
        // application: its reports, and the dropping of its values.
        if catch_unwind(AssertUnwindSafe(|| work(shared, job))).is_err() {
            match origin {
                Origin::None => {}
                Origin::Conn(home, key) => lose(shared, (home, key)),
                #[cfg(feature = "http2")]
                Origin::Stream(place, true) => place.send(&shared.core, StreamNews::HandlerLost),
                #[cfg(feature = "http2")]
                Origin::Stream(place, false) => place.send(&shared.core, StreamNews::BodyFailed),
            }
        }
    }
}

/// Who has to hear of it if a job is lost.
enum Origin {
    None,
    Conn(usize, Key),
    /// And whether the job was a handler.
    #[cfg(feature = "http2")]
    Stream(Place, bool),
}

impl Origin {
    fn of(job: &Job) -> Self {
        match job {
            Job::Handle(conn, _) | Job::Pump(conn) => Self::Conn(conn.home, conn.key),
            #[cfg(feature = "tls")]
            Job::Handshake(conn) => Self::Conn(conn.home, conn.key),
            Job::Events(_) | Job::Discard(_) => Self::None,
            #[cfg(feature = "http2")]
            Job::Stream(job) => Self::Stream(job.place, matches!(job.work, StreamWork::Handle(_))),
        }
    }
}

fn work<S: Service>(shared: &Shared<S>, job: Job) {
    match job {
        Job::Handle(conn, request) => handle(shared, conn, request),
        Job::Pump(mut conn) => {
            if let Some(later) = conn.later.take() {
                return fulfil(shared, conn, later);
            }
            pump(shared, conn);
        }
        #[cfg(feature = "tls")]
        Job::Handshake(conn) => super::handshake::shake(shared, conn),
        Job::Discard(rest) => drop(rest),
        Job::Events(socket) => handle_events(shared, socket),
        #[cfg(feature = "http2")]
        Job::Stream(job) => super::stream::work(shared, *job),
    }
}

/// Hands a share of a WebSocket's events to its handler.
fn handle_events<S: Service>(shared: &Shared<S>, socket: Socket) {
    let peer = socket.peer();
    let on_panic = || {
        let incident = Incident::SocketHandlerPanicked { peer };
        shared.service.observer().incident(&incident);
    };
    if socket.handle_events(on_panic) {
        // Events are always accepted.
        drop(shared.queue.push(Job::Events(socket)));
        shared.queue.wake();
    }
}

/// A panic took the connection with it: its socket is closed, what is left is its place.
fn lose<S: Service>(shared: &Shared<S>, (home, key): (usize, Key)) {
    if shared.send_home(home, Message::Lost(key)).is_err() {
        shared.connection_count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs the handler and begins its answer.
pub(crate) fn handle<S: Service>(shared: &Shared<S>, conn: Box<Conn>, mut request: Box<Request>) {
    let place = (conn.home, conn.key);
    request.link = Link::Http1(Box::new(Upload::new(conn, &shared.core)));
    let handled = catch_unwind(AssertUnwindSafe(|| {
        let response = shared.service.handle(&mut request);
        let body_len = response.body.len();
        (response, body_len)
    }));
    let Some(conn) = request.take_conn() else {
        // A handler has swapped its request for another one.
        return lose(shared, place);
    };
    if let Ok((response, _)) = &handled
        && let Some(lane) = response.again
    {
        return handle_again(shared, conn, request, lane);
    }
    begin_answer(shared, conn, request, handled);
}

/// Leaves the request to another lane.
fn handle_again<S: Service>(
    shared: &Shared<S>,
    mut conn: Box<Conn>,
    mut request: Box<Request>,
    lane: Lane,
) {
    request.lane = lane;
    conn.answer.lane = lane;
    match shared.queue.push(Job::Handle(conn, request)) {
        Ok(()) => shared.queue.wake(),
        Err(Job::Handle(conn, request)) => {
            shared.service.observer().incident(&Incident::WorkersFull);
            let response = overload(&shared.service);
            let body_len = response.body.len();
            begin_answer(shared, conn, request, Ok((response, body_len)));
        }
        // What comes back is what was pushed.
        Err(_) => {}
    }
}

/// The answer to what no lane has room for.
pub(super) fn overload(service: &impl Service) -> Response {
    let text = "temporarily unavailable, try again";
    refusal(service, Status::SERVICE_UNAVAILABLE, text.into())
}

/// What a handler came to: its response, and the length of its body; or a panic.
type Handled = std::thread::Result<(Response, Option<u64>)>;

fn begin_answer<S: Service>(
    shared: &Shared<S>,
    mut conn: Box<Conn>,
    request: Box<Request>,
    handled: Handled,
) {
    let head = request.head();
    let (mut response, body_len) = handled.unwrap_or_else(|_panic| panicked(shared, head));
    conn.answer.version = head.version();
    conn.answer.is_head = head.method() == Method::Head;
    conn.answer.takes_trailers = head.takes_trailers();
    #[cfg(feature = "compression")]
    {
        let negotiator = shared.compression.as_ref();
        conn.answer.coding = negotiator.and_then(|negotiator| negotiator.coding(head));
    }
    conn.restart_clock(Instant::now());
    if shared.service.observer().observes() {
        conn.request = Some(request);
    }
    if let Some(later) = response.later.take() {
        return fulfil(shared, conn, later);
    }
    answer(shared, conn, response, body_len);
}

/// Begins the answer, and writes the body if that is ours to do.
fn answer<S: Service>(
    shared: &Shared<S>,
    mut conn: Box<Conn>,
    mut response: Response,
    body_len: Option<u64>,
) {
    let (producer, lane) = (response.producer.take(), conn.answer.lane);
    let (response, body_len) = negotiated(&shared.core, &conn.answer, response, body_len);
    // RFC 9112, 9.6: a client must not send its next request on a connection that is about to end.
    conn.answer.keep &= !shared.is_draining.load(Ordering::Relaxed);
    render(&mut conn, response, body_len);
    pump(shared, conn);
    if let Some(producer) = producer {
        produce(shared, producer, lane);
    }
}

pub(super) fn panicked<S: Service>(shared: &Shared<S>, head: Head<'_>) -> (Response, Option<u64>) {
    let incident = Incident::HandlerPanicked { head };
    shared.service.observer().incident(&incident);
    let status = Status::INTERNAL_SERVER_ERROR;
    let response = refusal(&shared.service, status, status.reason().into());
    let body_len = response.body.len();
    (response, body_len)
}

/// Writes the body that others are sending by now. A panic leaves it unfinished.
pub(super) fn produce<S: Service>(shared: &Shared<S>, producer: Producer, lane: Lane) {
    drop(catch_unwind(AssertUnwindSafe(|| {
        producer.run(&shared.core.queue, lane);
    })));
}

/// Gives the promised answer, if it is there by now.
fn fulfil<S: Service>(shared: &Shared<S>, mut conn: Box<Conn>, later: Arc<Later>) {
    if shared.is_cut_off.load(Ordering::Acquire) {
        later.abandon();
        return cut_off(shared, conn);
    }
    match later.take_if(|_| true) {
        Some(mut response) => {
            // A promise of a promise is not one.
            response.later = None;
            let body_len = response.body.len();
            conn.restart_clock(Instant::now());
            answer(shared, conn, response, body_len);
        }
        None => {
            let waker = Waker::new(&shared.core, conn.home, conn.key);
            conn.later = Some(Arc::clone(&later));
            // What was said before, such as an interim response. An error will show again.
            drop(conn.flush());
            give_back(shared, conn, Verdict::Waiting);
            // The connection goes before whatever wakes it, so nobody has to be woken for both.
            later.watch(waker);
        }
    }
}

/// Makes a promised answer that is in memory and small, which an I/O thread can send by itself.
/// `false` if it is not so, or not there.
pub(crate) fn make_promised(core: &Core, conn: &mut Conn, now: Instant) -> bool {
    #[cfg(feature = "compression")]
    if core.compression.is_some() {
        return false;
    }
    let fits = |response: &Response| {
        let is_small = |len| len <= INLINE_BODY_LEN as u64;
        response.is_in_memory()
            && response.body.len().is_some_and(is_small)
            && response.producer.is_none()
            && !response.has_trailers
    };
    let Some(response) = conn.later.as_ref().and_then(|later| later.take_if(fits)) else {
        return false;
    };
    conn.later = None;
    conn.answer.keep &= !core.is_draining.load(Ordering::Relaxed);
    conn.restart_clock(now);
    let body_len = response.body.len();
    render(conn, response, body_len);
    true
}

/// The response in the form the peer wants it most.
fn negotiated(
    core: &Core,
    answer: &Answer,
    response: Response,
    body_len: Option<u64>,
) -> (Response, Option<u64>) {
    #[cfg(feature = "compression")]
    if let Some(negotiator) = &core.compression {
        let (coding, version) = (answer.coding, answer.version);
        return compress::negotiate(negotiator, coding, version, response, body_len);
    }
    let _unused = (core, answer);
    (response, body_len)
}

/// Makes the answer: its head into `output`, its body there too or into a transfer.
fn render(conn: &mut Conn, response: Response, body_len: Option<u64>) {
    // Empty, and not without a length: a 205 says that nothing follows (RFC 9110, 15.3.6).
    let (response, body_len) = if response.status == Status::RESET_CONTENT {
        (
            Response {
                body: Body::Empty,
                has_trailers: false,
                ..response
            },
            Some(0),
        )
    } else {
        (response, body_len)
    };
    let Response {
        status,
        fields,
        body,
        has_trailers,
        upgrade,
        ..
    } = response;
    let version = conn.answer.version;
    let has_trailers = has_trailers && conn.answer.takes_trailers;
    let (delimiter, framing) = match (body_len, version) {
        (Some(len), _) if !has_trailers => (Delimiter::Length(len), Framing::Length(len)),
        (_, Version::Http11 | Version::Http2) => {
            (Delimiter::Chunked, Framing::Chunked { has_trailers })
        }
        (_, Version::Http10) => (Delimiter::Close, Framing::Close),
    };
    // The handler may have read the rest of the request.
    conn.answer.keep &= conn.proto.may_keep();
    if delimiter == Delimiter::Close {
        conn.answer.keep = false;
    }
    // What follows 101 is no HTTP, so nothing is said about its end.
    conn.answer.keep |= upgrade.is_some();
    conn.upgrade = upgrade;
    conn.answer.status = status;
    let has_body = status.allows_body();
    let out = &mut conn.output;
    let before_len = out.len();
    encode::status_line(out, status);
    out.extend_from_slice(&fields);
    encode::delimiter(out, if has_body { delimiter } else { Delimiter::None });
    encode::finish(
        out,
        version,
        conn.answer.keep,
        http_date(SystemTime::now()).as_bytes(),
    );
    if conn.answer.is_head || !has_body {
        return;
    }
    let is_plain = matches!(framing, Framing::Length(_));
    let source: Box<dyn Source> = match body {
        Body::Empty if is_plain => return,
        Body::Bytes(bytes) if is_plain && bytes.len() <= INLINE_BODY_LEN => {
            return append(conn, &bytes);
        }
        Body::Shared(bytes) if is_plain && bytes.len() <= INLINE_BODY_LEN => {
            return append(conn, &bytes);
        }
        Body::Empty => Box::new(Memory { bytes: [], at: 0 }),
        Body::Bytes(bytes) => Box::new(Memory { bytes, at: 0 }),
        Body::Shared(bytes) => Box::new(Memory { bytes, at: 0 }),
        Body::Source(_) if is_plain && body_len == Some(0) => return,
        Body::Source(source) => source,
    };
    conn.transfer = Some(Box::new(Transfer::new(source, framing, before_len)));
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
        http_date(SystemTime::now()).as_bytes(),
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
    let outcome = catch_unwind(AssertUnwindSafe(|| conn.pump(&shared.core)))
        .unwrap_or_else(|_panic| Err(std::io::Error::other("body source panicked")));
    let verdict = match outcome {
        Ok(Outcome::Done) => {
            report(shared, &mut conn, End::Complete);
            conn.transfer = None;
            Verdict::Answered {
                keep: conn.answer.keep,
            }
        }
        Ok(Outcome::Blocked) => Verdict::Blocked,
        Ok(Outcome::Waiting) => Verdict::Waiting,
        Ok(Outcome::Yield) => {
            // Pumping is always accepted.
            drop(shared.queue.push(Job::Pump(conn)));
            return shared.queue.wake();
        }
        Err(error) => {
            let is_cut_off = !answer_failure(&mut conn);
            report_failure(shared, &error, is_cut_off);
            if !is_cut_off {
                // There is no transfer any more, so this does not come back here.
                return pump(shared, conn);
            }
            let end = match is_peers_doing(&error) {
                true => End::Left,
                false => End::Cut,
            };
            drop(fail(shared, &mut conn, end));
            Verdict::Reset
        }
    };
    give_back(shared, conn, verdict);
}

pub(super) fn give_back<S: Service>(shared: &Shared<S>, conn: Box<Conn>, verdict: Verdict) {
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
    drop(fail(shared, &mut conn, End::Cut));
}

/// Tells the service that a body failed.
pub(super) fn report_failure<S: Service>(
    shared: &Shared<S>,
    error: &std::io::Error,
    is_cut_off: bool,
) {
    if !is_peers_doing(error) {
        let observer = shared.service.observer();
        observer.incident(&Incident::BodyFailed { error, is_cut_off });
    }
}

/// A peer that goes away in mid-answer is its own business.
pub(super) fn is_peers_doing(error: &std::io::Error) -> bool {
    use std::io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::BrokenPipe | Kind::ConnectionReset | Kind::ConnectionAborted
    )
}

/// Gives up an answer under way. What is left of it is returned: to let go of it may block.
pub(crate) fn fail<S: Service>(
    shared: &Shared<S>,
    conn: &mut Conn,
    end: End,
) -> Option<Box<Transfer>> {
    if let Some(later) = conn.later.take() {
        later.abandon();
    }
    report(shared, conn, end);
    conn.transfer.take()
}

/// Tells the service what became of an answer.
pub(crate) fn report<S: Service>(shared: &Shared<S>, conn: &mut Conn, end: End) {
    let Some(request) = conn.request.take() else {
        return;
    };
    shared.service.observer().exchanged(&Exchange {
        head: request.head(),
        status: conn.answer.status,
        body_len: conn.sent_body_len(),
        end,
        is_inline: request.is_inline,
        duration: conn.answer.started.elapsed(),
    });
}

/// Starts an answer.
pub(crate) fn begin(conn: &mut Conn, lane: Lane, keep: bool, now: Instant) {
    conn.is_answering = true;
    conn.answer = Answer {
        lane,
        status: Status::OK,
        version: Version::Http11,
        is_head: false,
        takes_trailers: false,
        #[cfg(feature = "compression")]
        coding: None,
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
