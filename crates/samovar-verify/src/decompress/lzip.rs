//! Decompresses lzip files of one or several members.

use std::io::{self, BufRead};

use lzma_rust2::{Action, LzipStream, Status};

use super::{Input, Limits, Refusal, truncated};

/// Memory in KiB that the library needs besides the dictionary. It counts against the library's
/// memory limit.
const OVERHEAD_KIB: u32 = 38;

pub(super) struct Reader<'a> {
    input: Input<'a>,
    stream: LzipStream,
    dictionary_max: u32,
    /// Whether the last call filled the whole output buffer. Then the decoder may have more output
    /// without more input.
    is_full: bool,
    is_done: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(input: Input<'a>, limits: &Limits) -> Self {
        let dictionary_max = limits.lzma_dictionary_max;
        let limit_kib = (dictionary_max / 1024).saturating_add(OVERHEAD_KIB);
        Self {
            input,
            stream: LzipStream::new_mem_limit(true, limit_kib),
            dictionary_max,
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
        if self.is_done {
            return Ok(0);
        }
        loop {
            let (input, action) = if self.is_full {
                (self.input.buffered(), Action::Run)
            } else if self.input.is_at_end()? {
                (&[][..], Action::Finish)
            } else {
                (self.input.buffered(), Action::Run)
            };
            let result = self.stream.process(input, out, action).map_err(|error| {
                if error.kind() == io::ErrorKind::OutOfMemory {
                    io::Error::other(Refusal::Window {
                        format: "lzip",
                        limit: self.dictionary_max.into(),
                    })
                } else {
                    error
                }
            })?;
            self.input.consume(result.bytes_consumed);
            self.is_full = result.bytes_produced == out.len();
            if result.status == Status::StreamEnd {
                self.is_done = true;
                // The decoder has decoded all valid members, so what remains is not a member.
                if !self.stream.unused_input().is_empty() || !self.input.is_at_end()? {
                    return Err(io::Error::other(Refusal::BytesAfterStream {
                        format: "lzip",
                    }));
                }
                return Ok(result.bytes_produced);
            }
            if result.bytes_produced > 0 {
                return Ok(result.bytes_produced);
            }
            if action == Action::Finish {
                return Err(truncated());
            }
        }
    }
}
