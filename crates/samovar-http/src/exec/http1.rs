//! HTTP/1 connections as carriers of exchanges.
//!
//! A worker writes the response directly to the socket and continues with the body until the socket
//! buffer is full. If no other job needs the worker's slot, it waits for a short time until the
//! socket is writable. Otherwise, and if the client is slower, the connection moves back to its I/O
//! thread, which queues it for a worker again once the socket is writable.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::exchange::{
    Carrier, finish_head, is_disconnect, remove_reset_content, report_failure, unavailable,
};
use super::lent::lend_slot_to_read;
use super::upload::Upload;
use crate::body::{Framing, Outcome, Transfer};
#[cfg(feature = "compression")]
use crate::compress;
use crate::conn::{Conn, Message, Preferences, Verdict};
use crate::core::{Core, Shared};
use crate::http::Version;
use crate::jobs::{Job, has_slot};
use crate::net::key::Key;
use crate::observer::{End, Exchange};
use crate::proto::encode::{self, Delimiter};
use crate::request::Request;
use crate::response::{Later, Response};
use crate::service::Service;

/// Time for which a worker waits for a client whose socket buffer is full, if no other job needs
/// its slot. Passing the connection to its I/O thread and back costs two wake-ups of threads, which
/// is more than most waits.
const WAIT_TIME: Duration = Duration::from_millis(2);

/// Maximum length of a body that is copied after its head and sent in the same write, in bytes.
const INLINE_BODY_LEN: usize = 64 * 1024;

impl Carrier for Box<Conn> {
    fn lend<S: Service, R>(
        self,
        shared: &Shared<S>,
        request: &mut Request,
        handler: impl FnOnce(&mut Request) -> R,
    ) -> Option<(Self, R)> {
        let (home, key) = (self.home, self.key);
        request.link = Some(Box::new(Upload::new(self, &shared.core)));
        let handled = handler(request);
        let conn = request.link.take().and_then(Upload::take_conn);
        if conn.is_none() {
            // The handler has swapped its request for another one, so the connection is lost.
            lose(shared, (home, key));
        }
        Some((conn?, handled))
    }

    fn requeue(mut self, request: Box<Request>) -> Job {
        self.answer.lane = request.lane;
        Job::Handle(self, request)
    }

    fn refused(job: Job) -> Option<(Self, Box<Request>)> {
        match job {
            Job::Handle(conn, request) => Some((conn, request)),
            _ => None,
        }
    }

    fn send_back<S: Service>(mut self, shared: &Shared<S>, request: Box<Request>) {
        self.request = Some(request);
        give_back(shared, self, Verdict::SentBack);
    }

    fn begin(&mut self, preferences: Preferences, request: Option<Box<Request>>) {
        self.answer.preferences = preferences;
        self.request = request;
    }

    fn preferences(&self) -> Preferences {
        self.answer.preferences
    }

    fn answer<S: Service>(mut self, shared: &Shared<S>, response: Response) {
        self.restart_clock(Instant::now());
        render(&shared.core, &mut self, response);
        pump(shared, self);
    }

    fn park<S: Service>(mut self, shared: &Shared<S>, later: Arc<Later>) {
        let waker = shared.core.waker(self.home, self.key);
        self.restart_clock(Instant::now());
        self.later = Some(Arc::clone(&later));
        // Send pending interim responses before the wait. An error is ignored here, because the
        // next write reports it again.
        drop(self.flush());
        give_back(shared, self, Verdict::Waiting);
        // Return the connection before the waker can be called: a single wake-up of the I/O thread
        // then covers both the return and the complete response.
        later.watch(waker);
    }
}

/// Renders a deferred response that is short and in memory, so that the I/O thread can send it
/// without a worker. Returns `false` if the response is longer, is not in memory, may have to be
/// compressed, or is not complete yet.
pub(crate) fn render_deferred(core: &Core, conn: &mut Conn, now: Instant) -> bool {
    #[cfg(feature = "compression")]
    let may_be_compressed = |response: &Response| {
        conn.answer.preferences.may_compress && compress::concerns(response, false)
    };
    #[cfg(not(feature = "compression"))]
    let may_be_compressed = |_: &Response| false;
    let fits = |response: &Response| {
        let is_small = |len| len <= INLINE_BODY_LEN as u64;
        response.is_in_memory()
            && response.body_len.is_some_and(is_small)
            && !may_be_compressed(response)
    };
    let Some(response) = conn.later.as_ref().and_then(|later| later.take_if(fits)) else {
        return false;
    };
    conn.later = None;
    conn.restart_clock(now);
    render(core, conn, response);
    true
}

