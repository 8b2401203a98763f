//! Decompresses zstd, and builds the index of its frames.

use std::io::{self, BufRead};

use ::zstd::stream::raw::{DParameter, Decoder, Operation};

use super::super::frames::Frames;
use super::{Input, Limits, Refusal, truncated};

const MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();

/// Maximum length of a zstd frame's header, in bytes.
const HEADER_LEN_MAX: usize = 18;

/// The error message of the zstd library for a window that exceeds the limit.
const WINDOW_MESSAGE: &str = "Frame requires too much memory for decoding";

pub(super) struct Reader<'a> {
    input: Input<'a>,
    /// The decoder. If its creation failed, the first read returns the error.
    decoder: io::Result<Decoder<'static>>,
    window_log_max: u32,
    /// Whether the last call filled the whole output buffer. Then the decoder may have more output
    /// without more input.
    is_full: bool,
    in_frame: bool,
    /// Whether memory for the window of the current frame is reserved.
    is_reserved: bool,
    /// Compressed length and content length of the current frame so far, in bytes.
    frame: (u64, u64),
    frames: Frames,
}

impl<'a> Reader<'a> {
    pub(super) fn new(input: Input<'a>, limits: &Limits) -> Self {
        let window_log_max = limits.zstd_window_log_max;
        let decoder = Decoder::new().and_then(|mut decoder| {
            decoder.set_parameter(DParameter::WindowLogMax(window_log_max))?;
            Ok(decoder)
        });
        Self {
            input,
            decoder,
            window_log_max,
            is_full: false,
            // This is true from the start, because an empty input is an incomplete stream.
            in_frame: true,
            is_reserved: false,
            frame: (0, 0),
            frames: Frames::new(),
        }
    }

    pub(super) const fn input(&mut self) -> &mut Input<'a> {
        &mut self.input
    }

    pub(super) fn into_parts(self) -> (Input<'a>, Option<Vec<u8>>) {
        (self.input, self.frames.finish())
    }

    /// Decompresses into `out`. Returns 0 at the end of the input.
    pub(super) fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let decoder = match &mut self.decoder {
            Ok(decoder) => decoder,
            Err(error) => return Err(io::Error::other(error.to_string())),
        };
        loop {
            if !self.is_reserved {
                let window_len = window_len(self.input.peek(HEADER_LEN_MAX)?);
                // Reserve nothing for a larger window: the decoder refuses it without allocating
                // it.
                if window_len <= 1 << self.window_log_max.min(63) {
                    self.input.reserve(window_len)?;
                }
                self.is_reserved = true;
            }
            let input = if self.is_full {
                self.input.buffered()
            } else {
                self.input.fill_buf()?
            };
            if input.is_empty() && !self.is_full {
                return if self.in_frame {
                    Err(truncated())
                } else {
                    Ok(0)
                };
            }
            let status = decoder.run_on_buffers(input, out).map_err(|error| {
                if error.to_string() == WINDOW_MESSAGE {
                    io::Error::other(Refusal::Window {
                        format: "zstd",
                        limit: 1 << self.window_log_max.min(63),
                    })
                } else {
                    error
                }
            })?;
            self.input.consume(status.bytes_read);
            self.frame.0 = self.frame.0.saturating_add(status.bytes_read as u64);
            self.frame.1 = self.frame.1.saturating_add(status.bytes_written as u64);
            self.in_frame = status.remaining != 0;
            self.is_full = self.in_frame && status.bytes_written == out.len();
            if !self.in_frame {
                self.frames.push(self.frame.0, self.frame.1);
                self.frame = (0, 0);
                self.is_reserved = false;
            }
            if status.bytes_written > 0 {
                return Ok(status.bytes_written);
            }
        }
    }
}

/// Returns the length of the window that a decoder allocates for a frame, in bytes. Returns 0 for a
/// skippable frame, and for bytes that are not a frame. `header`: the first bytes of the frame.
///
/// Source: RFC 8878, 3.1.1.1.
#[must_use]
pub fn window_len(header: &[u8]) -> u64 {
    let Some(rest) = header.strip_prefix(&MAGIC) else {
        return 0;
    };
    let descriptor = rest.first().copied().unwrap_or(0);
    let is_single_segment = descriptor & 0x20 != 0;
    let dictionary_id_len = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content_size_len = match descriptor >> 6 {
        0 => usize::from(is_single_segment),
        flag => 1 << flag,
    };
    let window = rest.get(1).copied().unwrap_or(0);
    let content_at = if is_single_segment { 1 } else { 2 } + dictionary_id_len;
    let content_size = rest.get(content_at..content_at + content_size_len);
    let content_size = content_size.filter(|bytes| !bytes.is_empty()).map(|bytes| {
        let number = bytes
            .iter()
            .rev()
            .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        number.saturating_add(if bytes.len() == 2 { 256 } else { 0 })
    });
    let base = 1_u64 << (10 + (window >> 3));
    let stated = base + base / 8 * u64::from(window & 7);
    match (is_single_segment, content_size) {
        (true, Some(content_size)) => content_size,
        (false, Some(content_size)) => stated.min(content_size),
        (_, None) => stated,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_read_from_frame_headers() {
        for (header, expected) in [
            (&[][..], 0),
            (b"\x50\x2a\x4d\x18\xff\xff\xff\xff", 0),
            (b"\x28\xb5\x2f\xfd\x00\x00", 1 << 10),
            (b"\x28\xb5\x2f\xfd\x00\x58", 2 << 20),
            (b"\x28\xb5\x2f\xfd\x00\x88", 128 << 20),
            (b"\x28\xb5\x2f\xfd\x00\x89", (128 << 20) + (16 << 20)),
            // Single segment, content sizes of 1, 2, 4 and 8 bytes, and a dictionary identifier.
            (b"\x28\xb5\x2f\xfd\x20\x07", 7),
            (b"\x28\xb5\x2f\xfd\x60\x07\x01", 256 + 263),
            (b"\x28\xb5\x2f\xfd\xa0\x00\x00\x00\x10", 1 << 28),
            (
                b"\x28\xb5\x2f\xfd\xe0\x00\x00\x00\x00\x01\x00\x00\x00",
                1 << 32,
            ),
            (b"\x28\xb5\x2f\xfd\x22\xaa\xbb\x09", 9),
            // A window, and content shorter than it.
            (b"\x28\xb5\x2f\xfd\x80\x58\x00\x01\x00\x00", 256),
            (b"\x28\xb5\x2f\xfd\x80\x58\x00\x00\x00\x10", 2 << 20),
        ] {
            assert_eq!(window_len(header), expected, "{header:x?}");
        }
    }
}
