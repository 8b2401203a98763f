//! Reports to the application: exchanges and incidents.

use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::head::{Head, Peer};
use crate::http::Status;
use crate::proto::Refusal;
use crate::proto::ws::Failure;

/// Receives reports for logs, metrics and alerts. No method may block, because some run on I/O
/// threads. A panic in a method closes the connection that the report is about.
///
/// `()` ignores all reports.
pub trait Observer: Send + Sync {
    /// Whether to call [`exchanged`](Self::exchanged). Called once per request.
    fn observes(&self) -> bool {
        false
    }

    /// Reports an answer of the application, or the engine's 500 or 503 in place of one: when the
    /// kernel has its last byte, or when it failed. A request that the engine refuses before the
    /// application sees it, such as a malformed one, is reported as
    /// [`Incident::Refused`] instead.
    fn exchanged(&self, exchange: &Exchange<'_>) {
        let _unused = exchange;
    }

    /// Reports an event that may interest an operator.
    fn incident(&self, incident: &Incident<'_>) {
        let _unused = incident;
    }
}

impl Observer for () {}

/// A request and its answer.
#[derive(Debug)]
pub struct Exchange<'a> {
    /// The request.
    pub head: Head<'a>,
    /// Status of the answer.
    pub status: Status,
    /// Bytes of the body that the kernel has taken.
    pub body_len: u64,
    /// How the answer ended.
    pub end: End,
    /// Whether the I/O thread answered without a worker.
    pub is_inline: bool,
    /// Time from receiving the end of the request to the end of the answer.
    pub duration: Duration,
}

/// An event worth a log line or a counter.
#[derive(Debug)]
#[non_exhaustive]
pub enum Incident<'a> {
    /// A handler panicked; the client got a 500.
    HandlerPanicked {
        /// The request.
        head: Head<'a>,
    },
    /// A handler returned an error that the client did not cause, and a [`Router`] answered it.
    ///
    /// [`Router`]: crate::Router
    HandlerFailed {
        /// The request.
        head: Head<'a>,
        /// The error, with its cause.
        error: &'a Error,
    },
    /// A response body failed, or did not have its announced length. The connection was reset, or
    /// the answer replaced by a 503 if none of it was sent.
    BodyFailed {
        /// The cause.
        error: &'a std::io::Error,
        /// Whether part of the answer was sent, so that it was aborted.
        is_cut_off: bool,
    },
    /// A client broke the protocol or exceeded a limit.
    Refused {
        /// The client.
        peer: Peer,
        /// The reason.
        refusal: Refusal,
    },
    /// A client was disconnected because it was too slow; see
    /// [`Limits::stall_len_min`](crate::Limits::stall_len_min).
    TooSlow {
        /// The client.
        peer: Peer,
    },
    /// A TLS handshake failed: the client broke the protocol, did not trust the server, or was not
    /// trusted. Clients that leave or take too long are not reported.
    HandshakeFailed {
        /// The client.
        peer: Peer,
        /// The cause.
        error: &'a std::io::Error,
    },
    /// A WebSocket handler panicked; the socket was closed with 1011.
    SocketHandlerPanicked {
        /// The client.
        peer: Peer,
    },
    /// A client broke the WebSocket protocol or exceeded a limit.
    SocketFailed {
        /// The client.
        peer: Peer,
        /// The reason.
        failure: Failure,
    },
    /// An HTTP/2 client broke the protocol, or caused more work than it may; its connection is
    /// closed.
    #[cfg(feature = "http2")]
    Abused {
        /// The client.
        peer: Peer,
        /// The reason.
        abuse: crate::h2::Abuse,
    },
    /// The connection limit is reached; a connection was evicted for a new one.
    GaveWay {
        /// The client of the evicted connection.
        peer: Peer,
    },
    /// The connection limit is reached; a new connection was answered 503.
    ConnectionsFull,
    /// A lane's queue is full; a request was answered 503.
    WorkersFull,
    /// No connection can be accepted for lack of descriptors or memory; tried again shortly.
    AcceptFailed {
        /// The cause.
        error: &'a std::io::Error,
    },
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Complete: the kernel has all of it.
    Complete,
    /// Aborted by the client. An endless answer, such as server-sent events, always ends so.
    Left,
    /// Aborted by the server: the body failed, the client was too slow, a drain ended, or the
    /// connection was evicted.
    Cut,
}

impl fmt::Display for Incident<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HandlerPanicked { head } => write!(f, "handler panicked on {head:?}"),
            Self::HandlerFailed { head, error } => write!(f, "{head:?} failed: {error}"),
            Self::BodyFailed {
                error,
                is_cut_off: true,
            } => write!(f, "response aborted: {error}"),
            Self::BodyFailed { error, .. } => write!(f, "503 in place of a response: {error}"),
            Self::Refused { peer, refusal } => write!(f, "refused request of {peer}: {refusal}"),
            Self::TooSlow { peer } => write!(f, "{peer} is too slow; connection closed"),
            Self::HandshakeFailed { peer, error } => {
                write!(f, "TLS handshake with {peer} failed: {error}")
            }
            Self::SocketHandlerPanicked { peer } => {
                write!(f, "WebSocket handler for {peer} panicked")
            }
            Self::SocketFailed { peer, failure } => {
                write!(f, "WebSocket of {peer} failed: {failure}")
            }
            #[cfg(feature = "http2")]
            Self::Abused { peer, abuse } => write!(f, "closed connection of {peer}: {abuse}"),
            Self::GaveWay { peer } => {
                write!(
                    f,
                    "connection limit reached, evicted an idle connection of {peer}"
                )
            }
            Self::ConnectionsFull => f.write_str("connection limit reached"),
            Self::WorkersFull => f.write_str("worker queue full"),
            Self::AcceptFailed { error } => write!(f, "cannot accept connections: {error}"),
        }
    }
}
