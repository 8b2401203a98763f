//! The wire format of WebSocket frames.
//!
//! ```text
//! frame = FIN(1) RSV(3) opcode(4) MASK(1) length(7) [ length(16) / length(64) ] [ key(32) ]
//!         payload
//! ```
//!
//! All numbers are in network byte order. Frames from clients are masked; frames from servers are
//! not.
//!
//! # Source
//!
//! RFC 6455, section 5.2.

use super::Failure;

/// Maximum payload length of a control frame, in bytes (RFC 6455, 5.5).
pub const CONTROL_LEN_MAX: usize = 125;
/// Maximum length of the header of a client's frame, in bytes.
pub const HEADER_LEN_MAX: usize = 14;

/// The opcode of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpCode {
    /// Continuation of a fragmented message.
    Continuation = 0x0,
    /// Text message, or its first fragment.
    Text = 0x1,
    /// Binary message, or its first fragment.
    Binary = 0x2,
    /// Close frame, or the reply to one.
    Close = 0x8,
    /// Ping frame, which the receiver replies to with a pong.
    Ping = 0x9,
    /// Pong frame: the reply to a ping, or unsolicited.
    Pong = 0xa,
}

impl OpCode {
    /// Returns whether this is the opcode of a control frame.
    pub fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }

    fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0x0 => Self::Continuation,
            0x1 => Self::Text,
            0x2 => Self::Binary,
            0x8 => Self::Close,
            0x9 => Self::Ping,
            0xa => Self::Pong,
            _ => return None,
        })
    }
}

/// The header of a client's frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Whether this is the last frame of its message (FIN).
    pub is_final: bool,
    /// The frame's opcode.
    pub op_code: OpCode,
    /// The key that masks the payload.
    pub mask: [u8; 4],
    /// Length of the payload in bytes, below 2^63.
    pub payload_len: u64,
    /// Length of this header in bytes.
    pub header_len: usize,
}

/// Parses the header of a client's frame; `None` while it is incomplete.
///
/// # Errors
///
/// A [`Failure`], at the first byte that violates the protocol.
pub fn parse(input: &[u8]) -> Result<Option<FrameHeader>, Failure> {
    let [first, rest @ ..] = input else {
        return Ok(None);
    };
    if first & 0x70 != 0 {
        return Err(Failure::ReservedBits);
    }
    let op_code = OpCode::from_bits(first & 0x0f).ok_or(Failure::OpCode)?;
    let is_final = first & 0x80 != 0;
    if op_code.is_control() && !is_final {
        return Err(Failure::ControlFragmented);
    }
    let [second, rest @ ..] = rest else {
        return Ok(None);
    };
    if second & 0x80 == 0 {
        return Err(Failure::Unmasked);
    }
    let short = second & 0x7f;
    if op_code.is_control() && usize::from(short) > CONTROL_LEN_MAX {
        return Err(Failure::ControlLen);
    }
    let Some((payload_len, len_len)) = length(short, rest)? else {
        return Ok(None);
    };
    let Some(mask) = rest.get(len_len..).and_then(<[u8]>::first_chunk::<4>) else {
        return Ok(None);
    };
    Ok(Some(FrameHeader {
        is_final,
        op_code,
        mask: *mask,
        payload_len,
        header_len: len_len.saturating_add(6),
    }))
}

/// Returns the payload length, and the number of bytes that its extended encoding takes; `None` if
/// these bytes have not all arrived.
fn length(short: u8, rest: &[u8]) -> Result<Option<(u64, usize)>, Failure> {
    match short {
        126 => {
            let Some(bytes) = rest.first_chunk::<2>() else {
                return Ok(None);
            };
            let len = u16::from_be_bytes(*bytes);
            if len < 126 {
                return Err(Failure::LengthForm);
            }
            Ok(Some((len.into(), 2)))
        }
        127 => {
            let Some(bytes) = rest.first_chunk::<8>() else {
                return Ok(None);
            };
            let len = u64::from_be_bytes(*bytes);
            if len >> 63 != 0 {
                return Err(Failure::LengthOverflow);
            }
            if len <= u64::from(u16::MAX) {
                return Err(Failure::LengthForm);
            }
            Ok(Some((len, 8)))
        }
        short => Ok(Some((short.into(), 0))),
    }
}

/// Masks or unmasks a piece of a payload. `offset` is the number of payload bytes before the piece.
pub fn unmask(piece: &mut [u8], mask: [u8; 4], offset: u64) {
    let mut key = mask;
    key.rotate_left(usize::try_from(offset % 4).unwrap_or_default());
    let [a, b, c, d] = key;
    let wide = u64::from_le_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = piece.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_le_bytes(*word) ^ wide).to_le_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(wide.to_le_bytes()) {
        *byte ^= key;
    }
}

