//! The interface that an application implements.

use crate::error::Error;
use crate::head::Head;
use crate::observer::Observer;
use crate::request::Request;
use crate::response::{Inline, Reply, Response, Turn};

/// An application that responds to requests. All threads share one value.
pub trait Service: Send + Sync + 'static {
    /// State of one I/O thread, passed to [`inline`](Self::inline). It is not shared, so it needs
    /// no lock.
    type Local: Send;

    /// Creates the state of one I/O thread.
    fn local(&self) -> Self::Local;

    /// Responds on the I/O thread, or declines. It must not block: no file access, no contended
    /// lock, no computation beyond microseconds, because all connections of the thread wait
    /// meanwhile. It sees only the head; the body is read only if it declines.
    fn inline(
        &self,
        local: &mut Self::Local,
        turn: Turn,
        head: Head<'_>,
        reply: Reply<'_>,
    ) -> Inline {
        let _unused = (local, turn, head);
        reply.dispatch()
    }

    /// Chooses the way of receiving the body of a request. Called on the I/O thread for requests
    /// with a body that [`inline`](Self::inline) has declined; must not block.
    fn intake(&self, head: Head<'_>) -> Intake {
        let _unused = head;
        Intake::Buffered(0)
    }

    /// Responds on a worker; may block. If it panics, the client gets 500 and the observer a
    /// report.
    fn handle(&self, request: &mut Request) -> Response;

    /// Renders a response that the engine sends in place of a handler's: to a malformed request,
    /// at an exceeded limit or overload, after a panic, or if a body has failed before its first
    /// byte was sent. `request` is `None` if the head could not be parsed, or is not known any
    /// more. `None`: the engine sends a line of plain text.
    ///
    /// Called on an I/O thread or a worker; must not block. The body must be in memory. A status of
    /// 200 is replaced by the status of the error, and a 503 gets `Retry-After` unless it has one.
    fn refuse(&self, request: Option<&mut Request>, error: &Error) -> Option<Response> {
        let _unused = (request, error);
        None
    }

    /// Returns the pattern of the route for a request, for reports to the observer: see
    /// [`Exchange::pattern`](crate::Exchange::pattern). Called for requests that [`handle`] did not
    /// get, on an I/O thread; must not block.
    ///
    /// [`handle`]: Self::handle
    fn pattern(&self, head: Head<'_>) -> Option<&str> {
        let _unused = head;
        None
    }

    /// Returns whether responses are compressed for clients that accept it. Called once, when the
    /// server starts. [`Builder::compression`](crate::Builder::compression) has the same effect for
    /// a service that does not choose; only the application knows which of its responses contain
    /// secrets, see [`compress`](crate::compress). A [`Router`](crate::Router) compresses.
    fn compresses(&self) -> bool {
        false
    }

    /// Returns the observer that receives reports. Called for every report.
    fn observer(&self) -> &dyn Observer {
        &()
    }
}

/// Way of receiving the body of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intake {
    /// The whole body is in memory before the handler starts. The number is the maximum length of
    /// the body in bytes; a longer body gets 413. While the body arrives, it occupies memory but no
    /// thread.
    Buffered(u64),
    /// As `Buffered`, but the handler is called on the I/O thread. Neither the handler nor the body
    /// of its response may block, as in [`Service::inline`]. For handlers that take microseconds
    /// and respond from memory or [defer](Response::later) the response: waking a worker would cost
    /// as much. HTTP/1 only; over HTTP/2, and for requests without a body, a worker calls the
    /// handler.
    Inline(u64),
    /// The handler starts once the head has arrived and reads the body as it arrives, in constant
    /// memory. The number is the maximum length of the body in bytes; reading beyond it fails, and
    /// the handler decides how to respond.
    Streamed(u64),
}

impl Intake {
    /// Returns the maximum length of the body, in bytes.
    pub fn len_max(self) -> u64 {
        match self {
            Self::Buffered(len_max) | Self::Inline(len_max) | Self::Streamed(len_max) => len_max,
        }
    }
}