/// Renders the response: its head into `output`, a short body also into `output`, a long one into a
/// transfer.
fn render(core: &Core, conn: &mut Conn, mut response: Response) {
    remove_reset_content(&mut response);
    let Response {
        status,
        fields,
        body,
        body_len,
        upgrade,
        ..
    } = response;
    let Preferences {
        version, is_head, ..
    } = conn.answer.preferences;
    let (delimiter, framing) = match (body_len, version) {
        (Some(len), _) => (Delimiter::Length(len), Framing::Length(len)),
        (None, Version::Http11 | Version::Http2) => (Delimiter::Chunked, Framing::Chunked),
        (None, Version::Http10) => (Delimiter::Close, Framing::Close),
    };
    // The connection can stay open only if the handler has read the request body, which is certain
    // only now. During a drain it closes, and `Connection: close` reports that (RFC 9112, 9.6).
    conn.answer.keep &= conn.proto.may_keep()
        && delimiter != Delimiter::Close
        && !core.is_draining.load(Ordering::Relaxed);
    // A 101 gets no `Connection: close`, because the connection continues with another protocol.
    conn.answer.keep |= upgrade.is_some();
    conn.upgrade = upgrade;
    conn.answer.status = status;
    let out = &mut conn.output;
    let before_len = out.len();
    encode::status_line(out, status);
    out.extend_from_slice(&fields);
    finish_head(out, status, delimiter, version, conn.answer.keep);
    if is_head || !status.allows_body() {
        return;
    }
    let is_plain = matches!(framing, Framing::Length(_));
    match body.in_memory() {
        Some(bytes) if is_plain && bytes.len() <= INLINE_BODY_LEN => {
            conn.output.extend_from_slice(bytes);
            conn.answer.memory_len = bytes.len() as u64;
        }
        None if is_plain && body_len == Some(0) => {}
        _ => {
            let transfer = Transfer::new(body.into_source(), framing, before_len);
            conn.transfer = Some(Box::new(transfer));
        }
    }
}

/// Replaces a response by a 503 if its body failed before any byte was sent; returns `false` if
/// part of the response was sent.
fn replace_failed<S: Service>(shared: &Shared<S>, conn: &mut Conn) -> bool {
    let Some(transfer) = &conn.transfer else {
        return false;
    };
    if !transfer.recall(&mut conn.output) {
        return false;
    }
    conn.transfer = None;
    let response = unavailable(&shared.service, conn.request.as_deref_mut());
    render(&shared.core, conn, response);
    true
}

/// Sends as much of the response as the socket accepts, and returns the connection to its I/O
/// thread. Ends its turn after a quantum if other jobs of the lane are queued.
pub(super) fn pump<S: Service>(shared: &Shared<S>, mut conn: Box<Conn>) {
    let outcome = loop {
        if shared.is_cut_off.load(Ordering::Acquire) {
            return cut_off(shared, conn);
        }
        let (home, key) = (conn.home, conn.key);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            conn.pump(|| shared.core.waker(home, key))
        }))
        .unwrap_or_else(|_panic| Err(std::io::Error::other("body source panicked")));
        if matches!(outcome, Ok(Outcome::Empty)) {
            match fill(shared, conn) {
                Some(filled) => conn = filled,
                None => return,
            }
            continue;
        }
        let (queue, lane) = (&shared.queue, conn.answer.lane);
        // I/O threads, which send the responses of inline bodies, never wait.
        let goes_on = has_slot()
            && match outcome {
                Ok(Outcome::Yield) => !queue.has_queued(lane),
                Ok(Outcome::Blocked) => queue.is_idle(lane) && conn.wait(WAIT_TIME),
                _ => false,
            };
        if !goes_on {
            break outcome;
        }
    };
    let verdict = match outcome {
        Ok(Outcome::Done) => {
            report(shared, &mut conn, End::Complete);
            conn.transfer = None;
            Verdict::Answered
        }
        Ok(Outcome::Blocked) => Verdict::Blocked,
        // The loop above handles `Empty` itself.
        Ok(Outcome::Waiting | Outcome::Empty) => Verdict::Waiting,
        Ok(Outcome::Yield) => {
            // Cannot fail: the queue accepts every `Job::Pump`.
            drop(shared.queue.push(Job::Pump(conn)));
            // A worker takes the next job itself, and wakes others if there are more.
            if !has_slot() {
                shared.queue.wake();
            }
            return;
        }
        Err(error) => {
            let is_cut_off = !replace_failed(shared, &mut conn);
            report_failure(shared, &error, is_cut_off);
            if !is_cut_off {
                // Recurses at most once: the 503 has no transfer, so it cannot reach this branch.
                return pump(shared, conn);
            }
            let end = if is_disconnect(&error) {
                End::Left
            } else {
                End::Cut
            };
            drop(fail(shared, &mut conn, end));
            Verdict::Reset
        }
    };
    give_back(shared, conn, verdict);
}

