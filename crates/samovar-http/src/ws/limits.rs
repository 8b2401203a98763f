//! The bounds of a socket, and what it accepts.

use std::time::Duration;

use crate::proto::ws::extension::DeflateConfig;
use crate::proto::ws::message::FrameLimits;

/// Limits of one socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one frame's payload as sent; past it 1009. Default: 1 MiB.
    pub frame_len_max: u64,
    /// Bytes of one message, decompressed; past it 1009. Default: 1 MiB.
    pub message_len_max: usize,
    /// Bytes of messages that wait for the handler; past it nothing more is read until half of them
    /// are done. Default: 256 KiB.
    pub inbound_len_max: usize,
    /// Bytes of frames that wait for the peer; past it [`Socket::send`](super::Socket::send) ends
    /// the socket with 1013, and [`Socket::try_send`](super::Socket::try_send) says so. One frame
    /// may always wait. Default: 1 MiB.
    pub outbound_len_max: usize,
    /// Silence after which a peer is sent a ping; zero means never. Default: 30 s.
    pub ping_time: Duration,
    /// Silence after a ping; past it the connection is cut off. Default: 20 s.
    pub pong_time: Duration,
    /// From our close frame to the peer's; past it the connection is cut off. Default: 10 s.
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

/// How messages are compressed where the client offers permessage-deflate.
///
/// Context takeover makes many small and similar messages much smaller, and costs the last 32 KB
/// said in its direction for as long as the socket lives, and a copy of that with each message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compression {
    /// Whether the server's messages may point back into earlier ones. Default: no.
    pub server_context: bool,
    /// Whether the client's messages may. Default: no.
    pub client_context: bool,
    /// How far the server's messages point back, as a power of two, 9 to 15: a client with little
    /// memory asks for less. Default: 15.
    pub server_window_bits: u8,
    /// Bytes of a message from which on it is compressed. Default: 128.
    pub len_min: usize,
}

impl Default for Compression {
    fn default() -> Self {
        let DeflateConfig {
            server_context,
            client_context,
            server_window_bits,
        } = DeflateConfig::default();
        Self {
            server_context,
            client_context,
            server_window_bits,
            len_min: 128,
        }
    }
}

impl Compression {
    pub(crate) fn config(&self) -> DeflateConfig {
        DeflateConfig {
            server_context: self.server_context,
            client_context: self.client_context,
            server_window_bits: self.server_window_bits,
        }
    }
}

/// Whose pages may open a socket.
///
/// A browser sends its cookies with a WebSocket handshake from any page and does not ask first, but
/// it says where the page is from (RFC 6455, 10.2). Programs that are no browsers say nothing, and
/// could say anything: they are let through, and have to be known by other means.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Origins {
    /// Pages of this server: those whose origin has the host and port of the request. Behind a
    /// proxy that changes `Host`, list the origins.
    #[default]
    Same,
    /// Pages of these origins, such as `https://example.org`, without regard to letters' case.
    Listed(Vec<String>),
    /// All pages. Right where nothing depends on cookies.
    Any,
}
