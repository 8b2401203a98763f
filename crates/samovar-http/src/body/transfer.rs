//! Sending one body with back-pressure.

use std::io;

use super::{Batch, Progress, Source, batch};
use crate::fields::is_settable;
use crate::io::transport::Transport;
use crate::io::wake::Waker;
use crate::proto::encode;

/// Bytes one turn of a transfer may send before others get their turn.
const TURN_LEN: u64 = 4 << 20;
/// Sixteen digits and CRLF before a chunk, CRLF behind it.
const CHUNK_HEAD_LEN: usize = 18;
const CHUNK_TAIL: &[u8] = b"\r\n";
const CHUNK_LAST: &[u8] = b"0\r\n";

/// Where a transfer stands after a turn.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Everything is with the kernel.
    Done,
    /// The socket takes no more for now.
    Blocked,
    /// It would go on, but it is others' turn.
    Yield,
    /// The source has nothing for now, and will wake the connection.
    Waiting,
}

/// How the end of a body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// So many bytes.
    Length(u64),
    /// Chunks, and fields behind the last one if the peer takes them.
    Chunked { has_trailers: bool },
    /// The end of the connection.
    Close,
}

/// A body on its way.
pub(crate) struct Transfer {
    source: Box<dyn Source>,
    batch: Option<Batch>,
    /// Announced bytes that the source has not yielded yet; `None` for a chunked or close-delimited
    /// body.
    left: Option<u64>,
    framing: Framing,
    /// What goes behind the body, as far as there was no room for it yet; set when the source ends.
    tail: Vec<u8>,
    is_ended: bool,
    is_waiting: bool,
    /// Bytes of the body with the kernel, the head and chunk framing included.
    sent_len: u64,
    /// Bytes that went out but are not the source's.
    framing_len: u64,
    /// Bytes of earlier answers that go before this one's head.
    before_len: u64,
    /// What failed is the source, not the socket.
    is_source_failed: bool,
}

impl Transfer {
    /// `before_len`: bytes of the lead that belong to earlier answers.
    pub(crate) fn new(source: Box<dyn Source>, framing: Framing, before_len: usize) -> Self {
        Self {
            source,
            batch: None,
            left: match framing {
                Framing::Length(len) => Some(len),
                Framing::Chunked { .. } | Framing::Close => None,
            },
            framing,
            tail: Vec::new(),
            is_ended: false,
            is_waiting: false,
            sent_len: 0,
            framing_len: 0,
            before_len: before_len as u64,
            is_source_failed: false,
        }
    }

    /// Bytes of the source that the kernel has taken.
    pub(crate) fn body_len(&self) -> u64 {
        self.sent_len.saturating_sub(self.framing_len)
    }

    /// Bytes that the kernel has taken, whatever they are.
    pub(crate) fn sent_len(&self) -> u64 {
        self.sent_len
    }

    /// Pulls and sends until done, blocked, or out of turn. `lead` is what goes before the body; it
    /// leaves in the first write, and is empty afterwards.
    ///
    /// # Errors
    ///
    /// Those of the source and the socket, and a source that yields more or fewer bytes than it
    /// announced. All are final: the connection has to be reset, unless [`recall`](Self::recall)
    /// says that nothing has left.
    pub(crate) fn turn(
        &mut self,
        transport: &mut Transport,
        lead: &mut Vec<u8>,
        waker: &Waker,
    ) -> io::Result<Outcome> {
        let mut turn_len = 0;
        self.is_waiting = false;
        loop {
            if let Some(batch) = &mut self.batch {
                let source = &mut self.source;
                let sent_len = batch.send(transport).inspect_err(|error| {
                    if batch::is_about_file(error) {
                        source.file_failed(error);
                    }
                })?;
                self.sent_len += sent_len;
                turn_len += sent_len;
                if !batch.is_sent() {
                    return Ok(Outcome::Blocked);
                }
                batch.clear();
            }
            if self.is_ended && self.tail.is_empty() || self.is_waiting {
                self.batch = None;
                if !transport.flush()? {
                    // Where it waits, that is found out by asking the source again.
                    return Ok(Outcome::Blocked);
                }
                return Ok(if self.is_waiting {
                    Outcome::Waiting
                } else {
                    Outcome::Done
                });
            }
            if turn_len >= TURN_LEN {
                return Ok(Outcome::Yield);
            }
            self.refill(transport, lead, waker)?;
        }
    }

