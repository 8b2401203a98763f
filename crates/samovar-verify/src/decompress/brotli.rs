//! Decompresses Brotli, a format without a header and a checksum.
//!
//! Large windows (more than 16 MiB) are refused. They are an extension of the format that clients
//! do not accept.

use std::io::{self, BufRead};

use ::brotli::{BrotliDecompressStream, BrotliResult, BrotliState, HeapAlloc, HuffmanCode};

use super::{Input, Refusal, truncated};

type State = BrotliState<HeapAlloc<u8>, HeapAlloc<u32>, HeapAlloc<HuffmanCode>>;

pub(super) struct Reader<'a> {
    input: Input<'a>,
    state: Box<State>,
    /// Whether the last call filled the whole output buffer. Then the decoder may return more
    /// output without more input.
    is_full: bool,
    is_done: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(input: Input<'a>) -> Self {
        Self {
            input,
            state: Box::new(State::new_strict(
                HeapAlloc::new(0),
                HeapAlloc::new(0),
                HeapAlloc::new(HuffmanCode::default()),
            )),
            is_full: false,
            is_done: false,
        }
    }

    pub(super) const fn input(&mut self) -> &mut Input<'a> {
        &mut self.input
    }

    pub(super) fn into_input(self) -> Input<'a> {
        self.input
    }

    /// Decompresses into `out`. Returns 0 at the end of the input.
    pub(super) fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let (mut out_len, mut out_left) = (0, out.len());
        while out_len == 0 {
            if self.is_done {
                return if self.input.is_at_end()? {
                    Ok(0)
                } else {
                    Err(io::Error::other(Refusal::BytesAfterStream { format: "br" }))
                };
            }
            let input = if self.is_full {
                self.input.buffered()
            } else {
                self.input.fill_buf()?
            };
            if input.is_empty() && !self.is_full {
                return Err(truncated());
            }
            let (mut in_len, mut in_left, mut total) = (0, input.len(), 0);
            let result = BrotliDecompressStream(
                &mut in_left,
                &mut in_len,
                input,
                &mut out_left,
                &mut out_len,
                out,
                &mut total,
                &mut self.state,
            );
            self.input.consume(in_len);
            self.is_full = matches!(result, BrotliResult::NeedsMoreOutput);
            match result {
                BrotliResult::ResultSuccess => self.is_done = true,
                BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => {}
                BrotliResult::ResultFailure => {
                    return Err(io::Error::other("it breaks the format"));
                }
            }
        }
        Ok(out_len)
    }
}
