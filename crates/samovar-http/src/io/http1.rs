//! HTTP/1 on an I/O thread: handling of events in each [`Stage`].

use std::io;
use std::time::{Duration, Instant};

use super::context::{Context, GATHER_LEN, LINGER_READ_COUNT, Next, OUT_LEN_KEPT, ReadBuffer};
use super::handshake;
use crate::answer::{answer_inline, last};
use crate::conn::{Conn, Stage, Verdict};
use crate::exec;
use crate::head::Head;
use crate::http::Method;
use crate::jobs::Job;
use crate::limits::Limits;
use crate::observer::{End, Incident, Tag};
use crate::proto::Refusal;
use crate::proto::conn::{Phase, Step};
use crate::proto::head::Framing;
use crate::request::Request;
use crate::response::{Outcome, Reply, Turn};
use crate::service::{Intake, Service};
use crate::sys::Edges;

/// Handles a connection that a worker has returned. `edges`: events since the connection moved
/// to the worker.
pub(super) fn on_return<S: Service>(
    cx: &mut Context<S>,
    conn: &mut Conn,
    verdict: Verdict,
    edges: Edges,
) -> Next {
    match verdict {
        Verdict::Reset => {
            conn.transport.reset_on_close();
            Next::Close
        }
        Verdict::SentBack => on_sent_back(cx, conn),
        // The socket may have become writable while the worker had the connection.
        Verdict::Blocked if edges.writable => send_more(cx, conn),
        Verdict::Blocked => {
            conn.forgive(cx.now);
            Next::Wait
        }
        Verdict::Waiting => {
            conn.enter(Stage::Waiting);
            wait_on(cx, conn, edges)
        }
        Verdict::Handshake(handshake) => handshake::on_return(cx, conn, handshake, edges),
        Verdict::Answered => {
            conn.restart_clock(cx.now);
            answered(conn, conn.answer.keep, cx.drain.is_some());
            go_on(cx, conn)
        }
    }
}

pub(super) fn step<S: Service>(cx: &mut Context<S>, conn: &mut Conn, edges: Edges) -> Next {
    match conn.stage() {
        Stage::Handshake => handshake::on_event(edges),
        Stage::Lingering => linger(conn, &mut cx.read_buffer),
        Stage::Waiting => wait_on(cx, conn, edges),
        Stage::Receiving | Stage::Answering if !conn.is_sending() => go_on(cx, conn),
        Stage::Receiving | Stage::Answering if edges.writable => send_more(cx, conn),
        Stage::Receiving | Stage::Answering => Next::Wait,
    }
}

/// Handles events while the response waits for the application.
fn wait_on<S: Service>(cx: &mut Context<S>, conn: &mut Conn, edges: Edges) -> Next {
    // Check the socket as well as `edges`: the client may have disconnected before the wait
    // started.
    // A client that only ends its side still gets what a reader yields soon; see
    // `Overdue::Left`.
    let may_half_close = cx.shared.limits.half_close || conn.is_filling;
    if edges.hung_up || !may_half_close && conn.is_at_end() {
        return fail(cx, conn, End::Left);
    }
    if edges.ended {
        // Unread requests delay the abort by one `stall_time`; see `Overdue::Left`.
        conn.restart_clock(cx.now);
    }
    if edges.writable && conn.flush().is_err() {
        return fail(cx, conn, End::Left);
    }
    if edges.woken && !conn.is_filling {
        conn.enter(Stage::Answering);
        // The I/O thread can send a response in memory without a worker.
        if exec::render_deferred(&cx.shared.core, conn, cx.now) {
            return send_more(cx, conn);
        }
        return Next::Pump;
    }
    Next::Wait
}

/// Sends more of a response that the socket did not accept at once.
pub(super) fn send_more<S: Service>(cx: &mut Context<S>, conn: &mut Conn) -> Next {
    if conn.transfer.is_some() {
        // The transfer sends `output` itself, because unsent parts of the body may have to
        // precede it.
        return Next::Pump;
    }
    match conn.flush() {
        Err(_) => fail(cx, conn, End::Left),
        Ok(false) => Next::Wait,
        Ok(true) if conn.stage() == Stage::Answering => {
            // The socket has now accepted the rest of a worker's response whose body was in
            // memory, so that it needed no transfer.
            exec::report(&cx.shared, conn, End::Complete);
            answered(conn, conn.answer.keep, cx.drain.is_some());
            go_on(cx, conn)
        }
        Ok(true) => go_on(cx, conn),
    }
}

