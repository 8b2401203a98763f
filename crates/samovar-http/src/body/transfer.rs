//! Sending one body with back-pressure.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::{Batch, BufferPool, Progress, Source};

/// Bytes one turn of a transfer may send before others get their turn.
const TURN_LEN: u64 = 4 << 20;
/// Sixteen digits and CRLF before a chunk, CRLF behind it.
const CHUNK_HEAD_LEN: usize = 18;
const CHUNK_TAIL: &[u8] = b"\r\n";
const CHUNK_LAST: &[u8] = b"0\r\n\r\n";

/// Where a transfer stands after a turn.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Everything is with the kernel.
    Done,
    /// The socket takes no more for now.
    Blocked,
    /// It would go on, but it is others' turn.
    Yield,
}

/// A body on its way.
pub(crate) struct Transfer {
    source: Box<dyn Source>,
    batch: Option<Batch>,
    /// Announced bytes that the source has not yielded yet; `None` for a chunked or close-delimited
    /// body.
    left: Option<u64>,
    is_chunked: bool,
    is_ended: bool,
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
    /// `len`: what was announced to the peer. A source is asked once, so that there is one answer.
    /// `before_len`: bytes of the lead that belong to earlier answers.
    pub(crate) fn new(
        source: Box<dyn Source>,
        len: Option<u64>,
        is_chunked: bool,
        before_len: usize,
    ) -> Self {
        Self {
            source,
            batch: None,
            left: len,
            is_chunked,
            is_ended: false,
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
        socket: impl AsFd,
        lead: &mut Vec<u8>,
        pool: &Arc<BufferPool>,
    ) -> io::Result<Outcome> {
        let mut turn_len = 0;
        loop {
            if let Some(batch) = &mut self.batch {
                let sent_len = batch.send(&socket)?;
                self.sent_len += sent_len;
                turn_len += sent_len;
                if !batch.is_sent() {
                    return Ok(Outcome::Blocked);
                }
                batch.clear();
            }
            if self.is_ended {
                self.batch = None;
                return Ok(Outcome::Done);
            }
            if turn_len >= TURN_LEN {
                return Ok(Outcome::Yield);
            }
            self.refill(lead, pool)?;
        }
    }

    fn refill(&mut self, lead: &mut Vec<u8>, pool: &Arc<BufferPool>) -> io::Result<()> {
        let mut batch = self.batch.take().unwrap_or_else(|| Batch::new(pool.take()));
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
        if has_room && self.is_chunked {
            self.fill_chunk(batch)?;
        } else if has_room {
            self.fill_plain(batch)?;
        }
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
    fn fill_chunk(&mut self, batch: &mut Batch) -> io::Result<()> {
        let size_at = batch.filled();
        batch.put(&[b'0'; CHUNK_HEAD_LEN]);
        batch.reserve(CHUNK_TAIL.len() + CHUNK_LAST.len());
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
            batch.put(CHUNK_LAST);
            self.framing_len += CHUNK_LAST.len() as u64;
        }
        Ok(())
    }

    /// Holds the source to its word.
    fn account(&mut self, progress: Progress, len: u64) -> io::Result<()> {
        let is_end = progress == Progress::End;
        if let Some(left) = &mut self.left {
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
        if !is_end && len == 0 {
            return Err(io::Error::other("body source yields nothing"));
        }
        self.is_ended = is_end;
        Ok(())
    }
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