    fn refill(
        &mut self,
        transport: &Transport,
        lead: &mut Vec<u8>,
        waker: &Waker,
    ) -> io::Result<()> {
        let new = || match transport.prefers_files() {
            true => Batch::of_files(waker.clone()),
            false => Batch::new(waker.clone()),
        };
        let mut batch = self.batch.take().unwrap_or_else(new);
        // A source that panics has failed too.
        self.is_source_failed = true;
        self.fill(&mut batch, lead)?;
        self.is_source_failed = false;
        self.batch = Some(batch);
        Ok(())
    }

    /// The lead stays whole until the source has done its part, see [`recall`](Self::recall).
    fn fill(&mut self, batch: &mut Batch, lead: &mut Vec<u8>) -> io::Result<()> {
        let lead_len = batch.put(lead);
        let has_room = lead_len == lead.len() && batch.room_len() > 2 * CHUNK_HEAD_LEN;
        if has_room && !self.is_ended {
            match self.framing {
                Framing::Chunked { has_trailers } => self.fill_chunk(batch, has_trailers)?,
                Framing::Length(_) | Framing::Close => self.fill_plain(batch)?,
            }
        }
        let tail_len = batch.put(&self.tail);
        self.tail.drain(..tail_len);
        self.framing_len += tail_len as u64;
        lead.drain(..lead_len);
        self.framing_len += lead_len as u64;
        Ok(())
    }

    /// After a failure: takes the head of this answer out of `lead`, so that another can take its
    /// place. `false` if part of it is gone, or if the socket is what failed.
    pub(crate) fn recall(&self, lead: &mut Vec<u8>) -> bool {
        let Some(before_len) = self.before_len.checked_sub(self.sent_len) else {
            return false;
        };
        if self.is_source_failed {
            lead.truncate(usize::try_from(before_len).unwrap_or(usize::MAX));
        }
        self.is_source_failed
    }

    fn fill_plain(&mut self, batch: &mut Batch) -> io::Result<()> {
        let before = batch.added_len();
        let progress = self.source.pull(batch)?;
        self.account(progress, batch.added_len() - before)
    }

    /// One chunk: its size is known only when it is filled, so room is left for it, in a fixed
    /// width: leading zeros are part of the grammar (RFC 9112, 7.1).
    fn fill_chunk(&mut self, batch: &mut Batch, has_trailers: bool) -> io::Result<()> {
        let size_at = batch.filled();
        batch.put(&[b'0'; CHUNK_HEAD_LEN]);
        batch.reserve(CHUNK_TAIL.len());
        let before = batch.added_len();
        let progress = self.source.pull(batch)?;
        let data_len = batch.added_len() - before;
        batch.reserve(0);
        self.account(progress, data_len)?;
        if data_len == 0 {
            batch.unfill(CHUNK_HEAD_LEN);
        } else {
            batch.put(CHUNK_TAIL);
            batch.patch(size_at, format!("{data_len:016x}\r\n").as_bytes());
            self.framing_len += (CHUNK_HEAD_LEN + CHUNK_TAIL.len()) as u64;
        }
        if self.is_ended {
            self.tail.extend_from_slice(CHUNK_LAST);
            if has_trailers {
                trailer_fields(&mut *self.source, &mut self.tail);
            }
            self.tail.extend_from_slice(b"\r\n");
        }
        Ok(())
    }

    /// Holds the source to its word.
    fn account(&mut self, progress: Progress, len: u64) -> io::Result<()> {
        account(&mut self.left, progress, len)?;
        self.is_waiting = progress == Progress::Wait;
        self.is_ended = progress == Progress::End;
        Ok(())
    }
}

/// Writes the fields behind a body.
pub(super) fn trailer_fields(source: &mut dyn Source, out: &mut Vec<u8>) {
    for (name, value) in source.trailers() {
        // A field that would break the framing is an application's mistake, and too late to
        // answer for: it is left out.
        if is_settable(&name) && encode::is_field_value(&value) {
            encode::field(out, &name, &value);
        }
    }
}

/// Holds a source to its word: `left` bytes were to come, `len` have.
pub(super) fn account(left: &mut Option<u64>, progress: Progress, len: u64) -> io::Result<()> {
    let is_end = progress == Progress::End;
    if let Some(left) = left {
        *left = left
            .checked_sub(len)
            .ok_or_else(|| wrong_length("longer"))?;
        if is_end && *left > 0 {
            return Err(wrong_length("shorter"));
        }
        if !is_end && *left == 0 {
            return Err(wrong_length("longer"));
        }
    }
    if progress == Progress::More && len == 0 {
        return Err(io::Error::other("body source yields nothing"));
    }
    Ok(())
}

fn wrong_length(how: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("body is {how} than announced"),
    )
}

impl std::fmt::Debug for Transfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfer")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}