/// Handles the input that an earlier turn has left, then reads from the socket.
pub(super) fn go_on<S: Service>(cx: &mut Context<S>, conn: &mut Conn) -> Next {
    if conn.upgrade.is_some() {
        return Next::OpenSocket;
    }
    if conn.proto.phase() == Phase::Closed {
        return finish(conn, cx.now, &mut cx.read_buffer);
    }
    if !conn.input.is_empty() {
        // The input was read in an earlier turn. Data that was current in that turn may be
        // outdated now.
        cx.turn += 1;
        if let Some(next) = serve_input(cx, conn) {
            return next;
        }
    }
    read(cx, conn)
}

fn read<S: Service>(cx: &mut Context<S>, conn: &mut Conn) -> Next {
    if !conn.readable {
        return Next::Wait;
    }
    let mut buffer = cx.read_buffer.take();
    let next = match conn.read(&mut buffer) {
        Ok(Some(len)) if len > 0 => {
            cx.turn += 1;
            serve_read(cx, conn, &buffer[..len])
        }
        outcome => on_nothing(conn, outcome),
    };
    cx.read_buffer.put(buffer);
    next
}

/// Handles a read that has returned no bytes.
pub(super) fn on_nothing(conn: &mut Conn, outcome: io::Result<Option<usize>>) -> Next {
    match outcome {
        Ok(None) => Next::Wait,
        // The client has disconnected between requests or in the middle of one.
        Ok(Some(_)) => {
            conn.transport.say_goodbye();
            Next::Close
        }
        Err(_) => Next::Close,
    }
}

/// Handles bytes that were just read from the connection.
pub(super) fn serve_read<S: Service>(cx: &mut Context<S>, conn: &mut Conn, bytes: &[u8]) -> Next {
    let served = if conn.input.is_empty() {
        serve(cx, conn, bytes)
    } else {
        conn.input.extend_from_slice(bytes);
        serve_input(cx, conn)
    };
    served.unwrap_or(if conn.readable {
        Next::Again
    } else {
        Next::Wait
    })
}

fn serve_input<S: Service>(cx: &mut Context<S>, conn: &mut Conn) -> Option<Next> {
    let input = std::mem::take(&mut conn.input);
    serve(cx, conn, &input)
}

/// Responds to the requests in `input`; an incomplete request stays in `conn.input`. Returns
/// `None` if more input must be read.
// Long: a loop over the requests of one read with all steps of the protocol.
fn serve<S: Service>(cx: &mut Context<S>, conn: &mut Conn, input: &[u8]) -> Option<Next> {
    let mut at = 0;
    let request = loop {
        // `advance` consumes no more than `rest`, so `at` stays within `input`.
        let rest = &input[at..];
        let (taken, step) = conn.proto.advance(
            rest,
            &cx.shared.limits.head,
            conn.body_len_max,
            &mut cx.index,
        );
        let consumed = &rest[..taken];
        at += taken;
        match step {
            Step::Head => {
                conn.has_partial_head = false;
                // A client that requested `Connection: close` sends nothing after its request.
                conn.needs_linger = cx.index.keep_alive;
                conn.restart_clock(cx.now);
                if let Some(request) = on_head(cx, conn, consumed, at < input.len()) {
                    break Some(request);
                }
            }
            Step::Data => {
                if let Some(request) = &mut conn.request
                    && !request.add_body(consumed, &cx.shared.request_memory)
                {
                    conn.proto.close_after();
                    conn.proto.answered(false);
                    refuse(cx, conn, Refusal::BodyMemory);
                    break None;
                }
            }
            Step::BodyEnd => break conn.request.take(),
            Step::Framing => {}
            Step::Refused(refusal) => {
                refuse(cx, conn, refusal);
                break None;
            }
            Step::Http2 => {
                if cfg!(feature = "http2") && conn.answered_count == 0 {
                    conn.input.extend_from_slice(rest);
                    return Some(Next::Http2);
                }
                conn.proto.close_after();
                refuse(cx, conn, Refusal::HttpVersion);
                break None;
            }
            Step::NeedMore | Step::Paused | Step::Closed => break None,
        }
        if cx.out.len() >= GATHER_LEN {
            match flush_out(conn, &mut cx.out) {
                Ok(true) => {}
                // The client does not read, so the following requests wait.
                Ok(false) => break None,
                Err(_) => return Some(Next::Close),
            }
        }
    };
    let rest = &input[at..];
    if !rest.is_empty() {
        conn.input.extend_from_slice(rest);
    }
    if !rest.is_empty() && !conn.has_partial_head && conn.proto.phase() == Phase::Head {
        conn.has_partial_head = true;
        conn.restart_clock(cx.now);
    }
    proceed(cx, conn, request)
}

