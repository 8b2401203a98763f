//! Processing of one exchange on a worker: calling the handler and starting its response.
//!
//! HTTP/1 and HTTP/2 share these steps through the trait [`Carrier`]. The worker calls the handler.
//! The handler may requeue the request, send it back, defer its response, or return it. A returned
//! response is compressed if the client accepts that, and passed to the carrier, which renders and
//! sends it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::SystemTime;

use crate::answer::{http_date, refusal};
#[cfg(feature = "compression")]
use crate::compress;
use crate::conn::Preferences;
use crate::core::{Core, Shared};
use crate::http::{Status, Version};
use crate::jobs::{Job, reclaim_from_monitor};
use crate::lane::Lane;
use crate::observer::Incident;
use crate::proto::encode::{self, Delimiter};
use crate::request::Request;
use crate::response::{Body, Instead, Later, Response};
use crate::service::Service;

/// Transport of an exchange: an HTTP/1 connection, or a stream of an HTTP/2 connection.
pub(crate) trait Carrier: Sized {
    /// Calls `handler` with the request. While the handler runs, it can read the request body from
    /// the carrier. Returns `None` if the handler did not give the carrier back; the client is then
    /// disconnected.
    fn lend<S: Service, R>(
        self,
        shared: &Shared<S>,
        request: &mut Request,
        handler: impl FnOnce(&mut Request) -> R,
    ) -> Option<(Self, R)>;

    /// Creates the job that calls the handler again, in the request's lane.
    fn requeue(self, request: Box<Request>) -> Job;

    /// Takes carrier and request out of a [`requeue`](Self::requeue) job that the queue has
    /// refused. Returns `None` for a job of any other kind.
    fn refused(job: Job) -> Option<(Self, Box<Request>)>;

    /// Gives the request back to its I/O thread, which decides about it again.
    fn send_back<S: Service>(self, shared: &Shared<S>, request: Box<Request>);

    /// Prepares the response after the handler has returned. `request` is kept for the report to
    /// the observer; it is `None` if the exchange is not reported.
    fn begin(&mut self, preferences: Preferences, request: Option<Box<Request>>);

    /// Returns the client's preferences.
    fn preferences(&self) -> Preferences;

    /// Renders the response, and sends as much of it as can be sent now.
    fn answer<S: Service>(self, shared: &Shared<S>, response: Response);

    /// Waits for a deferred response without occupying a thread.
    fn park<S: Service>(self, shared: &Shared<S>, later: Arc<Later>);
}

/// Calls the handler and starts the response.
pub(crate) fn handle<S: Service, C: Carrier>(
    shared: &Shared<S>,
    carrier: C,
    mut request: Box<Request>,
) {
    let lent = carrier.lend(shared, &mut request, |request| {
        catch_unwind(AssertUnwindSafe(|| shared.service.handle(request)))
    });
    reclaim_from_monitor(&shared.queue);
    let Some((mut carrier, handled)) = lent else {
        return;
    };
    let mut response = match handled {
        Ok(response) => match response.instead {
            None => response,
            Some(Instead::Decide) if request.was_sent_back => response,
            Some(Instead::Decide) => {
                request.was_sent_back = true;
                return carrier.send_back(shared, request);
            }
            Some(Instead::Handle(lane)) => match requeue(shared, carrier, request, lane) {
                None => return,
                Some(refused) => {
                    (carrier, request) = refused;
                    overload(&shared.service, &mut request)
                }
            },
        },
        Err(_panic) => panicked(shared, &mut request),
    };
    let preferences = Preferences::of(
        request.head(),
        #[cfg(feature = "compression")]
        (shared.compression.is_some() && compress::concerns(&response, request.is_inline)),
    );
    let observes = shared.service.observer().observes();
    carrier.begin(preferences, observes.then_some(request));
    match response.later.take() {
        Some(later) => {
            later.set_fields(response.fields);
            fulfil(shared, carrier, later);
        }
        None => answer(shared, carrier, response),
    }
}

