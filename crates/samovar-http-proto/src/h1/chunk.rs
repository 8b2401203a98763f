//! The chunked transfer coding of request bodies.
//!
//! ```text
//! chunked-body = *chunk last-chunk trailer-section CRLF
//! chunk        = chunk-size [ chunk-ext ] CRLF chunk-data CRLF
//! last-chunk   = 1*("0") [ chunk-ext ] CRLF
//! ```
//!
//! | limit | value | reason |
//! |---|---|---|
//! | [`SIZE_DIGITS_MAX`] | 16 digits | more cannot be a 64-bit number |
//! | [`LINE_LEN_MAX`] | 256 bytes | extensions are unused; a long one is an attack |
//! | [`TRAILER_LEN_MAX`] | 8192 bytes | as for a head |
//!
//! Extensions and trailers are validated, then discarded. A line that ends in LF without CR is
//! refused: a proxy in front of the server may read such a line differently, and differences of
//! that kind enable request smuggling.
//!
//! # Source
//!
//! RFC 9112, section 7.1.

use super::{Refusal, encode};

/// Maximum number of hexadecimal digits in a chunk size.
pub const SIZE_DIGITS_MAX: usize = 16;
/// Maximum length of a chunk's size line including extensions, in bytes without CRLF.
pub const LINE_LEN_MAX: usize = 256;
/// Maximum length of the trailer section, in bytes.
pub const TRAILER_LEN_MAX: usize = 8 * 1024;

/// Kind of the bytes that [`ChunkDecoder::step`] has just consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkEvent {
    /// Incomplete line: call again with the same bytes followed by more.
    Incomplete,
    /// Chunk framing, which the caller ignores.
    Framing,
    /// The consumed bytes are body data.
    Data,
    /// The body has ended.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Size,
    Data {
        left: u64,
    },
    DataEnd,
    Trailer {
        seen_len: usize,
    },
    Done,
}

/// Incremental decoder of one chunked body. The input may be split at any byte.
#[derive(Debug, Clone, Default)]
pub struct ChunkDecoder {
    state: State,
}

impl ChunkDecoder {
    /// Decodes the start of `input`; returns the number of consumed bytes and their kind.
    ///
    /// # Errors
    ///
    /// [`Refusal::Chunk`]. The connection must be closed: the end of the body, and with it the
    /// start of the next request, is unknown.
    pub fn step(&mut self, input: &[u8]) -> Result<(usize, ChunkEvent), Refusal> {
        match self.state {
            State::Size => self.size(input),
            State::Data { left } => {
                if input.is_empty() {
                    return Ok((0, ChunkEvent::Incomplete));
                }
                let taken = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
                let left = left.saturating_sub(taken as u64);
                self.state = if left == 0 {
                    State::DataEnd
                } else {
                    State::Data { left }
                };
                Ok((taken, ChunkEvent::Data))
            }
            State::DataEnd => match input {
                [] | [b'\r'] => Ok((0, ChunkEvent::Incomplete)),
                [b'\r', b'\n', ..] => {
                    self.state = State::Size;
                    Ok((2, ChunkEvent::Framing))
                }
                _ => Err(Refusal::Chunk),
            },
            State::Trailer { seen_len } => self.trailer(input, seen_len),
            State::Done => Ok((0, ChunkEvent::End)),
        }
    }

    /// Returns the remaining bytes of the current chunk's data; 0 between chunks.
    pub fn data_len(&self) -> u64 {
        match self.state {
            State::Data { left } => left,
            State::Size | State::DataEnd | State::Trailer { .. } | State::Done => 0,
        }
    }

    fn size(&mut self, input: &[u8]) -> Result<(usize, ChunkEvent), Refusal> {
        let Some(line) = line(input, LINE_LEN_MAX)? else {
            return Ok((0, ChunkEvent::Incomplete));
        };
        let digits_len = line
            .iter()
            .take_while(|byte| byte.is_ascii_hexdigit())
            .count();
        let (digits, extension) = line.split_at_checked(digits_len).ok_or(Refusal::Chunk)?;
        if digits.is_empty() || digits.len() > SIZE_DIGITS_MAX || !is_extension(extension) {
            return Err(Refusal::Chunk);
        }
        let mut size = 0_u64;
        for digit in digits {
            let value = (*digit as char).to_digit(16).ok_or(Refusal::Chunk)?;
            size = size << 4 | u64::from(value);
        }
        self.state = if size == 0 {
            State::Trailer { seen_len: 0 }
        } else {
            State::Data { left: size }
        };
        Ok((line.len().saturating_add(2), ChunkEvent::Framing))
    }

    fn trailer(&mut self, input: &[u8], seen_len: usize) -> Result<(usize, ChunkEvent), Refusal> {
        let Some(line) = line(input, TRAILER_LEN_MAX.saturating_sub(seen_len))? else {
            return Ok((0, ChunkEvent::Incomplete));
        };
        let consumed = line.len().saturating_add(2);
        if line.is_empty() {
            self.state = State::Done;
            return Ok((consumed, ChunkEvent::End));
        }
        check_trailer(line)?;
        self.state = State::Trailer {
            seen_len: seen_len.saturating_add(consumed),
        };
        Ok((consumed, ChunkEvent::Framing))
    }
}

/// Returns the line at the start of `input` without its CRLF; `None` while it is incomplete.
fn line(input: &[u8], len_max: usize) -> Result<Option<&[u8]>, Refusal> {
    let Some(end) = memchr::memchr2(b'\r', b'\n', input) else {
        return if input.len() > len_max {
            Err(Refusal::Chunk)
        } else {
            Ok(None)
        };
    };
    if end > len_max {
        return Err(Refusal::Chunk);
    }
    let (line, rest) = input.split_at_checked(end).ok_or(Refusal::Chunk)?;
    match rest {
        [b'\r', b'\n', ..] => Ok(Some(line)),
        [b'\r'] => Ok(None),
        _ => Err(Refusal::Chunk),
    }
}