/// Sends the gathered responses, and passes on the request for a worker, if there is one. Returns
/// `None` if more input must be read.
fn proceed<S: Service>(
    cx: &mut Context<S>,
    conn: &mut Conn,
    request: Option<Box<Request>>,
) -> Option<Next> {
    match (flush_out(conn, &mut cx.out), request) {
        (Err(_), _) => Some(Next::Close),
        (Ok(_), Some(request)) => {
            let keep = allows_keep(conn, &cx.shared.limits, cx.drain.is_some());
            conn.start_answer(request.lane, keep, cx.now);
            Some(Next::Handle(request))
        }
        (Ok(false), None) => Some(Next::Wait),
        (Ok(true), None) if conn.proto.phase() == Phase::Closed => {
            Some(finish(conn, cx.now, &mut cx.read_buffer))
        }
        (Ok(true), None) => None,
    }
}

/// Handles a request head. Either sends the response and returns `None`, or returns the request
/// for a worker. If the body must be received first, stores the request and returns `None`.
fn on_head<S: Service>(
    cx: &mut Context<S>,
    conn: &mut Conn,
    raw: &[u8],
    has_more_input: bool,
) -> Option<Box<Request>> {
    let has_lapsed = conn
        .session
        .as_ref()
        .is_some_and(|session| session.has_lapsed());
    let shared = &*cx.shared;
    let is_draining = cx.drain.is_some();
    let keep =
        conn.proto.may_keep() && allows_keep(conn, &shared.limits, is_draining) && !has_lapsed;
    let head = Head::new(raw, &cx.index, conn.peer, conn.session.as_ref());
    let reply = Reply {
        out: &mut cx.out,
        version: head.version(),
        keep,
        is_head: head.method() == Method::Head,
        date: cx.date.text(),
        lines: &[],
        tag: None,
    };
    let (local, turn) = (&mut cx.local, Turn(cx.turn));
    let mut tag = Tag::default();
    let outcome = answer_inline(&shared.service, local, turn, cx.now, head, reply, &mut tag);
    match outcome {
        Outcome::Sent(..) => {
            conn.needs_linger |= conn.proto.has_body();
            answered(conn, keep, is_draining);
            None
        }
        Outcome::Dispatch(place) => {
            let request = Box::new(Request::of(head, place, tag));
            await_body(cx, conn, request, has_more_input)
        }
    }
}

/// Returns a request that the service has declined inline, for a worker. If its body must be
/// received first, stores the request and returns `None`.
fn await_body<S: Service>(
    cx: &mut Context<S>,
    conn: &mut Conn,
    mut request: Box<Request>,
    has_more_input: bool,
) -> Option<Box<Request>> {
    if !conn.proto.has_body() {
        return Some(request);
    }
    let head = request.head();
    let intake = cx.shared.service.intake(head);
    conn.body_len_max = intake.len_max();
    let fits = match head.index.framing {
        Framing::Length(len) => len <= conn.body_len_max,
        // The length is unknown, so the limit is checked while the body arrives.
        Framing::Chunked | Framing::None => true,
    };
    request.is_inline = matches!(intake, Intake::Inline(_));
    if fits && matches!(intake, Intake::Streamed(_)) {
        return Some(request);
    }
    conn.request = Some(request);
    // RFC 9110, 10.1.1: no 100 if part of the body has arrived, or if the body will be refused.
    if conn.proto.take_expect_continue() && !has_more_input && fits {
        cx.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
    }
    None
}

/// Decides again about a request that a handler has sent back.
fn on_sent_back<S: Service>(cx: &mut Context<S>, conn: &mut Conn) -> Next {
    let Some(mut request) = conn.request.take() else {
        return Next::Close;
    };
    conn.enter(Stage::Receiving);
    conn.restart_clock(cx.now);
    cx.turn += 1;
    let head = request.head();
    let has_lapsed = head.session.is_some_and(|session| session.has_lapsed());
    let shared = &*cx.shared;
    let is_draining = cx.drain.is_some();
    let keep =
        conn.proto.may_keep() && allows_keep(conn, &shared.limits, is_draining) && !has_lapsed;
    let reply = Reply {
        out: &mut cx.out,
        version: head.version(),
        keep,
        is_head: head.method() == Method::Head,
        date: cx.date.text(),
        lines: &[],
        tag: None,
    };
    let (local, turn) = (&mut cx.local, Turn(cx.turn));
    let mut tag = Tag::default();
    let outcome = answer_inline(&shared.service, local, turn, cx.now, head, reply, &mut tag);
    let request = match outcome {
        Outcome::Sent(..) => {
            conn.needs_linger |= conn.proto.has_body();
            answered(conn, keep, is_draining);
            None
        }
        Outcome::Dispatch(place) => {
            request.place(place, tag);
            let has_more_input = !conn.input.is_empty();
            await_body(cx, conn, request, has_more_input)
        }
    };
    let next = proceed(cx, conn, request);
    // Also without input: a body that is too long is refused.
    let next = next.or_else(|| serve_input(cx, conn));
    next.unwrap_or_else(|| read(cx, conn))
}