/// Requeues the request in another lane. If that lane is full, returns the request and its carrier.
fn requeue<S: Service, C: Carrier>(
    shared: &Shared<S>,
    carrier: C,
    mut request: Box<Request>,
    lane: Lane,
) -> Option<(C, Box<Request>)> {
    request.lane = lane;
    match shared.submit(carrier.requeue(request)) {
        Ok(()) => {
            shared.queue.wake();
            None
        }
        Err(job) => {
            shared.service.observer().incident(&Incident::WorkersFull);
            C::refused(job)
        }
    }
}

/// Sends a deferred response, or continues to wait if the application has not completed it yet.
pub(super) fn fulfil<S: Service, C: Carrier>(shared: &Shared<S>, carrier: C, later: Arc<Later>) {
    match later.take_if(|_| true) {
        Some(mut response) => {
            // Ignore a nested deferral: a deferred response cannot be deferred again.
            response.later = None;
            answer(shared, carrier, response);
        }
        None => carrier.park(shared, later),
    }
}

fn answer<S: Service, C: Carrier>(shared: &Shared<S>, carrier: C, response: Response) {
    let response = negotiated(&shared.core, carrier.preferences(), response);
    carrier.answer(shared, response);
}

/// Compresses the response if the server and the client support it.
fn negotiated(core: &Core, preferences: Preferences, response: Response) -> Response {
    #[cfg(feature = "compression")]
    if preferences.may_compress
        && let Some(compression) = &core.compression
    {
        return compression.negotiate(preferences.coding, preferences.version, response);
    }
    let _unused = (core, preferences);
    response
}

/// Completes the head of a response: adds the field that delimits the body, `Date`, and
/// `Connection`.
pub(super) fn finish_head(
    out: &mut Vec<u8>,
    status: Status,
    delimiter: Delimiter,
    version: Version,
    keep: bool,
) {
    if status.allows_body() {
        encode::delimiter(out, delimiter);
    }
    let date = http_date(SystemTime::now());
    encode::finish(out, version, keep, date.as_bytes());
}

/// Creates the 503 response to a request that does not fit into its lane's queue.
fn overload(service: &impl Service, request: &mut Request) -> Response {
    unavailable(service, Some(request))
}

/// Creates the 503 response that replaces a response whose body failed before any byte was sent.
pub(super) fn unavailable(service: &impl Service, request: Option<&mut Request>) -> Response {
    let text = "temporarily unavailable, try again";
    refusal(service, request, Status::SERVICE_UNAVAILABLE, text.into())
}

fn panicked<S: Service>(shared: &Shared<S>, request: &mut Request) -> Response {
    shared
        .service
        .observer()
        .incident(&Incident::HandlerPanicked {
            head: request.head(),
            pattern: request.pattern(),
            extensions: request.extensions(),
        });
    let status = Status::INTERNAL_SERVER_ERROR;
    refusal(
        &shared.service,
        Some(request),
        status,
        status.reason().into(),
    )
}

/// Removes the body of a 205 response, which must not have one (RFC 9110, 15.3.6).
pub(super) fn remove_reset_content(response: &mut Response) {
    if response.status == Status::RESET_CONTENT {
        (response.body, response.body_len) = (Body::Empty, Some(0));
    }
}

/// Reports a failed body to the observer, unless the client caused the failure by disconnecting.
pub(super) fn report_failure<S: Service>(
    shared: &Shared<S>,
    error: &std::io::Error,
    is_cut_off: bool,
) {
    if !is_disconnect(error) {
        let observer = shared.service.observer();
        observer.incident(&Incident::BodyFailed { error, is_cut_off });
    }
}

/// Returns whether an error means that the client has disconnected.
pub(super) fn is_disconnect(error: &std::io::Error) -> bool {
    use std::io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::BrokenPipe | Kind::ConnectionReset | Kind::ConnectionAborted
    )
}
