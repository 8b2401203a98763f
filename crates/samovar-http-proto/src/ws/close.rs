//! Close codes and reasons.
//!
//! ```text
//! close payload = empty / ( code(2 bytes) reason(UTF-8, at most 123 bytes) )
//! ```
//!
//! # Source
//!
//! RFC 6455, sections 5.5.1 and 7.4; IANA registry "WebSocket Close Code Number" (1012 to 1014 were
//! registered later).

use std::borrow::Cow;
use std::fmt;

use super::Failure;
use super::frame::CONTROL_LEN_MAX;

/// Maximum length of a close reason, in bytes.
pub const REASON_LEN_MAX: usize = CONTROL_LEN_MAX - 2;

/// A close code that may be sent in a close frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CloseCode(u16);

impl CloseCode {
    /// 1000: normal closure.
    pub const NORMAL: Self = Self(1000);
    /// 1001: the server shuts down, or the browser leaves the page.
    pub const GOING_AWAY: Self = Self(1001);
    /// 1002: protocol error.
    pub const PROTOCOL_ERROR: Self = Self(1002);
    /// 1003: unsupported kind of data.
    pub const UNSUPPORTED: Self = Self(1003);
    /// 1007: invalid payload, such as text that is not UTF-8.
    pub const INVALID_DATA: Self = Self(1007);
    /// 1008: policy violation, for errors that no other code describes.
    pub const POLICY: Self = Self(1008);
    /// 1009: message too big.
    pub const TOO_BIG: Self = Self(1009);
    /// 1011: internal error of the server.
    pub const INTERNAL_ERROR: Self = Self(1011);
    /// 1012: the server restarts.
    pub const RESTART: Self = Self(1012);
    /// 1013: overload; try again later.
    pub const TRY_AGAIN: Self = Self(1013);

    /// Creates a code: 1000 to 1014 except 1004 to 1006, which must not be sent, or 3000 to 4999,
    /// which are for libraries and applications. `None` for others.
    pub fn new(number: u16) -> Option<Self> {
        matches!(number, 1000..=1003 | 1007..=1014 | 3000..=4999).then_some(Self(number))
    }

    /// Returns the number.
    pub fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Parses the payload of a close frame; `None` if it is empty.
///
/// # Errors
///
/// For a payload of one byte, a code that must not be sent, or a reason that is not UTF-8.
pub fn parse(payload: &[u8]) -> Result<Option<(CloseCode, Cow<'_, str>)>, Failure> {
    let Some((code, reason)) = payload.split_first_chunk::<2>() else {
        return if payload.is_empty() {
            Ok(None)
        } else {
            Err(Failure::ClosePayload)
        };
    };
    let code = CloseCode::new(u16::from_be_bytes(*code)).ok_or(Failure::CloseCode)?;
    let reason = std::str::from_utf8(reason).map_err(|_invalid| Failure::Utf8)?;
    Ok(Some((code, Cow::Borrowed(reason))))
}

/// Returns the payload of a close frame. A long reason is truncated at a character boundary.
pub fn payload(code: CloseCode, reason: &str) -> Vec<u8> {
    let mut end = REASON_LEN_MAX.min(reason.len());
    while !reason.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    let reason = reason.as_bytes().get(..end).unwrap_or_default();
    [&code.number().to_be_bytes()[..], reason].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sendable_codes_are_accepted() {
        let valid: Vec<u16> = (0..=u16::MAX)
            .filter(|number| CloseCode::new(*number).is_some())
            .collect();
        let expected: Vec<u16> = (1000..=1003)
            .chain(1007..=1014)
            .chain(3000..=4999)
            .collect();
        assert_eq!(valid, expected);
    }

    #[test]
    fn payloads() {
        assert_eq!(parse(b""), Ok(None));
        assert_eq!(parse(b"\x03"), Err(Failure::ClosePayload));
        assert_eq!(parse(b"\x03\xe8"), Ok(Some((CloseCode::NORMAL, "".into()))));
        assert_eq!(parse(b"\x03\xed"), Err(Failure::CloseCode));
        assert_eq!(parse(b"\x03\xe8\xff"), Err(Failure::Utf8));
    }

    #[test]
    fn a_long_reason_is_truncated_between_characters() {
        let reason = "x".repeat(122) + "é";
        let payload = payload(CloseCode::NORMAL, &reason);
        assert_eq!(payload.len(), 124);
        let (code, read) = parse(&payload).unwrap().unwrap();
        assert_eq!((code, &*read), (CloseCode::NORMAL, &reason[..122]));
    }
}
