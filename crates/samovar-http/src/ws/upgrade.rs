//! From a request to a WebSocket.

use std::fmt;

use super::accepted::Accepted;
use super::socket::Parts;
use super::{Compression, Handler, Limits, Origins, Socket};
use crate::head::Head;
use crate::http::Status;
use crate::proto::encode;
use crate::proto::ws::deflate::{Deflater, Inflater};
use crate::proto::ws::extension::{self, Agreement};
use crate::proto::ws::handshake::{self, Handshake, HandshakeError};
use crate::request::Request;
use crate::response::{Body, Response};

/// What a WebSocket is to be, and the handler of the one that a request asks for.
///
/// ```
/// use std::time::Duration;
/// use samovar_http::ws::{Closed, Handler, Limits, Message, Origins, Socket, Upgrade};
/// use samovar_http::{Request, Response};
///
/// struct Counter {
///     messages: u64,
/// }
///
/// impl Handler for Counter {
///     fn message(&mut self, socket: &Socket, _: Message<'_>) {
///         self.messages += 1;
///         socket.send(&self.messages.to_string());
///     }
/// }
///
/// fn count(request: &mut Request) -> Response {
///     Upgrade::new(Counter { messages: 0 })
///         .origins(Origins::Listed(vec!["https://example.org".into()]))
///         .limits(Limits { ping_time: Duration::from_secs(60), ..Limits::default() })
///         .accept(request)
/// }
/// ```
pub struct Upgrade {
    handler: Box<dyn Handler>,
    is_inline: bool,
    limits: Limits,
    compression: Option<Compression>,
    origins: Origins,
    protocols: Vec<String>,
}

impl Upgrade {
    /// A WebSocket whose events go to `handler`. Default: pages of the same origin only, with
    /// compression, without subprotocols, on workers.
    pub fn new(handler: impl Handler) -> Self {
        Self {
            handler: Box::new(handler),
            is_inline: false,
            limits: Limits::default(),
            compression: cfg!(feature = "compression").then(Compression::default),
            origins: Origins::default(),
            protocols: Vec::new(),
        }
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets how messages are compressed, or that they are not. Has no effect where compression is
    /// not built in.
    #[must_use]
    pub fn compression(mut self, compression: impl Into<Option<Compression>>) -> Self {
        if cfg!(feature = "compression") {
            self.compression = compression.into();
        }
        self
    }

    /// Sets whose pages may open the socket.
    #[must_use]
    pub fn origins(mut self, origins: Origins) -> Self {
        self.origins = origins;
        self
    }

    /// Adds a subprotocol that the handler speaks. The client's favourite is taken; with none in
    /// common the socket opens without one, and [`Socket::protocol`] says which it was.
    #[must_use]
    pub fn protocol(mut self, protocol: impl Into<String>) -> Self {
        self.protocols.push(protocol.into());
        self
    }

    /// Runs the handler on the I/O thread, without the way to a worker and back. It must not block:
    /// every connection of the thread waits meanwhile. What it sends leaves in one piece when it
    /// has seen all that was read.
    #[must_use]
    pub fn inline(mut self) -> Self {
        self.is_inline = true;
        self
    }

    /// The answer to `request`: 101 and then a WebSocket, or what is wrong with the handshake.
    pub fn accept(self, request: &Request) -> Response {
        match self.try_accept(request) {
            Ok((_, response)) => response,
            Err(error) => refuse(error),
        }
    }

    /// Like [`accept`](Self::accept), for a handler that wants the socket before its first event,
    /// or an answer of its own for a refusal.
    ///
    /// What is sent on the socket waits for the handshake to be out. The socket opens when the
    /// response is sent; if it is dropped instead, the handler is told nothing.
    ///
    /// # Errors
    ///
    /// What is wrong with the handshake.
    pub fn try_accept(self, request: &Request) -> Result<(Socket, Response), HandshakeError> {
        let head = request.head();
        let handshake = Handshake::check(head.method(), head.version(), head.headers())?;
        check_origin(&self.origins, head)?;
        let config = self.compression.map(|compression| compression.config());
        let agreement =
            config.and_then(|config| extension::accept_deflate(&handshake.extensions, &config));
        let protocol = handshake.choose_protocol(&self.protocols);
        let mut response = Response::new(Status::SWITCHING_PROTOCOLS, Body::Empty);
        let fields = &mut response.fields;
        encode::field(fields, "Upgrade", b"websocket");
        encode::field(fields, "Connection", b"Upgrade");
        encode::field(fields, "Sec-WebSocket-Accept", handshake.accept.as_bytes());
        if let Some(protocol) = protocol {
            encode::field(fields, "Sec-WebSocket-Protocol", protocol.as_bytes());
        }
        if let Some(agreement) = &agreement {
            let value = agreement.response.as_bytes();
            encode::field(fields, "Sec-WebSocket-Extensions", value);
        }
        let (workers, inline) = if self.is_inline {
            (None, Some(self.handler))
        } else {
            (Some(self.handler), None)
        };
        let has_context = agreement
            .as_ref()
            .is_some_and(|made| made.config.server_context);
        let socket = Socket::new(Parts {
            peer: head.peer(),
            protocol: protocol.map(Into::into),
            limits: self.limits,
            deflate_len_min: agreement.as_ref().and(
                self.compression
                    .map(|compression| compression.len_min.max(1)),
            ),
            deflater: agreement.as_ref().and_then(deflater),
            has_context,
            handler: workers,
        });
        response.upgrade = Some(Box::new(Accepted {
            socket: socket.clone(),
            inline,
            inflater: agreement.as_ref().and_then(inflater),
            is_started: false,
        }));
        Ok((socket, response))
    }
}

#[cfg(feature = "compression")]
#[expect(
    clippy::unnecessary_wraps,
    reason = "without the feature there is none"
)]
fn deflater(agreement: &Agreement) -> Option<Deflater> {
    let config = agreement.config;
    Some(Deflater::new(
        config.server_context,
        config.server_window_bits,
    ))
}

