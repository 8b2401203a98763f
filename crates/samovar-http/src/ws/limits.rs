//! Limits of a socket, and the origins that may open one.

use std::time::Duration;

use crate::proto::ws::message::FrameLimits;

/// Limits of one socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Payload of a frame as sent, in bytes; longer ones end the socket with 1009. Default: 1 MiB.
    pub frame_len_max: u64,
    /// Length of a message, decompressed, in bytes; longer ones end the socket with 1009. Default:
    /// 1 MiB.
    pub message_len_max: usize,
    /// Queue of messages to the handler, in bytes; when it is full, reading pauses until it is half
    /// empty. Default: 256 KiB.
    pub inbound_len_max: usize,
    /// Queue of frames to the peer, in bytes; when it is full,
    /// [`Socket::send`](super::Socket::send) ends the socket with 1013, and
    /// [`Socket::try_send`](super::Socket::try_send) returns an error. An empty queue accepts a
    /// frame of any length. Default: 1 MiB.
    pub outbound_len_max: usize,
    /// Silence after which the peer gets a ping; zero means never. Default: 30 s.
    pub ping_time: Duration,
    /// Time limit for an answer to a ping; then the connection is reset. Default: 20 s.
    pub pong_time: Duration,
    /// Time limit for the peer's close frame after ours; then the connection is reset. Default: 10
    /// s.
    pub close_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            frame_len_max: 1 << 20,
            message_len_max: 1 << 20,
            inbound_len_max: 256 << 10,
            outbound_len_max: 1 << 20,
            ping_time: Duration::from_secs(30),
            pong_time: Duration::from_secs(20),
            close_time: Duration::from_secs(10),
        }
    }
}

impl Limits {
    pub(crate) fn frame_limits(&self) -> FrameLimits {
        FrameLimits {
            frame_len_max: self.frame_len_max,
            message_len_max: self.message_len_max,
        }
    }
}

/// Origins whose pages may open a socket.
///
/// A browser sends cookies with a WebSocket handshake from any page, without a preflight request,
/// but it sends the page's `Origin`, too (RFC 6455, 10.2). Other programs send no `Origin` and
/// could forge it: they are accepted here, and need another form of authentication.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Origins {
    /// Pages of this server: the origin has the host and port of the request. Behind a proxy that
    /// changes `Host`, use [`Listed`](Self::Listed).
    #[default]
    Same,
    /// Pages of these origins, such as `https://example.org`; case-insensitive.
    Listed(Vec<String>),
    /// All pages. Safe only if nothing depends on cookies.
    Any,
}
