//! Implementation of `Service` for the router.

use std::io::{self, Write};
use std::net::ToSocketAddrs;
use std::time::Duration;

use super::next::{Middleware, Next};
use super::router::{Miss, Router, Target};
use crate::answer::refusal;
use crate::error::Error;
use crate::head::Head;
use crate::http::Status;
use crate::jobs::Unfinished;
use crate::net::listener::Listener;
use crate::observer::{Incident, Observer};
use crate::proto::Refusal;
use crate::request::{Request, stream_body};
use crate::response::{Body, Inline, Instead, Reply, Response, Turn, alone, into_response};
use crate::server::{Builder, Server};
use crate::service::{Intake, Service};

impl Service for Router {
    type Local = ();

    fn local(&self) {}

    fn inline(&self, (): &mut (), _: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        if !self.has_inline {
            return reply.dispatch();
        }
        let Some(hit) = self.find(head) else {
            return reply.dispatch();
        };
        match &hit.entry.route.inline {
            Some(inline) => hit.with_params(head, |params| inline(head, params, reply)),
            None => reply.dispatch(),
        }
    }

    fn intake(&self, head: Head<'_>) -> Intake {
        match self.find(head) {
            Some(hit) => hit.entry.route.intake,
            // No route matches, and the error response does not depend on the body, so the body
            // need not be read.
            None => Intake::Streamed(u64::MAX),
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        let target = self.assign(request);
        let (route_wraps, is_uncompressed) = settings(&target);
        let next = Next {
            router: self,
            router_wraps: &self.wraps,
            route_wraps,
            target,
        };
        let mut response = next.run(request);
        response.is_uncompressed |= is_uncompressed;
        response
    }

    fn compresses(&self) -> bool {
        self.is_compressing
    }

    fn refuse(&self, mut request: Option<&mut Request>, error: &Error) -> Option<Response> {
        let target = request.as_deref_mut().map(|request| self.assign(request));
        let is_uncompressed = target.as_ref().is_some_and(|target| settings(target).1);
        let mut response = self.error_response(error, target.as_ref(), request.as_deref());
        response.is_uncompressed |= is_uncompressed;
        Some(response)
    }

    fn pattern(&self, head: Head<'_>) -> Option<&str> {
        let entry = self.find(head)?.entry;
        Some(&entry.template.pattern)
    }

    fn observer(&self) -> &dyn Observer {
        match &self.observer {
            Some(observer) => &**observer,
            None => &ErrorsToStderr,
        }
    }
}

/// Returns the middleware of the route, or of the mounted router, and whether its responses are not
/// compressed.
fn settings<'a>(target: &Target<'a>) -> (&'a [Middleware], bool) {
    match target {
        Ok(entry) => (&entry.route.wraps, entry.route.is_uncompressed),
        Err(missed) => missed
            .mount
            .map_or((&[], false), |mount| (&mount.wraps, mount.is_uncompressed)),
    }
}

impl Router {
    /// Serves on a TCP address until the process ends. For a name such as `localhost:8080` it
    /// listens on all addresses of that name. [`Server::builder`] has more options. Prints nothing:
    /// a program that tells its address prints the line before the call.
    ///
    /// # Errors
    ///
    /// If the server cannot listen on the address or cannot start threads.
    pub fn serve(self, addr: impl ToSocketAddrs) -> io::Result<()> {
        let _server = self.listening(addr)?.start()?;
        loop {
            std::thread::park();
        }
    }

    /// Serves on a TCP address until `signal` returns, then completes the responses in progress for
    /// up to `drain`. Returns the requests that are left behind at most 0.1 s after that time,
    /// whatever their handlers do; see [`Builder::serve_until`].
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use samovar_http::{Router, stop_signal};
    ///
    /// fn main() -> std::io::Result<()> {
    ///     let router = Router::new().get("/", |_| "Hello\n");
    ///     let (stop, drain) = (stop_signal()?, Duration::from_secs(10));
    ///     for request in router.serve_until("127.0.0.1:8080", stop, drain)? {
    ///         eprintln!("left behind: {request}");
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// If the server cannot listen on the address or cannot start threads.
    pub fn serve_until(
        self,
        addr: impl ToSocketAddrs,
        signal: impl FnOnce(),
        drain: Duration,
    ) -> io::Result<Vec<Unfinished>> {
        self.listening(addr)?.serve_until(signal, drain)
    }

    /// Creates the builder of a server that listens on a TCP address.
    fn listening(self, addr: impl ToSocketAddrs) -> io::Result<Builder<Self>> {
        let workers = self.workers;
        let mut builder = Server::builder(self);
        if let Some(count) = workers {
            builder = builder.workers(count);
        }
        for addr in addr.to_socket_addrs()? {
            let listener = Listener::tcp(addr, 1024).map_err(|error| {
                io::Error::new(error.kind(), format!("cannot listen on {addr}: {error}"))
            })?;
            builder = builder.listen(listener);
        }
        Ok(builder)
    }

