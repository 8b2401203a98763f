//! What workers do for streams of HTTP/2.
//!
//! The connection stays with its I/O thread, which sends what a worker hands it as the peer's
//! windows allow, and asks for the next piece when that is gone.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use super::lane::Lane;
use super::queue::Job;
use super::worker::{overload, panicked, produce, report_failure};
use crate::body::{Outflow, Piece, Progress};
use crate::channel::Producer;
#[cfg(feature = "compression")]
use crate::compress;
use crate::h2::ResponseHead;
use crate::http::{Status, Version};
use crate::io::answer::http_date;
use crate::io::stream::{
    Asked, Cancel, Place, Rest, StreamAnswer, StreamJob, StreamNews, StreamWork,
};
use crate::later::Later;
use crate::observer::Incident;
use crate::proto::encode::{self, Delimiter};
use crate::request::{Link, Request};
use crate::response::{Body, Response};
use crate::server::{Core, Shared};
use crate::service::Service;

pub(crate) fn work<S: Service>(shared: &Shared<S>, job: StreamJob) {
    let StreamJob {
        place,
        cancel,
        work,
    } = job;
    match work {
        StreamWork::Handle(_) if cancel.is_set() => {
            place.send(&shared.core, StreamNews::HandlerLost);
        }
        StreamWork::Handle(request) => handle(shared, place, request, cancel),
        StreamWork::Fulfil(later, asked) => fulfil(shared, place, later, asked, None, true),
        StreamWork::Pull(outflow) => {
            let news = match pull(shared, place, outflow) {
                Ok((bytes, rest)) => StreamNews::Piece(bytes, rest),
                Err(error) => {
                    report_failure(shared, &error, true);
                    StreamNews::BodyFailed
                }
            };
            place.send(&shared.core, news);
        }
    }
}

/// The response in the form the peer wants it most.
fn negotiated(
    core: &Core,
    asked: Asked,
    response: Response,
    body_len: Option<u64>,
) -> (Response, Option<u64>) {
    #[cfg(feature = "compression")]
    if let Some(negotiator) = &core.compression {
        let coding = asked.coding;
        return compress::negotiate(negotiator, coding, Version::Http2, response, body_len);
    }
    let _unused = (core, asked);
    (response, body_len)
}

fn handle<S: Service>(shared: &Shared<S>, place: Place, mut request: Box<Request>, cancel: Cancel) {
    let handled = catch_unwind(AssertUnwindSafe(|| {
        let response = shared.service.handle(&mut request);
        let body_len = response.body.len();
        (response, body_len)
    }));
    let handled = match handled {
        Ok((response, body_len)) => match response.again {
            Some(lane) => match handle_again(shared, place, request, cancel, lane) {
                None => return,
                Some(refused) => {
                    request = refused;
                    let response = overload(&shared.service);
                    let body_len = response.body.len();
                    Ok((response, body_len))
                }
            },
            None => Ok((response, body_len)),
        },
        panic => panic,
    };
    // What is not read is not wanted.
    request.link = Link::None;
    let head = request.head();
    let asked = Asked::of(head, &shared.core);
    let (mut response, body_len) = handled.unwrap_or_else(|_panic| panicked(shared, head));
    let request = shared.service.observer().observes().then_some(request);
    match response.later.take() {
        Some(later) => fulfil(shared, place, later, asked, request, false),
        None => {
            let producer = response.producer.take();
            let answer = render(shared, place, response, body_len, asked);
            send_answer(shared, place, producer, answer, request);
        }
    }
}

/// Leaves the request to another lane; gives it back if there is no room.
fn handle_again<S: Service>(
    shared: &Shared<S>,
    mut place: Place,
    mut request: Box<Request>,
    cancel: Cancel,
    lane: Lane,
) -> Option<Box<Request>> {
    request.lane = lane;
    place.lane = lane;
    let job = StreamJob {
        place,
        cancel,
        work: StreamWork::Handle(request),
    };
    match shared.queue.push(Job::Stream(Box::new(job))) {
        Ok(()) => {
            shared.queue.wake();
            None
        }
        Err(Job::Stream(job)) => match job.work {
            StreamWork::Handle(request) => {
                shared.service.observer().incident(&Incident::WorkersFull);
                Some(request)
            }
            StreamWork::Fulfil(..) | StreamWork::Pull(_) => None,
        },
        // What comes back is what was pushed.
        Err(_) => None,
    }
}

