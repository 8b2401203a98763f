//! Encoding of integers, strings and lists in the worker protocol.
//!
//! # Encoding
//!
//! An integer is 64-bit little-endian. A string is its length, its bytes, and zeros up to a
//! multiple of eight. A list is a count and its strings.
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | one string | 1 MiB | an error message with traces; paths are far shorter |
//! | one response | 32 MiB | twice 100,000 references of maximum length |
//!
//! Lengths are checked before allocating, and memory grows only as bytes arrive.
//!
//! # Source
//!
//! Nix 2.8.0, `src/libutil/serialise.cc`.

use std::io::{self, Read};

use crate::error::{Irregularity, StoreError, Unavailable};

const STRING_LEN_MAX: u64 = 1 << 20;
const ANSWER_LEN_MAX: u64 = 32 << 20;

/// A request under construction.
#[derive(Debug, Default)]
pub(super) struct Request(Vec<u8>);

impl Request {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn integer(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn string(self, value: &str) -> Self {
        let mut request = self.integer(value.len() as u64);
        request.0.extend_from_slice(value.as_bytes());
        request.0.resize(request.0.len().next_multiple_of(8), 0);
        request
    }

    pub(super) fn strings(self, values: &[&str]) -> Self {
        let request = self.integer(values.len() as u64);
        values
            .iter()
            .fold(request, |request, value| request.string(value))
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A response of the daemon, read within the size limit.
#[derive(Debug)]
pub(super) struct Answer<R> {
    input: R,
    left: u64,
}

impl<R: Read> Answer<R> {
    pub(super) fn new(input: R) -> Self {
        Self {
            input,
            left: ANSWER_LEN_MAX,
        }
    }

    pub(super) fn integer(&mut self) -> Result<u64, StoreError> {
        let mut bytes = [0; 8];
        self.exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    pub(super) fn boolean(&mut self) -> Result<bool, StoreError> {
        match self.integer()? {
            0 => Ok(false),
            // Any other number counts as true, as in Nix.
            _ => Ok(true),
        }
    }

    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, StoreError> {
        let len = self.integer()?;
        if len > STRING_LEN_MAX || len > self.left {
            return Err(StoreError::Protocol(Irregularity::TooLong));
        }
        self.left -= len;
        let mut bytes = Vec::new();
        let read = (&mut self.input).take(len).read_to_end(&mut bytes);
        if read.map_err(|error| io_error(&error))? as u64 != len {
            return Err(StoreError::Protocol(Irregularity::EndedEarly));
        }
        let mut padding = [0; 8];
        let padding = &mut padding[..bytes.len().next_multiple_of(8) - bytes.len()];
        self.exact(padding)?;
        if padding.iter().any(|byte| *byte != 0) {
            return Err(StoreError::Protocol(Irregularity::Padding));
        }
        Ok(bytes)
    }

    pub(super) fn string(&mut self) -> Result<String, StoreError> {
        String::from_utf8(self.bytes()?).map_err(|_error| StoreError::Protocol(Irregularity::Text))
    }

    pub(super) fn strings(&mut self) -> Result<Vec<String>, StoreError> {
        let count = self.integer()?;
        // Each string takes at least eight bytes, so the size limit of a response bounds the count.
        (0..count).map(|_| self.string()).collect()
    }

    fn exact(&mut self, bytes: &mut [u8]) -> Result<(), StoreError> {
        self.left = self
            .left
            .checked_sub(bytes.len() as u64)
            .ok_or(StoreError::Protocol(Irregularity::TooLong))?;
        self.input
            .read_exact(bytes)
            .map_err(|error| io_error(&error))
    }
}

/// Converts an error of the socket.
pub(super) fn io_error(error: &io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => StoreError::Protocol(Irregularity::EndedEarly),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            StoreError::Unavailable(Unavailable::DaemonTimeout)
        }
        _ => StoreError::io("communicating with the daemon", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &[u8], expected: Result<&[u8], Irregularity>) {
        let result = Answer::new(input).bytes();
        assert_eq!(
            result,
            expected.map(<[u8]>::to_vec).map_err(StoreError::Protocol)
        );
    }

    #[test]
    fn strings() {
        check(&[0; 8], Ok(b""));
        check(
            &[3, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', b'c', 0, 0, 0, 0, 0],
            Ok(b"abc"),
        );
        check(
            &[3, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', b'c', 0, 0, 0, 0, 1],
            Err(Irregularity::Padding),
        );
        check(
            &[3, 0, 0, 0, 0, 0, 0, 0, b'a'],
            Err(Irregularity::EndedEarly),
        );
        check(&[3, 0, 0], Err(Irregularity::EndedEarly));
    }

    #[test]
    fn a_string_at_the_limit_and_past_it() {
        let mut input = STRING_LEN_MAX.to_le_bytes().to_vec();
        input.resize(8 + (1 << 20), b'x');
        assert_eq!(
            Answer::new(&input[..]).bytes().map(|bytes| bytes.len()),
            Ok(1 << 20)
        );
        check(
            &(STRING_LEN_MAX + 1).to_le_bytes(),
            Err(Irregularity::TooLong),
        );
        check(&u64::MAX.to_le_bytes(), Err(Irregularity::TooLong));
    }

    #[test]
    fn a_list_cannot_be_longer_than_an_answer() {
        struct Endless;
        impl Read for Endless {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                buffer.fill(0);
                Ok(buffer.len())
            }
        }
        let count = u64::MAX.to_le_bytes();
        let input = count.chain(Endless);
        let result = Answer::new(input).strings();
        assert_eq!(result, Err(StoreError::Protocol(Irregularity::TooLong)));
    }

    #[test]
    fn requests() {
        let request = Request::new()
            .integer(1)
            .string("abc")
            .strings(&["", "12345678"]);
        let mut expected = vec![1, 0, 0, 0, 0, 0, 0, 0];
        expected.extend([3, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', b'c', 0, 0, 0, 0, 0]);
        expected.extend([2, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend([0; 8]);
        expected.extend([8, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend(b"12345678");
        assert_eq!(request.as_bytes(), expected);
    }
}
