//! Why a WebSocket is closed: codes and reasons.
//!
//! ```text
//! close payload = empty / ( code(2 bytes) reason(UTF-8, at most 123 bytes) )
//! ```
//!
//! # Source
//!
//! RFC 6455, sections 5.5.1 and 7.4, and the registry of IANA that 11.7 sets up (1012 to 1014 were
//! registered later).

use std::borrow::Cow;
use std::fmt;

use super::Failure;
use super::frame::CONTROL_LEN_MAX;

/// The longest reason that a close frame has room for, in bytes.
pub const REASON_LEN_MAX: usize = CONTROL_LEN_MAX - 2;

/// The code of a close frame: one that may stand on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CloseCode(u16);

impl CloseCode {
    /// 1000: done what was to be done.
    pub const NORMAL: Self = Self(1000);
    /// 1001: the server goes down, or the page is left.
    pub const GOING_AWAY: Self = Self(1001);
    /// 1002: the peer broke the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1002);
    /// 1003: a kind of data that is not accepted.
    pub const UNSUPPORTED: Self = Self(1003);
    /// 1007: data that is not what its kind says, such as text that is not UTF-8.
    pub const INVALID_DATA: Self = Self(1007);
    /// 1008: against a policy, where no other code fits.
    pub const POLICY: Self = Self(1008);
    /// 1009: a message longer than is accepted.
    pub const TOO_BIG: Self = Self(1009);
    /// 1011: the server met something that it was not made for.
    pub const INTERNAL_ERROR: Self = Self(1011);
    /// 1012: the server restarts.
    pub const RESTART: Self = Self(1012);
    /// 1013: too much to do; come again later.
    pub const TRY_AGAIN: Self = Self(1013);

    /// The code with this number: 1000 to 1014 without 1004 to 1006, which may not be sent, or 3000
    /// to 4999, which are for libraries and applications.
    pub fn new(number: u16) -> Option<Self> {
        matches!(number, 1000..=1003 | 1007..=1014 | 3000..=4999).then_some(Self(number))
    }

    /// The number.
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

/// Reads the payload of a close frame; `None` if it names no code.
///
/// # Errors
///
/// A payload of one byte, a code that may not be sent, a reason that is not UTF-8.
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

/// The payload of a close frame. A reason too long is cut between two characters.
pub fn payload(code: CloseCode, reason: &str) -> Vec<u8> {
    let end = reason.floor_char_boundary(REASON_LEN_MAX);
    let reason = reason.as_bytes().get(..end).unwrap_or_default();
    [&code.number().to_be_bytes()[..], reason].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_that_may_be_sent() {
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
    fn a_long_reason_is_cut_between_characters() {
        let reason = "x".repeat(122) + "é";
        let payload = payload(CloseCode::NORMAL, &reason);
        assert_eq!(payload.len(), 124);
        let (code, read) = parse(&payload).unwrap().unwrap();
        assert_eq!((code, &*read), (CloseCode::NORMAL, &reason[..122]));
    }
}
