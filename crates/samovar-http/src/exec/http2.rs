//! HTTP/2 streams as carriers of exchanges.
//!
//! The connection stays on its I/O thread. This thread sends the output of workers as the client's
//! flow-control windows allow, and requests the next piece of the body once the previous one was
//! sent.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;

use super::exchange::{
    Carrier, finish_head, fulfil, handle, remove_reset_content, report_failure, unavailable,
};
use super::lent::lend_slot_to_read;
use crate::body::{Outflow, Piece, Progress};
use crate::conn::{
    Cancel, Preferences, Rest, StreamAnswer, StreamJob, StreamNews, StreamRef, StreamWork,
};
use crate::core::Shared;
use crate::h2::ResponseHead;
use crate::http::Version;
use crate::jobs::Job;
use crate::proto::encode::Delimiter;
use crate::request::Request;
use crate::response::{Body, Later, Response};
use crate::service::Service;

pub(super) fn work<S: Service>(shared: &Shared<S>, job: StreamJob) {
    let StreamJob {
        stream,
        cancel,
        work,
    } = job;
    let mut carrier = Stream::new(stream, cancel);
    match work {
        StreamWork::Handle(_) if carrier.cancel.is_set() => {
            shared.core.send_news(stream, StreamNews::HandlerLost);
        }
        StreamWork::Handle(request) => handle(shared, carrier, request),
        StreamWork::Fulfil(later, preferences) => {
            carrier.preferences = preferences;
            carrier.was_deferred = true;
            fulfil(shared, carrier, later);
        }
        StreamWork::Pull(outflow) => {
            let news = match pull(shared, stream, outflow) {
                Ok((bytes, rest)) => StreamNews::Piece(bytes, rest),
                Err(error) => {
                    report_failure(shared, &error, true);
                    StreamNews::BodyFailed
                }
            };
            shared.core.send_news(stream, news);
        }
    }
}

struct Stream {
    stream: StreamRef,
    cancel: Cancel,
    preferences: Preferences,
    /// The request, kept for the report to the observer; `None` if the exchange is not reported.
    request: Option<Box<Request>>,
    was_deferred: bool,
}

impl Stream {
    fn new(stream: StreamRef, cancel: Cancel) -> Self {
        Self {
            stream,
            cancel,
            preferences: Preferences::default(),
            request: None,
            was_deferred: false,
        }
    }
}

impl Carrier for Stream {
    fn lend<S: Service, R>(
        self,
        _: &Shared<S>,
        request: &mut Request,
        handler: impl FnOnce(&mut Request) -> R,
    ) -> Option<(Self, R)> {
        // An HTTP/2 request contains its link to the stream from the start, so nothing needs to be
        // moved.
        Some((self, handler(request)))
    }

    fn requeue(mut self, request: Box<Request>) -> Job {
        self.stream.lane = request.lane;
        Job::Stream(Box::new(StreamJob {
            stream: self.stream,
            cancel: self.cancel,
            work: StreamWork::Handle(request),
        }))
    }

    fn refused(job: Job) -> Option<(Self, Box<Request>)> {
        let Job::Stream(job) = job else {
            return None;
        };
        let StreamWork::Handle(request) = job.work else {
            return None;
        };
        Some((Self::new(job.stream, job.cancel), request))
    }

    fn send_back<S: Service>(self, shared: &Shared<S>, request: Box<Request>) {
        let news = StreamNews::SentBack(request);
        shared.core.send_news(self.stream, news);
    }

    fn begin(&mut self, preferences: Preferences, request: Option<Box<Request>>) {
        self.preferences = preferences;
        self.request = request;
        if let Some(request) = &mut self.request {
            // Stop receiving the request body: the handler no longer reads it.
            request.link = None;
        }
    }

    fn preferences(&self) -> Preferences {
        self.preferences
    }

    fn answer<S: Service>(mut self, shared: &Shared<S>, response: Response) {
        let request = self.request.as_deref_mut();
        let mut answer = render(shared, self.stream, self.preferences, response, request);
        answer.was_deferred = self.was_deferred;
        let news = StreamNews::Answer(Box::new(answer), self.request);
        shared.core.send_news(self.stream, news);
    }

    fn park<S: Service>(self, shared: &Shared<S>, later: Arc<Later>) {
        let news = StreamNews::Deferred(Arc::clone(&later), self.preferences, self.request);
        shared.core.send_news(self.stream, news);
        later.watch(shared.core.stream_waker(self.stream));
    }
}

/// Renders the head and the first piece of the body.
fn render<S: Service>(
    shared: &Shared<S>,
    stream: StreamRef,
    preferences: Preferences,
    mut response: Response,
    request: Option<&mut Request>,
) -> StreamAnswer {
    remove_reset_content(&mut response);
    let Response {
        status,
        fields: mut text,
        body,
        body_len,
        ..
    } = response;
    let delimiter = body_len.map_or(Delimiter::None, Delimiter::Length);
    finish_head(&mut text, status, delimiter, Version::Http2, true);
    let (bytes, rest) = match body {
        _ if preferences.is_head || !status.allows_body() => (Bytes::new(), Rest::End),
        Body::Empty => (Bytes::new(), Rest::End),
        Body::Bytes(bytes) => (Bytes::from_owner(bytes), Rest::End),
        Body::Shared(bytes) => (Bytes::from_owner(bytes), Rest::End),
        Body::Source(source) => {
            let outflow = Box::new(Outflow::new(source, body_len));
            if outflow.may_wait() {
                shared.core.send_news(stream, StreamNews::Reads);
            }
            match pull(shared, stream, outflow) {
                Ok(first) => first,
                Err(error) => {
                    report_failure(shared, &error, false);
                    let response = unavailable(&shared.service, request);
                    return render(shared, stream, preferences, response, None);
                }
            }
        }
    };
    StreamAnswer {
        was_deferred: false,
        status,
        head: ResponseHead::read(status, &text),
        bytes,
        rest,
    }
}

/// Pulls the next piece of a response body.
fn pull<S: Service>(
    shared: &Shared<S>,
    stream: StreamRef,
    mut outflow: Box<Outflow>,
) -> io::Result<(Bytes, Rest)> {
    let waker = shared.core.stream_waker(stream);
    let may_wait = outflow.may_wait();
    let pulled = catch_unwind(AssertUnwindSafe(|| {
        let mut pull = || outflow.pull(&waker, stream.piece_len);
        let Piece { block, progress } = match may_wait {
            true => lend_slot_to_read(pull),
            false => pull(),
        }?;
        let bytes = match block {
            // Copy a short piece, so that it does not keep a large block allocated.
            block if block.is_sparse() => Bytes::copy_from_slice(block.as_ref()),
            block => Bytes::from_owner(block),
        };
        let rest = match progress {
            Progress::End => Rest::End,
            Progress::More | Progress::Wait => Rest::More {
                outflow,
                is_dry: progress == Progress::Wait,
            },
        };
        Ok((bytes, rest))
    }));
    pulled.unwrap_or_else(|_panic| Err(io::Error::other("body source panicked")))
}
