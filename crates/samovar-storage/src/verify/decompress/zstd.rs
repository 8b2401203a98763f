//! Decompresses zstd, and builds the index of its frames.

use std::io::{self, BufRead};

use ::zstd::stream::raw::{DParameter, Decoder, Operation};

use super::super::frames::Frames;
use super::{Input, Limits, Refusal, truncated};

/// The library's message for a window that exceeds the limit.
const WINDOW_MESSAGE: &str = "Frame requires too much memory for decoding";

pub(super) struct Reader<'a> {
    input: Input<'a>,
    /// The decoder. If it could not be created, the first read returns the error.
    decoder: io::Result<Decoder<'static>>,
    window_log_max: u32,
    /// Whether the last call filled its output. Then the decoder may have more output without more
    /// input.
    is_full: bool,
    in_frame: bool,
    /// Compressed length and content length of the current frame so far.
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
            // True from the start: an empty input is an incomplete stream.
            in_frame: true,
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
            }
            if status.bytes_written > 0 {
                return Ok(status.bytes_written);
            }
        }
    }
}