/// Pulls from a source that may wait for any time. Meanwhile the worker slot is lent to other jobs,
/// and the connection lies in the inbox of its I/O thread, which takes the connection if the client
/// leaves. Returns `None` if the thread has taken it; the thread then gets the transfer after the
/// pull.
fn fill<S: Service>(shared: &Shared<S>, mut conn: Box<Conn>) -> Option<Box<Conn>> {
    let Some(mut transfer) = conn.transfer.take() else {
        return Some(conn);
    };
    let (home, key) = (conn.home, conn.key);
    let waker = shared.core.waker(home, key);
    let takes_files = conn.transport.plain().is_some();
    if !has_slot() {
        transfer.fill_ahead(takes_files, &mut conn.output, &waker);
        conn.transfer = Some(transfer);
        return Some(conn);
    }
    let mut output = conn.lay_aside(&transfer);
    shared.inboxes[home].lay_by(conn);
    lend_slot_to_read(|| transfer.fill_ahead(takes_files, &mut output, &waker));
    match shared.inboxes[home].take_back(key) {
        Some(mut conn) => {
            conn.resume(transfer, output);
            Some(conn)
        }
        None => {
            // If the I/O thread has ended, it has closed the connection.
            drop(shared.send_home(home, Message::Filled(key, transfer, output)));
            None
        }
    }
}

/// Returns a connection to its I/O thread.
pub(super) fn give_back<S: Service>(shared: &Shared<S>, conn: Box<Conn>, verdict: Verdict) {
    let home = conn.home;
    if let Err(Message::Returned(conn, _)) =
        shared.send_home(home, Message::Returned(conn, verdict))
    {
        cut_off(shared, conn);
    }
}

/// Frees the slot of a connection that a panic has dropped and thereby closed.
pub(super) fn lose<S: Service>(shared: &Shared<S>, (home, key): (usize, Key)) {
    if shared.send_home(home, Message::Lost(key)).is_err() {
        shared.connection_count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Closes a connection whose I/O thread has ended.
pub(crate) fn cut_off<S: Service>(shared: &Shared<S>, mut conn: Box<Conn>) {
    // Decrement the counter first, because the report to the observer may panic.
    shared.connection_count.fetch_sub(1, Ordering::Relaxed);
    conn.transport.reset_on_close();
    drop(fail(shared, &mut conn, End::Cut));
}

/// Aborts the response in progress. Returns the rest of its body, if any, instead of dropping it,
/// because that may block.
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

/// Reports the end of an exchange to the observer.
pub(crate) fn report<S: Service>(shared: &Shared<S>, conn: &mut Conn, end: End) {
    let Some(request) = conn.request.take() else {
        return;
    };
    shared.service.observer().exchanged(&Exchange {
        head: request.head(),
        pattern: request.pattern(),
        extensions: request.extensions(),
        status: conn.answer.status,
        body_len: conn.sent_body_len(),
        end,
        is_inline: request.is_inline,
        tag: request.tag,
        duration: conn.answer.started.elapsed(),
    });
}
