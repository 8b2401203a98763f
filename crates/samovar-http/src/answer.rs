//! Responses that the engine itself creates.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime};

use crate::error::Error;
use crate::extensions::Extensions;
use crate::head::Head;
use crate::http::{Status, Version};
use crate::lane::Lane;
use crate::observer::{End, Exchange, Incident, Tag};
use crate::request::Request;
use crate::response::{Outcome, Reply, Response, Turn};
use crate::service::Service;

/// Message of a 503 response at a limit.
pub(crate) const OVERLOADED: &str = "overloaded, try again";

impl Reply<'_> {
    /// Sends an error response, rendered by the service or else by the engine.
    pub(crate) fn refuse(
        self,
        service: &impl Service,
        request: Option<&mut Request>,
        status: Status,
        message: impl Into<Cow<'static, str>>,
    ) -> Outcome {
        let response = refusal(service, request, status, message.into());
        self.response(response).0
    }

    /// Sends a 503 response.
    pub(crate) fn overload(self, service: &impl Service, request: Option<&mut Request>) -> Outcome {
        let status = Status::SERVICE_UNAVAILABLE;
        self.refuse(service, request, status, OVERLOADED)
    }
}

/// Creates the reply for the last response on an HTTP/1 connection.
pub(crate) fn last<'a>(out: &'a mut Vec<u8>, is_head: bool, date: &'a Date) -> Reply<'a> {
    Reply {
        out,
        version: Version::Http11,
        is_head,
        keep: false,
        date: date.text(),
        lines: &[],
        tag: None,
    }
}

/// Lets the service respond on the I/O thread, and reports the response to the observer. If the
/// service panics, the client gets 500. `received` is the time at which the request arrived. Sets
/// the tag of the request.
#[inline]
pub(crate) fn answer_inline<S: Service>(
    service: &S,
    local: &mut S::Local,
    turn: Turn,
    received: Instant,
    head: Head<'_>,
    reply: Reply<'_>,
    tag: &mut Tag,
) -> Outcome {
    if head.session.is_some_and(|session| session.has_lapsed()) {
        return refuse_lapsed(service, received, head, reply);
    }
    let out_len = reply.out.len();
    let out = &mut *reply.out;
    let first = Reply {
        out: &mut *out,
        tag: Some(&mut *tag),
        ..reply
    };
    let inline = catch_unwind(AssertUnwindSafe(|| {
        service.inline(local, turn, head, first).0
    }));
    let observer = service.observer();
    let outcome = inline.unwrap_or_else(|_panic| {
        observer.incident(&Incident::HandlerPanicked {
            head,
            pattern: service.pattern(head),
            extensions: Extensions::NONE,
        });
        out.truncate(out_len);
        let status = Status::INTERNAL_SERVER_ERROR;
        let instead = Reply {
            out,
            tag: None,
            ..reply
        };
        let mut request = Request::of(head, Lane::Prompt, Tag::default());
        instead.refuse(service, Some(&mut request), status, status.reason())
    });
    report(service, received, head, outcome, tag);
    outcome
}

/// Refuses a request on a connection whose client certificate has expired or is not trusted any
/// more. The client must connect again.
#[cold]
fn refuse_lapsed<S: Service>(
    service: &S,
    received: Instant,
    head: Head<'_>,
    reply: Reply<'_>,
) -> Outcome {
    let text = "the client certificate of this connection is not valid any more; connect again \
                with a valid one";
    let reply = Reply {
        keep: false,
        ..reply
    };
    let mut request = Request::of(head, Lane::Prompt, Tag::default());
    let outcome = reply.refuse(service, Some(&mut request), Status::FORBIDDEN, text);
    report(service, received, head, outcome, &Tag::default());
    outcome
}

fn report<S: Service>(service: &S, received: Instant, head: Head<'_>, outcome: Outcome, tag: &Tag) {
    let observer = service.observer();
    if let Outcome::Sent(status, body_len) = outcome
        && observer.observes()
    {
        observer.exchanged(&Exchange {
            head,
            pattern: service.pattern(head),
            extensions: Extensions::NONE,
            status,
            body_len,
            end: End::Complete,
            is_inline: true,
            tag: *tag,
            duration: received.elapsed(),
        });
    }
}

/// Creates the engine's response in place of a handler's. If the service panics over it, the
/// response is plain text.
pub(crate) fn refusal(
    service: &impl Service,
    request: Option<&mut Request>,
    status: Status,
    message: Cow<'static, str>,
) -> Response {
    let error = Error::new(status, message);
    let own = catch_unwind(AssertUnwindSafe(|| service.refuse(request, &error)));
    let own = own.ok().flatten().filter(Response::is_in_memory);
    let mut response =
        own.unwrap_or_else(|| Response::text(status, format!("{}\n", error.message())));
    if response.status == Status::OK {
        response.status = status;
    }
    if status == Status::SERVICE_UNAVAILABLE && !response.has_header("Retry-After") {
        return response.header("Retry-After", "1");
    }
    response
}

/// The value of the `Date` field, updated once per second.
#[derive(Debug)]
pub(crate) struct Date {
    second: u64,
    text: String,
}

impl Default for Date {
    fn default() -> Self {
        Self {
            second: 0,
            text: http_date(SystemTime::UNIX_EPOCH),
        }
    }
}

impl Date {
    pub(crate) fn refresh(&mut self) {
        let now = SystemTime::now();
        let second = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |time| time.as_secs());
        if second != self.second {
            self.second = second;
            self.text = http_date(now);
        }
    }

    pub(crate) fn text(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

/// Formats a time as an HTTP date. A time out of range, for example from a clock that was never
/// set, becomes the nearest valid one.
pub(crate) fn http_date(time: SystemTime) -> String {
    /// The latest moment that an HTTP date can express, 9999-12-31 23:59:59 UTC, in seconds since
    /// 1970.
    const LAST: Duration = Duration::from_secs(253_402_300_799);
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + since.unwrap_or_default().min(LAST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_has_a_date() {
        let second = Duration::from_secs(1);
        let epoch = SystemTime::UNIX_EPOCH;
        assert_eq!(http_date(epoch - second), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http_date(epoch + second), "Thu, 01 Jan 1970 00:00:01 GMT");
        let last = "Fri, 31 Dec 9999 23:59:59 GMT";
        for seconds in [253_402_300_799, 253_402_300_800] {
            assert_eq!(http_date(epoch + Duration::from_secs(seconds)), last);
        }
    }
}
