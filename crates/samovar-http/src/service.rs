//! The application behind a server.

use crate::error::Error;
use crate::head::Head;
use crate::observer::Observer;
use crate::reply::{Inline, Reply, Turn};
use crate::request::Request;
use crate::response::Response;

/// An application. One value serves all threads.
pub trait Service: Send + Sync + 'static {
    /// What one I/O thread keeps for [`inline`](Self::inline): nothing shared, so nothing locked.
    type Local: Send;

    /// Makes the state of one I/O thread.
    fn local(&self) -> Self::Local;

    /// Answers on the I/O thread, or declines. Must not block: no file, no lock that another
    /// thread holds for long, no computation beyond microseconds. Every connection of the thread
    /// waits meanwhile. Called with the head alone; a body is read only if this declines.
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

    /// How the body of a request is taken in. Called on the I/O thread, for requests that have one
    /// and that [`inline`](Self::inline) declined; must not block.
    fn intake(&self, head: Head<'_>) -> Intake {
        let _unused = head;
        Intake::Buffered(0)
    }

    /// Answers on a worker. May block. A panic is answered with 500 and reported.
    fn handle(&self, request: &mut Request) -> Response;

    /// Words for what is answered before a handler has a request, or after one has panicked:
    /// malformed requests, exceeded limits, overload. `None`: a line of plain text. Called on an
    /// I/O thread or a worker; must not block. The body has to be in memory; a status of 200 gets
    /// the error's instead, and a 503 `Retry-After` if it has none.
    fn refuse(&self, error: &Error) -> Option<Response> {
        let _unused = error;
        None
    }

    /// Who is told what happened. Asked for every event.
    fn observer(&self) -> &dyn Observer {
        &()
    }
}

/// How a request's body reaches a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intake {
    /// All of it is in memory before the handler starts. At most so many bytes; more is answered
    /// with 413. While it arrives it costs memory, but no thread.
    Buffered(u64),
    /// As `Buffered`, and the handler is called on the I/O thread, where it must not block, as in
    /// [`Service::inline`]; nor may the body of its response. For handlers of microseconds that
    /// answer from memory or [later](Response::later): waking a worker costs as much. HTTP/1 alone;
    /// of HTTP/2, and for requests without a body, a worker calls it.
    Inline(u64),
    /// The handler starts after the head and reads the body as it comes, in constant memory. At
    /// most so many bytes; more fails the read, and what the handler answers is up to it.
    Streamed(u64),
}

impl Intake {
    /// The largest body, in bytes.
    pub fn len_max(self) -> u64 {
        match self {
            Self::Buffered(len_max) | Self::Inline(len_max) | Self::Streamed(len_max) => len_max,
        }
    }
}
