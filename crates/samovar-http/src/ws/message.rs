//! WebSocket messages.

/// A message, borrowed from the received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// A text message. Always valid UTF-8; otherwise the connection fails.
    Text(&'a str),
    /// A binary message.
    Binary(&'a [u8]),
}

impl<'a> Message<'a> {
    /// Returns the payload.
    pub fn as_bytes(self) -> &'a [u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(data) => data,
        }
    }
}

impl<'a> From<&'a str> for Message<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Message<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a [u8]> for Message<'a> {
    fn from(data: &'a [u8]) -> Self {
        Self::Binary(data)
    }
}

impl<'a> From<&'a Vec<u8>> for Message<'a> {
    fn from(data: &'a Vec<u8>) -> Self {
        Self::Binary(data)
    }
}