#[cfg(feature = "compression")]
#[expect(
    clippy::unnecessary_wraps,
    reason = "without the feature there is none"
)]
fn inflater(agreement: &Agreement) -> Option<Inflater> {
    Some(Inflater::new(
        agreement.config.client_context,
        agreement.client_window_bits,
    ))
}

#[cfg(not(feature = "compression"))]
fn deflater(_: &Agreement) -> Option<Deflater> {
    None
}

#[cfg(not(feature = "compression"))]
fn inflater(_: &Agreement) -> Option<Inflater> {
    None
}

fn check_origin(origins: &Origins, head: Head<'_>) -> Result<(), HandshakeError> {
    let Some(origin) = head.header("Origin") else {
        return Ok(());
    };
    let is_allowed = match origins {
        Origins::Any => true,
        Origins::Same => handshake::is_same_origin(origin, head.header("Host").unwrap_or_default()),
        Origins::Listed(listed) => listed
            .iter()
            .any(|listed| listed.as_bytes().eq_ignore_ascii_case(origin)),
    };
    if is_allowed {
        Ok(())
    } else {
        Err(HandshakeError::Origin)
    }
}

/// The answer to a handshake that is not accepted.
fn refuse(error: HandshakeError) -> Response {
    let status = error.status();
    let mut response = Response::text(status, format!("{error}\n"));
    if status == Status::UPGRADE_REQUIRED {
        // RFC 9110, 15.5.22: with what to upgrade to; RFC 6455, 4.4: in which version.
        let fields = &mut response.fields;
        encode::field(fields, "Upgrade", b"websocket");
        encode::field(fields, "Connection", b"Upgrade");
        encode::field(
            fields,
            "Sec-WebSocket-Version",
            handshake::VERSION.as_bytes(),
        );
    }
    if status == Status::METHOD_NOT_ALLOWED {
        response = response.header("Allow", "GET");
    }
    response
}

impl fmt::Debug for Upgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upgrade")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