    /// Finds the route of a request, and sets the request's parameters and pattern.
    fn assign(&self, request: &mut Request) -> Target<'_> {
        let head = request.head();
        let (target, matched) = match self.find(head) {
            Some(hit) => (Ok(hit.entry), Some(hit.into_matched())),
            None => (Err(self.miss(head)), None),
        };
        request.matched = matched;
        target
    }

    /// Responds to a request without a socket, for tests: middleware, handlers and error handlers
    /// run in the calling thread. Waits for a [deferred](Response::later) response. A panic of a
    /// handler is passed on. [Inline](crate::Route::inline) handlers are not called.
    ///
    /// ```
    /// use samovar_http::{Request, Router, http::Status};
    ///
    /// let router = Router::new().post("/echo", |request: &mut Request| request.body().to_vec());
    ///
    /// let response = router.answer(Request::builder("POST", "/echo").body("tea").build());
    /// assert_eq!(response.header_text("content-type"), Some("application/octet-stream"));
    /// assert_eq!(response.into_bytes().unwrap(), b"tea");
    /// let response = router.answer(Request::builder("GET", "/tea").build());
    /// assert_eq!(response.status(), Status::NOT_FOUND);
    /// ```
    pub fn answer(&self, mut request: Request) -> Response {
        match self.intake(request.head()) {
            Intake::Streamed(len_max) => stream_body(&mut request, len_max),
            Intake::Buffered(len_max) | Intake::Inline(len_max) => {
                if request.body().len() as u64 > len_max {
                    let refused = Refusal::BodyTooLarge;
                    let (status, text) = (refused.status(), refused.to_string());
                    return refusal(self, Some(&mut request), status, text.into());
                }
            }
        }
        loop {
            let response = self.handle(&mut request);
            match response.instead {
                Some(Instead::Handle(lane)) => request.lane = lane,
                Some(Instead::Decide) if !request.was_sent_back => request.was_sent_back = true,
                _ => return alone::completed(response),
            }
        }
    }

    /// Creates the response to a request that has passed all middleware.
    pub(super) fn reach(&self, target: &Target<'_>, request: &mut Request) -> Response {
        let answer = match target {
            Ok(entry) => (entry.route.handler)(request),
            Err(missed) => match &missed.reason {
                Miss::BadPath => Err(Error::new(Status::BAD_REQUEST, "malformed path")),
                Miss::NotFound => Err(Status::NOT_FOUND.into()),
                Miss::Methods(_) => Err(Status::METHOD_NOT_ALLOWED.into()),
                Miss::Options(allow) => {
                    let response = Response::new(Status::NO_CONTENT, Body::Empty);
                    Ok(response.header("Allow", allow))
                }
            },
        };
        let response = answer.unwrap_or_else(|error| self.answer_error(&error, target, request));
        match target {
            Err(missed) => match &missed.reason {
                Miss::Methods(allow) => with_allow(response, allow),
                Miss::BadPath | Miss::NotFound | Miss::Options(_) => response,
            },
            Ok(_) => response,
        }
    }

    fn answer_error(&self, error: &Error, target: &Target<'_>, request: &Request) -> Response {
        if error.status().code() >= 500 {
            self.observer().incident(&Incident::HandlerFailed {
                head: request.head(),
                pattern: request.pattern(),
                extensions: request.extensions(),
                error,
            });
        }
        self.error_response(error, Some(target), Some(request))
    }

    /// Renders an error by the nearest error handler.
    fn error_response(
        &self,
        error: &Error,
        target: Option<&Target<'_>>,
        request: Option<&Request>,
    ) -> Response {
        let mounted = match target {
            Some(Ok(entry)) => entry.on_error.as_ref(),
            Some(Err(missed)) => missed.mount.and_then(|mount| mount.on_error.as_ref()),
            None => None,
        };
        let handler = mounted.or(self.on_error.as_ref());
        match handler.map(|handler| handler(request, error)) {
            Some(Ok(response)) => instead_of_ok(response, error.status()),
            Some(Err(error)) => into_response::of_error(&error),
            None => into_response::of_error(error),
        }
    }
}

/// Replaces status 200: error handlers often return a page without setting its status.
fn instead_of_ok(mut response: Response, status: Status) -> Response {
    if response.status == Status::OK {
        response.status = status;
    }
    response
}

/// Adds `Allow` to a 405 response without it. RFC 9110, 15.5.6: "The origin server MUST generate an
/// Allow header field in a 405 response".
fn with_allow(response: Response, allow: &str) -> Response {
    if response.status == Status::METHOD_NOT_ALLOWED && !response.has_header("Allow") {
        response.header("Allow", allow)
    } else {
        response
    }
}

/// Default observer of a router: writes the errors of the application to standard error.
struct ErrorsToStderr;

impl Observer for ErrorsToStderr {
    fn incident(&self, incident: &Incident<'_>) {
        match incident {
            Incident::HandlerFailed { .. }
            | Incident::HandlerPanicked { .. }
            | Incident::SocketHandlerPanicked { .. }
            | Incident::BodyFailed { .. } => {
                // A closed standard error cannot be reported anywhere else.
                drop(writeln!(io::stderr().lock(), "{incident}"));
            }
            // Clients can cause the other incidents at any rate, so a line for each of them could
            // fill a disk.
            _ => {}
        }
    }
}