/// Gives the promised answer, if it is there by now.
fn fulfil<S: Service>(
    shared: &Shared<S>,
    place: Place,
    later: Arc<Later>,
    asked: Asked,
    request: Option<Box<Request>>,
    was_promised: bool,
) {
    match later.take(&place.waker(&shared.core)) {
        Some(mut response) => {
            // A promise of a promise is not one.
            response.later = None;
            let producer = response.producer.take();
            let body_len = response.body.len();
            let mut answer = render(shared, place, response, body_len, asked);
            answer.was_promised = was_promised;
            send_answer(shared, place, producer, answer, request);
        }
        None => place.send(&shared.core, StreamNews::Promised(later, asked, request)),
    }
}

fn send_answer<S: Service>(
    shared: &Shared<S>,
    place: Place,
    producer: Option<Producer>,
    answer: StreamAnswer,
    request: Option<Box<Request>>,
) {
    place.send(&shared.core, StreamNews::Answer(Box::new(answer), request));
    if let Some(producer) = producer {
        produce(shared, producer, place.lane);
    }
}

/// The beginning of an answer.
fn render<S: Service>(
    shared: &Shared<S>,
    place: Place,
    response: Response,
    body_len: Option<u64>,
    asked: Asked,
) -> StreamAnswer {
    let (response, body_len) = negotiated(&shared.core, asked, response, body_len);
    let Response {
        status,
        fields: mut text,
        body,
        has_trailers,
        ..
    } = response;
    let has_trailers = has_trailers && asked.takes_trailers;
    let has_body = status.allows_body();
    if let (true, Some(len)) = (has_body, body_len) {
        encode::delimiter(&mut text, Delimiter::Length(len));
    }
    finish(&mut text);
    let (bytes, rest) = match body {
        _ if asked.is_head || !has_body => (Bytes::new(), Rest::End(Vec::new())),
        Body::Empty => (Bytes::new(), Rest::End(Vec::new())),
        Body::Bytes(bytes) => (Bytes::from_owner(bytes), Rest::End(Vec::new())),
        Body::Shared(bytes) => (Bytes::from_owner(bytes), Rest::End(Vec::new())),
        Body::Source(source) => {
            let outflow = Box::new(Outflow::new(source, body_len, has_trailers));
            match pull(shared, place, outflow) {
                Ok(first) => first,
                Err(error) => {
                    report_failure(shared, &error, false);
                    return unavailable();
                }
            }
        }
    };
    StreamAnswer {
        was_promised: false,
        status,
        head: ResponseHead::read(status, &text),
        bytes,
        rest,
    }
}

fn finish(text: &mut Vec<u8>) {
    let date = http_date(SystemTime::now());
    encode::finish(text, Version::Http2, true, date.as_bytes());
}

/// The answer instead of one whose body failed before any of it had left.
fn unavailable() -> StreamAnswer {
    const BODY: &[u8] = b"temporarily unavailable, try again\n";
    let status = Status::SERVICE_UNAVAILABLE;
    let mut text = Vec::new();
    encode::field(&mut text, "Content-Type", b"text/plain");
    encode::field(&mut text, "Retry-After", b"1");
    encode::delimiter(&mut text, Delimiter::Length(BODY.len() as u64));
    finish(&mut text);
    StreamAnswer {
        was_promised: false,
        status,
        head: ResponseHead::read(status, &text),
        bytes: Bytes::from_static(BODY),
        rest: Rest::End(Vec::new()),
    }
}

fn pull<S: Service>(
    shared: &Shared<S>,
    place: Place,
    mut outflow: Box<Outflow>,
) -> io::Result<(Bytes, Rest)> {
    let waker = place.waker(&shared.core);
    let pulled = catch_unwind(AssertUnwindSafe(|| {
        let Piece { block, progress } = outflow.pull(&waker, place.piece_len)?;
        let bytes = match block {
            // Many small pieces must not hold large blocks.
            block if block.is_sparse() => Bytes::copy_from_slice(block.as_ref()),
            block => Bytes::from_owner(block),
        };
        let rest = match progress {
            Progress::More => Rest::More(outflow),
            Progress::Wait => Rest::Wait(outflow),
            Progress::End => Rest::End(outflow.trailers()),
        };
        Ok((bytes, rest))
    }));
    pulled.unwrap_or_else(|_panic| Err(io::Error::other("body source panicked")))
}
