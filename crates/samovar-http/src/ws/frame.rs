//! Messages that are encoded once and sent to many sockets.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::Message;
use crate::proto::ws::deflate::{self, WINDOW_BITS_MAX};
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
pub struct Frame(Arc<Encoded>);

struct Encoded {
    plain: Arc<[u8]>,
    /// Index of the payload's first byte in `plain`.
    header_len: usize,
    op_code: OpCode,
    /// The message compressed with the largest window, created for the first socket that needs it.
    /// `None` inside if compression does not make it shorter.
    deflated: OnceLock<Option<Arc<[u8]>>>,
}

impl Frame {
    /// Encodes a message.
    pub fn new<'a>(message: impl Into<Message<'a>>) -> Self {
        let message = message.into();
        let payload = message.as_bytes();
        let op_code = op_code(message);
        let mut plain = Vec::with_capacity(payload.len() + 10);
        frame::encode(&mut plain, op_code, false, payload.len());
        let header_len = plain.len();
        plain.extend_from_slice(payload);
        Self(Arc::new(Encoded {
            plain: plain.into(),
            header_len,
            op_code,
            deflated: OnceLock::new(),
        }))
    }

    /// Returns the message.
    pub fn payload(&self) -> &[u8] {
        self.0.plain.get(self.0.header_len..).unwrap_or_default()
    }

    pub(super) fn plain(&self) -> &Arc<[u8]> {
        &self.0.plain
    }

    pub(super) fn deflated(&self) -> Option<&Arc<[u8]>> {
        let make = || {
            let mut payload = Vec::new();
            deflate::deflate(self.payload(), WINDOW_BITS_MAX, &mut payload).then(|| {
                let mut bytes = Vec::with_capacity(payload.len() + 10);
                frame::encode(&mut bytes, self.0.op_code, true, payload.len());
                bytes.extend_from_slice(&payload);
                bytes.into()
            })
        };
        self.0.deflated.get_or_init(make).as_ref()
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} bytes", self.0.op_code, self.payload().len())
    }
}

pub(super) fn op_code(message: Message<'_>) -> OpCode {
    match message {
        Message::Text(_) => OpCode::Text,
        Message::Binary(_) => OpCode::Binary,
    }
}