/// Appends the header of an unmasked frame that contains a whole message.
pub fn encode(out: &mut Vec<u8>, op_code: OpCode, payload_len: usize) {
    out.push(0x80 | op_code as u8);
    match (u8::try_from(payload_len), u16::try_from(payload_len)) {
        (Ok(short @ ..=125), _) => out.push(short),
        (_, Ok(medium)) => {
            out.push(126);
            out.extend_from_slice(&medium.to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend_from_slice(&(payload_len as u64).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 4] = [1, 2, 3, 4];

    #[track_caller]
    fn check(input: &[u8], expected: Result<Option<(OpCode, u64, usize)>, Failure>) {
        let parsed = parse(input);
        let parsed = parsed.map(|header| header.map(|h| (h.op_code, h.payload_len, h.header_len)));
        assert_eq!(parsed, expected, "{input:x?}");
    }

    #[test]
    fn lengths_have_one_form() {
        check(b"\x81\x85\x01\x02\x03\x04", Ok(Some((OpCode::Text, 5, 6))));
        check(
            b"\x82\xfd\x01\x02\x03\x04",
            Ok(Some((OpCode::Binary, 125, 6))),
        );
        check(
            b"\x82\xfe\x00\x7e\x01\x02\x03\x04",
            Ok(Some((OpCode::Binary, 126, 8))),
        );
        check(b"\x82\xfe\x00\x7d", Err(Failure::LengthForm));
        check(
            b"\x82\xfe\xff\xff\x01\x02\x03\x04",
            Ok(Some((OpCode::Binary, 65535, 8))),
        );
        check(b"\x82\xff\0\0\0\0\0\0\xff\xff", Err(Failure::LengthForm));
        check(
            b"\x82\xff\0\0\0\0\0\x01\0\0\x01\x02\x03\x04",
            Ok(Some((OpCode::Binary, 65536, 14))),
        );
        check(b"\x82\xff\x80\0\0\0\0\0\0\0", Err(Failure::LengthOverflow));
        let longest = (1_u64 << 63) - 1;
        let header = [&b"\x82\xff"[..], &longest.to_be_bytes(), &KEY].concat();
        check(&header, Ok(Some((OpCode::Binary, longest, 14))));
    }

    #[test]
    fn errors_are_reported_at_their_byte() {
        for (first, failure) in [
            (0xc1, Failure::ReservedBits),
            (0x91, Failure::ReservedBits),
            (0xa1, Failure::ReservedBits),
            (0x83, Failure::OpCode),
            (0x87, Failure::OpCode),
            (0x8b, Failure::OpCode),
            (0x8f, Failure::OpCode),
            (0x08, Failure::ControlFragmented),
            (0x09, Failure::ControlFragmented),
            (0x0a, Failure::ControlFragmented),
        ] {
            check(&[first], Err(failure));
        }
        check(b"\x81\x05", Err(Failure::Unmasked));
        check(b"\x89\xfe", Err(Failure::ControlLen));
        check(b"\x88\xff", Err(Failure::ControlLen));
    }

    #[test]
    fn an_incomplete_header_waits() {
        let header = b"\x81\xff\0\0\0\0\0\x01\0\0\x01\x02\x03\x04";
        for len in 0..header.len() {
            check(&header[..len], Ok(None));
        }
    }

    #[test]
    fn masking_in_pieces_equals_masking_at_once() {
        let plain: Vec<u8> = (0..100).collect();
        for cut in 0..plain.len() {
            let mut masked = plain.clone();
            let (first, second) = masked.split_at_mut(cut);
            unmask(first, KEY, 0);
            unmask(second, KEY, cut as u64);
            let expected: Vec<u8> = plain
                .iter()
                .zip(KEY.iter().cycle())
                .map(|(a, b)| a ^ b)
                .collect();
            assert_eq!(masked, expected, "cut at {cut}");
        }
    }

    #[test]
    fn written_headers_are_the_shortest() {
        for (len, expected) in [
            (0, &b"\x81\x00"[..]),
            (125, b"\x81\x7d"),
            (126, b"\x81\x7e\x00\x7e"),
            (65535, b"\x81\x7e\xff\xff"),
            (65536, b"\x81\x7f\0\0\0\0\0\x01\0\0"),
        ] {
            let mut out = Vec::new();
            encode(&mut out, OpCode::Text, len);
            assert_eq!(out, expected);
        }
    }
}
