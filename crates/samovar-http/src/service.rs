//! The interface of an application.

use crate::error::Error;
use crate::head::Head;
use crate::observer::Observer;
use crate::reply::{Inline, Reply, Turn};
use crate::request::Request;
use crate::response::Response;

/// An application. One value serves all threads.
pub trait Service: Send + Sync + 'static {
    /// State of one I/O thread for [`inline`](Self::inline): not shared, so not locked.
    type Local: Send;

    /// Creates the state of one I/O thread.
    fn local(&self) -> Self::Local;

    /// Answers on the I/O thread, or declines. It must not block: no file, no contended lock, no
    /// computation beyond microseconds, because every connection of the thread waits meanwhile. It
    /// gets the head alone; a body is read only if it declines.
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

    /// Decides how the body of a request is received. Called on the I/O thread for requests with a
    /// body that [`inline`](Self::inline) declined; must not block.
    fn intake(&self, head: Head<'_>) -> Intake {
        let _unused = head;
        Intake::Buffered(0)
    }

    /// Answers on a worker; may block. A panic is answered 500 and reported.
    fn handle(&self, request: &mut Request) -> Response;

    /// Renders a response that the engine sends before a handler is called, or after one has
    /// panicked: malformed request, exceeded limit, overload. `None`: a line of plain text. Called
    /// on an I/O thread or a worker; must not block. The body must be in memory. A status of 200 is
    /// replaced by the status of the error, and a 503 gets `Retry-After` unless it has one.
    fn refuse(&self, error: &Error) -> Option<Response> {
        let _unused = error;
        None
    }

    /// Receives reports. Called for every event.
    fn observer(&self) -> &dyn Observer {
        &()
    }
}

/// How a handler receives the body of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intake {
    /// The whole body is in memory before the handler starts. At most this many bytes; a longer one
    /// is answered 413. While it arrives it occupies memory, but no thread.
    Buffered(u64),
    /// As `Buffered`, but the handler is called on the I/O thread, where neither it nor the body of
    /// its response may block, as in [`Service::inline`]. For handlers of microseconds that answer
    /// from memory or [defer](Response::later) the response: waking a worker costs as much. HTTP/1
    /// only; over HTTP/2, and for requests without a body, a worker calls the handler.
    Inline(u64),
    /// The handler starts after the head and reads the body while it arrives, in constant memory.
    /// At most this many bytes; beyond them reading fails, and the handler decides on the answer.
    Streamed(u64),
}

impl Intake {
    /// Maximum length of the body, in bytes.
    pub fn len_max(self) -> u64 {
        match self {
            Self::Buffered(len_max) | Self::Inline(len_max) | Self::Streamed(len_max) => len_max,
        }
    }
}
