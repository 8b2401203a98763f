//! Who is told what happened.

use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::head::{Head, Peer};
use crate::http::Status;
use crate::proto::Refusal;
use crate::proto::ws::Failure;

/// Told of what the engine does: for logs, metrics, alarms. No method may block, because some run
/// on I/O threads; a panic in one costs the connection it is about.
///
/// `()` is an observer that looks away.
pub trait Observer: Send + Sync {
    /// Whether [`exchanged`](Self::exchanged) is to be called. Asked once a request.
    fn observes(&self) -> bool {
        false
    }

    /// Told of every answer of the application, and of the engine's 500 and 503 in place of one,
    /// once its last byte is with the kernel, or once it failed. A request that the engine refuses
    /// before the application has it, such as a malformed one, is an
    /// [incident](Incident::Refused) instead.
    fn exchanged(&self, exchange: &Exchange<'_>) {
        let _unused = exchange;
    }

    /// Told of what an operator may want to know.
    fn incident(&self, incident: &Incident<'_>) {
        let _unused = incident;
    }
}

impl Observer for () {}

/// A request and what became of it.
#[derive(Debug)]
pub struct Exchange<'a> {
    /// The request.
    pub head: Head<'a>,
    /// The status it was answered with.
    pub status: Status,
    /// Bytes of the body handed to the kernel.
    pub body_len: u64,
    /// How the answer ended.
    pub end: End,
    /// Whether the I/O thread answered by itself.
    pub is_inline: bool,
    /// From the moment the end of the request was seen to be there to the end of the answer.
    pub duration: Duration,
}

/// Something worth a log line or a counter.
#[derive(Debug)]
#[non_exhaustive]
pub enum Incident<'a> {
    /// A handler panicked; the peer got a 500.
    HandlerPanicked {
        /// The request.
        head: Head<'a>,
    },
    /// A handler returned an error that is not the client's doing, and a [`Router`] answered it.
    ///
    /// [`Router`]: crate::Router
    HandlerFailed {
        /// The request.
        head: Head<'a>,
        /// The error, with its cause.
        error: &'a Error,
    },
    /// A body failed on its way, or was not of its announced length. The connection was reset, or
    /// the answer became a 503 if nothing of it had left.
    BodyFailed {
        /// The cause.
        error: &'a std::io::Error,
        /// Whether a part of the answer had left, so that it was cut off.
        is_cut_off: bool,
    },
    /// A peer broke the protocol or a limit.
    Refused {
        /// Who.
        peer: Peer,
        /// What it did.
        refusal: Refusal,
    },
    /// A peer read or wrote too slowly and was cut off.
    TooSlow {
        /// Who.
        peer: Peer,
    },
    /// A TLS handshake was not finished: the peer broke the protocol, did not trust us, or was not
    /// trusted. Peers that go away, or take too long, are not reported.
    HandshakeFailed {
        /// Who.
        peer: Peer,
        /// The cause.
        error: &'a std::io::Error,
    },
    /// The handler of a WebSocket panicked; the socket was closed with 1011.
    SocketHandlerPanicked {
        /// Who was at the other end.
        peer: Peer,
    },
    /// A peer broke the rules of WebSocket, or a limit.
    SocketFailed {
        /// Who.
        peer: Peer,
        /// What it did.
        failure: Failure,
    },
    /// A peer of HTTP/2 broke the protocol, or cost more than it may; its connection is closed.
    #[cfg(feature = "http2")]
    Abused {
        /// Who.
        peer: Peer,
        /// What it did.
        abuse: crate::h2::Abuse,
    },
    /// The limit of connections is reached; one that waited for its peer was closed for a new one.
    GaveWay {
        /// Whose it was.
        peer: Peer,
    },
    /// The limit of connections is reached; a new one was answered 503.
    ConnectionsFull,
    /// The queue to the workers is full; a request was answered 503.
    WorkersFull,
    /// No connection can be accepted, for want of descriptors or memory; tried again shortly.
    AcceptFailed {
        /// The cause.
        error: &'a std::io::Error,
    },
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The kernel has all of it.
    Complete,
    /// Its client left. One without an end, such as server-sent events, always ends so.
    Left,
    /// This server gave it up: its body failed, its client was too slow, or there was no more time
    /// or room for it.
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
            } => write!(f, "response cut off: {error}"),
            Self::BodyFailed { error, .. } => write!(f, "503 in place of a response: {error}"),
            Self::Refused { peer, refusal } => write!(f, "refused request of {peer}: {refusal}"),
            Self::TooSlow { peer } => write!(f, "{peer} is too slow, connection closed"),
            Self::HandshakeFailed { peer, error } => {
                write!(f, "no secure connection with {peer}: {error}")
            }
            Self::SocketHandlerPanicked { peer } => {
                write!(f, "WebSocket handler panicked, serving {peer}")
            }
            Self::SocketFailed { peer, failure } => {
                write!(f, "failed WebSocket of {peer}: {failure}")
            }
            #[cfg(feature = "http2")]
            Self::Abused { peer, abuse } => write!(f, "closed connection of {peer}: {abuse}"),
            Self::GaveWay { peer } => {
                write!(
                    f,
                    "connection limit reached, closed one of {peer} that did nothing"
                )
            }
            Self::ConnectionsFull => f.write_str("connection limit reached"),
            Self::WorkersFull => f.write_str("worker queue full"),
            Self::AcceptFailed { error } => write!(f, "cannot accept connections: {error}"),
        }
    }
}
