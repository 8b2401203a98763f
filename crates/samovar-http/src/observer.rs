//! Reports of exchanges and incidents to the application.

use std::fmt::{self, Write as _};
use std::time::Duration;

use crate::client::Peer;
use crate::error::Error;
use crate::escaped::Escaped;
use crate::extensions::Extensions;
use crate::head::Head;
use crate::http::Status;
use crate::proto::Refusal;
use crate::proto::ws::Failure;

/// Receives reports for logs, metrics and alerts. No method may block, because some are called on
/// I/O threads. If a method panics, the connection in question is closed.
///
/// `()` ignores all reports.
pub trait Observer: Send + Sync {
    /// Returns whether to call [`exchanged`](Self::exchanged). Called once per request.
    fn observes(&self) -> bool {
        false
    }

    /// Reports a response of the application, or a 500 or 503 that the engine sent instead. Called
    /// when the kernel has accepted the last byte, or when the response has failed. A request that
    /// the engine refuses before the application sees it, such as a malformed one, is reported as
    /// [`Incident::Refused`] instead.
    fn exchanged(&self, exchange: &Exchange<'_>) {
        let _unused = exchange;
    }

    /// Reports an event that may matter to an operator.
    fn incident(&self, incident: &Incident<'_>) {
        let _unused = incident;
    }
}

impl Observer for () {}

/// What a service has found out about a request, for its observer: see
/// [`Reply::with_tag`](crate::Reply::with_tag). The engine carries the bytes and gives them no
/// meaning. All bytes are zero if the service has set no tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tag(pub [u8; 24]);

/// A request and its response.
///
/// For an access log with an identifier for each request, let middleware create the identifier,
/// send it in a header field, and insert it into the request's
/// [extensions](crate::Request::extensions_mut): the example `logging` does so.
#[derive(Debug)]
#[non_exhaustive]
pub struct Exchange<'a> {
    /// The request.
    pub head: Head<'a>,
    /// The pattern of the route that the request matched, as
    /// [`Service::pattern`](crate::Service::pattern) and [`Request::pattern`] return it; `None` if
    /// the request matched no route. The label for metrics.
    ///
    /// [`Request::pattern`]: crate::Request::pattern
    pub pattern: Option<&'a str>,
    /// What middleware and handlers have attached to the request. Empty for a response that
    /// was sent inline.
    pub extensions: &'a Extensions,
    /// Status of the response.
    pub status: Status,
    /// Number of body bytes that the kernel has accepted.
    pub body_len: u64,
    /// Outcome of the response.
    pub end: End,
    /// Whether the response was sent by the I/O thread, without a worker.
    pub is_inline: bool,
    /// The tag that the service has set; the default if the service was not asked.
    pub tag: Tag,
    /// Time from the end of the request to the end of the response.
    pub duration: Duration,
}

