//! Accepts the WebSocket handshake of a request.

use std::fmt;

use crate::head::Head;
use crate::http::Status;
use crate::proto::encode;
use crate::proto::ws::handshake::{self, Handshake, HandshakeError};
use crate::request::Request;
use crate::response::{Body, Response};
use crate::ws::{Accepted, Handler, Limits, Origins, Socket};

/// Accepts a WebSocket handshake. Holds the socket's options and its handler.
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
    origins: Origins,
    protocols: Vec<String>,
}

impl Upgrade {
    /// Creates an upgrade that passes events to `handler`. Defaults: same-origin pages only,
    /// without subprotocols, handler on workers.
    pub fn new(handler: impl Handler) -> Self {
        Self {
            handler: Box::new(handler),
            is_inline: false,
            limits: Limits::default(),
            origins: Origins::default(),
            protocols: Vec::new(),
        }
    }

    /// Sets the limits of the socket.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the origins of the pages that may open the socket.
    #[must_use]
    pub fn origins(mut self, origins: Origins) -> Self {
        self.origins = origins;
        self
    }

    /// Adds a supported subprotocol. If the client offers supported subprotocols, the one that it
    /// prefers is used; otherwise the socket opens without one. See [`Socket::protocol`].
    #[must_use]
    pub fn protocol(mut self, protocol: impl Into<String>) -> Self {
        self.protocols.push(protocol.into());
        self
    }

    /// Runs the handler on the I/O thread, without the switch to a worker. The handler must not
    /// block: all connections of the thread would wait. Its messages are sent together after it has
    /// processed all received messages.
    #[must_use]
    pub fn inline(mut self) -> Self {
        self.is_inline = true;
        self
    }

    /// Returns the response to `request`: 101, or an error response if the handshake is refused.
    pub fn accept(self, request: &Request) -> Response {
        match self.try_accept(request) {
            Ok((_, response)) => response,
            Err(error) => refuse(error),
        }
    }

    /// Like [`accept`](Self::accept), but also returns the socket before its first event. A refused
    /// handshake is an error, so that the caller can choose the response.
    ///
    /// Messages sent on the socket are queued until the response was sent, which opens the socket.
    /// If the response is dropped, the handler receives no event.
    ///
    /// ```
    /// use samovar_http::ws::{Handler, Message, Socket, Upgrade};
    /// use samovar_http::{Request, Response};
    ///
    /// struct Chat;
    ///
    /// impl Handler for Chat {
    ///     fn message(&mut self, _: &Socket, _: Message<'_>) {}
    /// }
    ///
    /// fn join(request: &mut Request) -> Response {
    ///     match Upgrade::new(Chat).try_accept(request) {
    ///         Ok((socket, response)) => {
    ///             socket.send("welcome");
    ///             response
    ///         }
    ///         Err(error) => Response::text(error.status(), format!("{error}\n")),
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The reason for which the handshake is refused; the first one if there are several.
    pub fn try_accept(self, request: &Request) -> Result<(Socket, Response), HandshakeError> {
        let head = request.head();
        let handshake = Handshake::check(head.method(), head.version(), head.headers())?;
        check_origin(&self.origins, head)?;
        let protocol = handshake.choose_protocol(&self.protocols);
        let mut response = Response::new(Status::SWITCHING_PROTOCOLS, Body::Empty);
        let fields = &mut response.fields;
        encode::field(fields, "Upgrade", b"websocket");
        encode::field(fields, "Connection", b"Upgrade");
        encode::field(fields, "Sec-WebSocket-Accept", handshake.accept.as_bytes());
        if let Some(protocol) = protocol {
            encode::field(fields, "Sec-WebSocket-Protocol", protocol.as_bytes());
        }
        let observes_pings = self.handler.observes_pings();
        let (workers, inline) = if self.is_inline {
            (None, Some(self.handler))
        } else {
            (Some(self.handler), None)
        };
        let protocol = protocol.map(Into::into);
        let socket = Socket::new(head.peer(), protocol, self.limits, workers);
        response.upgrade = Some(Box::new(Accepted {
            socket: socket.clone(),
            inline,
            observes_pings,
            is_started: false,
        }));
        Ok((socket, response))
    }
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

/// Returns the response to a refused handshake.
fn refuse(error: HandshakeError) -> Response {
    let status = error.status();
    let mut response = Response::text(status, format!("{error}\n"));
    if status == Status::UPGRADE_REQUIRED {
        // RFC 9110, 15.5.22 requires `Upgrade`; RFC 6455, 4.4 the supported version.
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
