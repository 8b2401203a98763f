//! HTTP/1 connections as carriers of exchanges.
//!
//! A worker writes the answer to the socket itself and continues with the body until the socket is
//! full. Then the connection returns to its I/O thread, which sends it back here when the socket is
//! writable.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::exchange::{
    Carrier, finish_head, is_peers_doing, remove_reset_content, report_failure, unavailable,
};
use super::job::Job;
use super::lane::Lane;
use super::preferences::Preferences;
use crate::body::{Framing, Outcome, Transfer};
use crate::core::{Core, Shared};
use crate::http::Version;
use crate::io::conn::{Answer, Conn};
use crate::io::inbox::{Message, Verdict};
use crate::io::key::Key;
use crate::io::stage::Stage;
use crate::io::upload::Upload;
use crate::later::Later;
use crate::observer::{End, Exchange};
use crate::proto::encode::{self, Delimiter};
use crate::request::Request;
use crate::response::Response;
use crate::service::Service;

/// Bodies up to this length, in bytes, are copied behind their head and leave in the same write.
const INLINE_BODY_LEN: usize = 64 * 1024;

impl Carrier for Box<Conn> {
    type Receipt = (usize, Key);

    fn lend<S: Service>(self, shared: &Shared<S>, request: &mut Request) -> Self::Receipt {
        let receipt = (self.home, self.key);
        request.link = Some(Box::new(Upload::new(self, &shared.core)));
        receipt
    }

    fn take_back<S: Service>(
        shared: &Shared<S>,
        receipt: Self::Receipt,
        request: &mut Request,
    ) -> Option<Self> {
        let conn = request.link.take().and_then(Upload::take_conn);
        if conn.is_none() {
            // The handler has swapped its request for another one.
            lose(shared, receipt);
        }
        conn
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

    fn begin(&mut self, preferences: Preferences, request: Option<Box<Request>>) {
        self.answer.preferences = preferences;
        self.request = request;
    }

    fn preferences(&self) -> Preferences {
        self.answer.preferences
    }

    fn lane(&self) -> Lane {
        self.answer.lane
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
        // Interim responses leave before the wait. An error will show again.
        drop(self.flush());
        give_back(shared, self, Verdict::Waiting);
        // The connection returns before the waker can be called, so one wake-up serves both.
        later.watch(waker);
    }
}

/// Renders a deferred response that is small and in memory, so that an I/O thread can send it
/// without a worker. `false` if the response is not of that kind, or not completed yet.
pub(crate) fn render_deferred(core: &Core, conn: &mut Conn, now: Instant) -> bool {
    #[cfg(feature = "compression")]
    if core.compression.is_some() {
        return false;
    }
    let fits = |response: &Response| {
        let is_small = |len| len <= INLINE_BODY_LEN as u64;
        response.is_in_memory()
            && response.body_len.is_some_and(is_small)
            && response.producer.is_none()
            && !response.has_trailers
    };
    let Some(response) = conn.later.as_ref().and_then(|later| later.take_if(fits)) else {
        return false;
    };
    conn.later = None;
    conn.restart_clock(now);
    render(core, conn, response);
    true
}

/// Renders the answer: its head into `output`, its body there too or into a transfer.
fn render(core: &Core, conn: &mut Conn, mut response: Response) {
    remove_reset_content(&mut response);
    let Response {
        status,
        fields,
        body,
        body_len,
        has_trailers,
        upgrade,
        ..
    } = response;
    let Preferences {
        version,
        is_head,
        takes_trailers,
        ..
    } = conn.answer.preferences;
    let has_trailers = has_trailers && takes_trailers;
    let (delimiter, framing) = match (body_len, version) {
        (Some(len), _) if !has_trailers => (Delimiter::Length(len), Framing::Length(len)),
        (_, Version::Http11 | Version::Http2) => {
            (Delimiter::Chunked, Framing::Chunked { has_trailers })
        }
        (_, Version::Http10) => (Delimiter::Close, Framing::Close),
    };
    // The handler may have read the rest of the request. And a client must not send its next
    // request on a connection that a drain is about to end (RFC 9112, 9.6).
    conn.answer.keep &= conn.proto.may_keep()
        && delimiter != Delimiter::Close
        && !core.is_draining.load(Ordering::Relaxed);
    // No `Connection: close` with a 101: what follows is not HTTP.
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

/// Replaces an answer whose body failed before any of it was sent by a 503; `false` if part of it
/// was sent.
fn replace_failed(core: &Core, conn: &mut Conn) -> bool {
    let Some(transfer) = &conn.transfer else {
        return false;
    };
    if !transfer.recall(&mut conn.output) {
        return false;
    }
    conn.transfer = None;
    render(core, conn, unavailable());
    true
}

/// Sends as much of the answer as the socket takes, and returns the connection to its I/O thread.
pub(super) fn pump<S: Service>(shared: &Shared<S>, mut conn: Box<Conn>) {
    if shared.is_cut_off.load(Ordering::Acquire) {
        return cut_off(shared, conn);
    }
    let (home, key) = (conn.home, conn.key);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        conn.pump(|| shared.core.waker(home, key))
    }))
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
            // Unreachable error: the queue accepts every `Job::Pump`.
            drop(shared.queue.push(Job::Pump(conn)));
            return shared.queue.wake();
        }
        Err(error) => {
            let is_cut_off = !replace_failed(&shared.core, &mut conn);
            report_failure(shared, &error, is_cut_off);
            if !is_cut_off {
                // Recurses at most once: without a transfer, this branch is not reached.
                return pump(shared, conn);
            }
            let end = if is_peers_doing(&error) {
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

/// Returns a connection to its I/O thread.
pub(super) fn give_back<S: Service>(shared: &Shared<S>, conn: Box<Conn>, verdict: Verdict) {
    let home = conn.home;
    if let Err(Message::Returned(conn, _)) =
        shared.send_home(home, Message::Returned(conn, verdict))
    {
        cut_off(shared, conn);
    }
}

/// Frees the slot of a connection that a panic has dropped, and so closed.
pub(super) fn lose<S: Service>(shared: &Shared<S>, (home, key): (usize, Key)) {
    if shared.send_home(home, Message::Lost(key)).is_err() {
        shared.connection_count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Closes a connection whose I/O thread is gone.
pub(crate) fn cut_off<S: Service>(shared: &Shared<S>, mut conn: Box<Conn>) {
    // First: a report may panic.
    shared.connection_count.fetch_sub(1, Ordering::Relaxed);
    conn.transport.reset_on_close();
    drop(fail(shared, &mut conn, End::Cut));
}

/// Gives up the answer in progress. Returns the rest of its body, because dropping it may block.
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
        status: conn.answer.status,
        body_len: conn.sent_body_len(),
        end,
        is_inline: request.is_inline,
        duration: conn.answer.started.elapsed(),
    });
}

/// Starts a response: enters the stage `Answering` and resets the answer state.
pub(crate) fn begin(conn: &mut Conn, lane: Lane, keep: bool, now: Instant) {
    conn.enter(Stage::Answering);
    conn.answer = Answer::new(lane, keep, now);
}