/// An event worth a log line or a counter.
///
/// As text, an incident is one line: control characters, which a client or a file name may have
/// brought into an error, are escaped.
#[derive(Debug)]
#[non_exhaustive]
pub enum Incident<'a> {
    /// A handler panicked; the client got a 500.
    #[non_exhaustive]
    HandlerPanicked {
        /// The request whose handler has panicked.
        head: Head<'a>,
        /// The pattern of its route, as in [`Exchange::pattern`].
        pattern: Option<&'a str>,
        /// What was attached to the request before the panic.
        extensions: &'a Extensions,
    },
    /// A handler returned an error that the client did not cause. A [`Router`] has converted it to
    /// a response.
    ///
    /// [`Router`]: crate::Router
    #[non_exhaustive]
    HandlerFailed {
        /// The request whose handler has failed.
        head: Head<'a>,
        /// The pattern of its route, as in [`Exchange::pattern`].
        pattern: Option<&'a str>,
        /// What middleware and the handler have attached to the request.
        extensions: &'a Extensions,
        /// The error that the handler returned, with its cause.
        error: &'a Error,
    },
    /// A response body failed, or differed from its announced length. The connection was reset, or
    /// the client got 503 if no byte of the response was sent.
    #[non_exhaustive]
    BodyFailed {
        /// The error of the body's source or file.
        error: &'a std::io::Error,
        /// Whether a part of the response was sent, so that the response was aborted.
        is_cut_off: bool,
    },
    /// A client violated the protocol or exceeded a limit.
    #[non_exhaustive]
    Refused {
        /// The client whose request was refused.
        peer: Peer,
        /// The head of the request; `None` if the head is refused, or has not arrived completely.
        head: Option<Head<'a>>,
        /// The pattern of its route, as in [`Exchange::pattern`].
        pattern: Option<&'a str>,
        /// The protocol violation or the exceeded limit.
        refusal: Refusal,
    },
    /// A client was disconnected because it was too slow; see
    /// [`Limits::stall_len_min`](crate::Limits::stall_len_min). Or its upload ended because it was
    /// the slowest; see [`Limits::waiting_handlers_max`](crate::Limits::waiting_handlers_max).
    #[non_exhaustive]
    TooSlow {
        /// The disconnected client.
        peer: Peer,
    },
    /// A TLS handshake failed: the client violated the protocol, did not trust the server, or was
    /// not trusted. Clients that disconnect or exceed the time limit are not reported.
    #[non_exhaustive]
    HandshakeFailed {
        /// The client of the failed handshake.
        peer: Peer,
        /// The error of the handshake.
        error: &'a std::io::Error,
    },
    /// A WebSocket handler panicked; the socket was closed with 1011.
    #[non_exhaustive]
    SocketHandlerPanicked {
        /// The client of the closed socket.
        peer: Peer,
    },
    /// A client violated the WebSocket protocol or exceeded a limit.
    #[non_exhaustive]
    SocketFailed {
        /// The client of the failed socket.
        peer: Peer,
        /// The protocol violation or the exceeded limit.
        failure: Failure,
    },
    /// An HTTP/2 client violated the protocol or exceeded a rate limit; its connection is closed.
    #[non_exhaustive]
    Abused {
        /// The client whose connection is closed.
        peer: Peer,
        /// The kind of abuse or protocol violation.
        abuse: crate::h2::Abuse,
    },
    /// A connection was evicted for a new one, because the connection limit is reached.
    #[non_exhaustive]
    GaveWay {
        /// The client of the evicted connection.
        peer: Peer,
    },
    /// A new connection was refused, by 503 or by closing it: the limit of TLS handshakes is
    /// reached, or the limit of connections is reached and none could be evicted.
    ConnectionsFull,
    /// The queue of a lane is full: a request got 503, or a connection was closed before its TLS
    /// handshake.
    WorkersFull,
    /// A connection could not be accepted for lack of descriptors or memory; the server retries
    /// soon.
    #[non_exhaustive]
    AcceptFailed {
        /// The system error, such as `EMFILE`.
        error: &'a std::io::Error,
    },
}

/// Outcome of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Complete: the kernel has accepted all bytes.
    Complete,
    /// Aborted by the client. An endless response, such as server-sent events, always ends this
    /// way.
    ///
    /// While a response waits for the application ([`Response::later`](crate::Response::later),
    /// [`Body::channel`](crate::Body::channel)), a client that shuts down its sending side counts
    /// as disconnected, because a closed connection looks the same. Unread requests of the client
    /// delay this by one [`stall_time`](crate::Limits::stall_time) at most. The same holds if a
    /// reader or an iterator yields nothing for
    /// [`linger_time`](crate::Limits::linger_time). Other responses are sent completely to such a
    /// client, and with [`Limits::half_close`](crate::Limits::half_close) these, too.
    Left,
    /// Aborted by the server: the body failed, the client was too slow, a drain timed out, or the
    /// connection was evicted.
    Cut,
}

impl fmt::Display for Incident<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = Escaped(f);
        match self {
            Self::HandlerPanicked { head, .. } => write!(f, "handler panicked on {head:?}"),
            Self::HandlerFailed { head, error, .. } => write!(f, "{head:?} failed: {error}"),
            Self::BodyFailed {
                error,
                is_cut_off: true,
            } => write!(f, "response aborted: {error}"),
            Self::BodyFailed { error, .. } => write!(f, "503 in place of a response: {error}"),
            Self::Refused {
                peer,
                head,
                refusal,
                ..
            } => match head {
                Some(head) => write!(f, "refused {head:?} of {peer}: {refusal}"),
                None => write!(f, "refused request of {peer}: {refusal}"),
            },
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
