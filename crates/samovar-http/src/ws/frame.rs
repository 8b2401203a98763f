//! Messages that are encoded once and sent to many sockets.

use std::fmt;
use std::sync::Arc;

use super::Message;
use crate::proto::ws::frame::{self, OpCode};

/// An encoded message that can be sent to any number of sockets; cheap to clone.
///
/// ```
/// # use samovar_http::ws::{Frame, Socket};
/// fn announce(sockets: &[Socket], text: &str) {
///     let frame = Frame::new(text);
///     for socket in sockets {
///         socket.send_frame(&frame);
///     }
/// }
/// ```
#[derive(Clone)]
pub struct Frame {
    bytes: Arc<[u8]>,
    /// Index of the payload's first byte in `bytes`.
    header_len: usize,
}

impl Frame {
    /// Encodes a message.
    pub fn new<'a>(message: impl Into<Message<'a>>) -> Self {
        let message = message.into();
        let payload = message.as_bytes();
        let mut bytes = Vec::with_capacity(payload.len() + 10);
        frame::encode(&mut bytes, op_code(message), payload.len());
        let header_len = bytes.len();
        bytes.extend_from_slice(payload);
        Self {
            bytes: bytes.into(),
            header_len,
        }
    }

    /// Returns the message.
    pub fn payload(&self) -> &[u8] {
        self.bytes.get(self.header_len..).unwrap_or_default()
    }

    pub(super) fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame of {} bytes", self.payload().len())
    }
}

pub(super) fn op_code(message: Message<'_>) -> OpCode {
    match message {
        Message::Text(_) => OpCode::Text,
        Message::Binary(_) => OpCode::Binary,
    }
}