/// Returns whether a chunk extension is acceptable: empty, or starting with `;` and free of control
/// characters. RFC 9112, 7.1.1 allows white space before the `;`; it is refused because clients do
/// not send it and parsers disagree about it.
fn is_extension(extension: &[u8]) -> bool {
    match extension {
        [] => true,
        [b';', rest @ ..] => encode::is_field_value(rest),
        _ => false,
    }
}

/// Checks that a trailer is a well-formed field line and not a framing or routing field (RFC 9110,
/// 6.5.1).
fn check_trailer(line: &[u8]) -> Result<(), Refusal> {
    let colon = memchr::memchr(b':', line).ok_or(Refusal::Chunk)?;
    let (name, value) = line.split_at_checked(colon).ok_or(Refusal::Chunk)?;
    let is_forbidden = [
        &b"content-length"[..],
        b"transfer-encoding",
        b"host",
        b"connection",
    ]
    .iter()
    .any(|forbidden| name.eq_ignore_ascii_case(forbidden));
    if encode::is_field_name(name) && encode::is_field_value(value) && !is_forbidden {
        Ok(())
    } else {
        Err(Refusal::Chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `input` fed in pieces of `step` bytes; returns the data and the number of bytes
    /// after the body.
    fn decode(input: &[u8], step: usize) -> Result<(Vec<u8>, usize), Refusal> {
        let mut decoder = ChunkDecoder::default();
        let (mut data, mut at, mut shown) = (Vec::new(), 0, 0);
        loop {
            match decoder.step(&input[at..shown])? {
                (_, ChunkEvent::Incomplete) if shown == input.len() => panic!("incomplete"),
                (_, ChunkEvent::Incomplete) => shown = (shown + step).min(input.len()),
                (taken, ChunkEvent::Framing) => at += taken,
                (taken, ChunkEvent::Data) => {
                    data.extend_from_slice(&input[at..at + taken]);
                    at += taken;
                }
                (taken, ChunkEvent::End) => return Ok((data, input.len() - at - taken)),
            }
        }
    }

    #[track_caller]
    fn check(input: &str, expected: &str, rest_len: usize) {
        for step in 1..=input.len() {
            let (data, rest) = decode(input.as_bytes(), step).unwrap();
            assert_eq!(data, expected.as_bytes(), "step {step}");
            // `rest` includes the input that was not passed to the decoder yet.
            assert_eq!(rest, rest_len, "step {step}");
        }
    }

    #[track_caller]
    fn refused(input: &str) {
        let mut decoder = ChunkDecoder::default();
        let mut at = 0;
        for _ in 0..100 {
            match decoder.step(&input.as_bytes()[at..]) {
                Err(Refusal::Chunk) => return,
                Err(other) => panic!("{other:?}"),
                Ok((_, ChunkEvent::Incomplete | ChunkEvent::End)) => break,
                Ok((taken, _)) => at += taken,
            }
        }
        panic!("{input:?} was accepted");
    }

    #[test]
    fn bodies() {
        check("0\r\n\r\n", "", 0);
        check("5\r\nhello\r\n0\r\n\r\n", "hello", 0);
        check(
            "5\r\nhello\r\n6;a=b\r\n world\r\n000\r\n\r\nGET",
            "hello world",
            3,
        );
        check(
            "A\r\n0123456789\r\n0\r\nX-Sum: 1\r\nY: 2\r\n\r\n",
            "0123456789",
            0,
        );
    }

    #[test]
    fn sizes() {
        for size in [
            "",
            "+1",
            "-1",
            " 1",
            "1 ",
            "0x1",
            "0_1",
            "g",
            "00000000000000001",
            "1 ;a",
        ] {
            refused(&format!("{size}\r\na\r\n0\r\n\r\n"));
        }
    }

    #[test]
    fn line_ends() {
        refused("1\na\r\n0\r\n\r\n");
        refused("1\r\na\n0\r\n\r\n");
        refused("1\r\nab\r\n0\r\n\r\n");
        refused("1\r\na\r\n0\n\r\n");
        refused("1\r\na\r\n0\r\n\n");
        refused("1\rx\na\r\n0\r\n\r\n");
        refused("1;a\x00\r\na\r\n0\r\n\r\n");
    }

    #[test]
    fn trailers() {
        for name in [
            "Content-Length",
            "transfer-encoding",
            "Host",
            "connection",
            "a b",
            "",
        ] {
            refused(&format!("0\r\n{name}: 1\r\n\r\n"));
        }
        refused("0\r\nno colon\r\n\r\n");
        refused("0\r\na: b\x01\r\n\r\n");
    }

    #[test]
    fn limits() {
        let extension = "x".repeat(LINE_LEN_MAX - 2);
        check(&format!("1;{extension}\r\na\r\n0\r\n\r\n"), "a", 0);
        refused(&format!("1;{extension}x\r\na\r\n0\r\n\r\n"));
        refused(&format!("1;{extension}xx"));
        let value = "x".repeat(TRAILER_LEN_MAX - 2);
        let at_limit = format!("0\r\na:{value}\r\n\r\n");
        assert_eq!(
            decode(at_limit.as_bytes(), at_limit.len()),
            Ok((Vec::new(), 0))
        );
        refused(&format!("0\r\na:{value}x\r\n\r\n"));
    }
}
