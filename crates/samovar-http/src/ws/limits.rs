//! Limits of a socket, and the check of a page's origin.

use std::time::Duration;

/// Limits of one socket. Later versions may add limits, so end a literal with
/// `..Limits::default()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum length of a message, in bytes; a longer message ends the socket with 1009. Default:
    /// 1 MiB.
    pub message_len_max: usize,
    /// Maximum length of the message queue for the handler, in bytes. When it is full, reading
    /// pauses until the queue is half empty. Default: 256 KiB.
    pub inbound_len_max: usize,
    /// Maximum length of the frame queue for the peer, in bytes. When it is full,
    /// [`Socket::send`](super::Socket::send) ends the socket with 1013, and
    /// [`Socket::try_send`](super::Socket::try_send) returns an error. An empty queue accepts a
    /// frame of any length. Default: 1 MiB.
    pub outbound_len_max: usize,
    /// Time without input after which the engine sends the peer a ping; zero turns these pings
    /// off. Default: 30 s.
    pub ping_time: Duration,
    /// Maximum time between a ping of the engine and the peer's next bytes; then the connection is
    /// reset. Default: 20 s.
    pub pong_time: Duration,
    /// Maximum time between the server's close frame and the peer's; then the connection is reset.
    /// Default: 10 s.
    pub close_time: Duration,
    // As in `samovar_http::Limits`.
    #[doc(hidden)]
    pub more: (),
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_len_max: 1 << 20,
            inbound_len_max: 256 << 10,
            outbound_len_max: 1 << 20,
            ping_time: Duration::from_secs(30),
            pong_time: Duration::from_secs(20),
            close_time: Duration::from_secs(10),
            more: (),
        }
    }
}

/// Origins of the pages that may open a socket.
///
/// A browser sends cookies with a WebSocket handshake from any page, without a preflight request.
/// It also sends the page's `Origin` (RFC 6455, 10.2), which the server checks here. Other programs
/// send no `Origin` or could forge it; requests without one are accepted and need another form of
/// authentication.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Origins {
    /// Pages of this server: the origin must have the same host and port as the request. Behind a
    /// proxy that changes `Host`, use [`Listed`](Self::Listed).
    #[default]
    Same,
    /// Pages of the listed origins, such as `https://example.org`; compared case-insensitively.
    Listed(Vec<String>),
    /// All pages. Safe only if the socket's authorization does not depend on cookies.
    Any,
}