/// Returns whether the server allows the connection to stay open.
fn allows_keep(conn: &Conn, limits: &Limits, is_draining: bool) -> bool {
    let max = limits.requests_per_connection_max;
    !is_draining && limits.idle_time > Duration::ZERO && (max == 0 || conn.answered_count + 1 < max)
}

/// Starts to wait for the next request after a response.
fn answered(conn: &mut Conn, keep: bool, is_draining: bool) {
    conn.enter(Stage::Receiving);
    conn.proto.answered(keep);
    conn.answered_count += 1;
    if is_draining {
        conn.proto.close_after();
    }
}

pub(super) fn refuse<S: Service>(cx: &mut Context<S>, conn: &mut Conn, refusal: Refusal) {
    let mut request = conn.request.take();
    let head = request.as_ref().map(|request| request.head());
    cx.refused(conn.peer, head, refusal);
    let is_head = head.is_some_and(|head| head.method() == Method::Head);
    conn.needs_linger = true;
    let reply = last(&mut cx.out, is_head, &cx.date);
    let (service, request) = (&cx.shared.service, request.as_deref_mut());
    reply.refuse(service, request, refusal.status(), refusal.to_string());
}

/// Refuses a job that does not fit into the queue. Returns its connection and the next step;
/// `None` for jobs that are not refused here.
pub(super) fn refuse_overload<S: Service>(
    cx: &mut Context<S>,
    job: Job,
) -> Option<(Box<Conn>, Next)> {
    cx.incident(&Incident::WorkersFull);
    let (mut conn, mut request) = match job {
        Job::Handle(conn, request) => (conn, request),
        // Without a TLS session no response can be sent.
        Job::Handshake(conn) => return Some((conn, Next::Close)),
        // These jobs are never refused here: the queue accepts them, or their callers handle
        // the refusal.
        _ => return None,
    };
    conn.needs_linger |= conn.proto.has_body();
    answered(&mut conn, false, cx.drain.is_some());
    let is_head = request.head().method() == Method::Head;
    let reply = last(&mut conn.output, is_head, &cx.date);
    reply.overload(&cx.shared.service, Some(&mut request));
    let next = send_more(cx, &mut conn);
    Some((conn, next))
}

/// Sends the gathered responses in `out`; `conn.output` keeps what the socket does not accept.
pub(super) fn flush_out(conn: &mut Conn, out: &mut Vec<u8>) -> io::Result<bool> {
    let mut sent = 0;
    if conn.output.is_empty() {
        let outcome = conn.transport.send_all(out);
        sent = outcome.inspect_err(|_| out.clear())?;
    }
    conn.output.extend_from_slice(&out[sent..]);
    out.clear();
    out.shrink_to(OUT_LEN_KEPT);
    Ok(conn.output.is_empty() && conn.transport.flush()?)
}

/// Finishes a connection after the kernel has accepted the last response.
///
/// If a socket is closed with unread bytes, the kernel sends RST, which can destroy the
/// response before the client has read it (RFC 9112, 9.6). So if there may be unread bytes,
/// only the sending side is shut down, and received bytes are discarded until the client closes
/// or `linger_time` has passed.
pub(super) fn finish(conn: &mut Conn, now: Instant, buffer: &mut ReadBuffer) -> Next {
    if !conn.needs_linger && conn.input.is_empty() && !conn.readable {
        conn.transport.say_goodbye();
        return Next::Close;
    }
    if conn.transport.shutdown_write().is_err() {
        return Next::Close;
    }
    conn.enter(Stage::Lingering);
    conn.input = Vec::new();
    conn.restart_clock(now);
    linger(conn, buffer)
}

/// Discards received bytes until `linger_time` has passed. Many clients read no byte of a response
/// before they have written their whole request, so a limit of bytes would end their connections.
pub(super) fn linger(conn: &mut Conn, buffer: &mut ReadBuffer) -> Next {
    for _ in 0..LINGER_READ_COUNT {
        if !conn.readable {
            return Next::Wait;
        }
        if matches!(conn.read(buffer.get()), Ok(Some(0)) | Err(_)) {
            return Next::Close;
        }
    }
    Next::Again
}

pub(super) fn fail<S: Service>(cx: &mut Context<S>, conn: &mut Conn, end: End) -> Next {
    let transfer = exec::fail(&cx.shared, conn, end);
    cx.discard(transfer);
    Next::Close
}
