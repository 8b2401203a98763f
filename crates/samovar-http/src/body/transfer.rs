//! Sends the body of an HTTP/1 response, with back-pressure.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::{Batch, Progress, Source, batch};
use crate::net::transport::Transport;
use crate::net::wake::Waker;

/// Maximum length of a turn: the number of bytes after which a transfer lets other jobs run.
const YIELD_LEN: u64 = 1 << 20;
/// Length of the size line before a chunk, in bytes: sixteen digits and CRLF.
const CHUNK_HEAD_LEN: usize = 18;
const CHUNK_TAIL: &[u8] = b"\r\n";
const CHUNK_LAST: &[u8] = b"0\r\n\r\n";

/// State of a transfer after one call of [`Transfer::run`].
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The kernel has accepted all bytes.
    Done,
    /// The socket buffer is full.
    Blocked,
    /// More can be sent, but other jobs run first.
    Yield,
    /// The source has no bytes at present and will wake the connection.
    Waiting,
    /// The next pull of the source may wait for any time: the caller must call
    /// [`Transfer::fill_ahead`] and then continue.
    Empty,
}

/// Method of delimiting the body, by which the client recognises its end (RFC 9112, 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// `Content-Length`, in bytes.
    Length(u64),
    /// The chunked transfer coding.
    Chunked,
    /// The server closes the connection after the body.
    Close,
}

/// A response body in progress.
#[derive(Debug)]
pub(crate) struct Transfer {
    source: Box<dyn Source>,
    /// Whether a pull of the source may wait for any time.
    may_wait: bool,
    batch: Option<Batch>,
    /// Error of the last [`fill_ahead`](Self::fill_ahead), which the next run returns.
    failure: Option<io::Error>,
    /// Whether [`fill_ahead`](Self::fill_ahead) was called after the last run.
    is_filled: bool,
    /// Number of bytes sent in the current turn.
    turn_len: u64,
    /// Number of announced bytes that the source has not yielded yet; `None` for a chunked or
    /// close-delimited body.
    left: Option<u64>,
    framing: Framing,
    /// The rest of the last chunk, which follows the body and did not fit into a batch yet. Empty
    /// until the source ends.
    tail: Vec<u8>,
    is_ended: bool,
    is_waiting: bool,
    /// Time at which the source must be pulled again while it waits; `None` if there is none.
    next_pull: Option<Instant>,
    /// Number of bytes that the kernel has accepted, including the head and framing.
    sent_len: u64,
    /// Number of bytes in `sent_len` that do not come from the source.
    framing_len: u64,
    /// Number of unsent bytes of earlier responses, which precede the head of this response.
    before_len: u64,
    /// Whether the source caused the last error of [`run`](Self::run); otherwise the socket did.
    is_source_failed: bool,
    /// Whether the client was once too slow for a worker to wait for it.
    pub(crate) is_slow: bool,
    /// Value of `sent_len` when a worker last waited for the client.
    waited_at: Option<u64>,
}

impl Transfer {
    /// Creates a transfer. `before_len` is the number of bytes of earlier responses in `preceding`.
    pub(crate) fn new(source: Box<dyn Source>, framing: Framing, before_len: usize) -> Self {
        Self {
            may_wait: source.may_wait(),
            source,
            batch: None,
            failure: None,
            is_filled: false,
            turn_len: 0,
            left: match framing {
                Framing::Length(len) => Some(len),
                Framing::Chunked | Framing::Close => None,
            },
            framing,
            tail: Vec::new(),
            is_ended: false,
            is_waiting: false,
            next_pull: None,
            sent_len: 0,
            framing_len: 0,
            before_len: before_len as u64,
            is_source_failed: false,
            is_slow: false,
            waited_at: None,
        }
    }

    /// Returns the number of body bytes that the kernel has accepted.
    pub(crate) fn body_len(&self) -> u64 {
        self.sent_len.saturating_sub(self.framing_len)
    }

    /// Returns the number of bytes that the kernel has accepted, including the head and framing.
    pub(crate) fn sent_len(&self) -> u64 {
        self.sent_len
    }

    /// Returns whether the source waits and must now be pulled again.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next_pull.is_some_and(|at| now >= at)
    }

    /// Returns whether a worker may wait until the socket is writable. Returns `false` if nothing
    /// was sent since the last wait: without memory for sockets, the kernel reports that the socket
    /// is writable and accepts nothing.
    pub(crate) fn may_wait(&mut self) -> bool {
        let waited_at = self.waited_at.replace(self.sent_len);
        !self.is_slow && waited_at != Some(self.sent_len)
    }

    /// Pulls and sends until the body is complete, the socket buffer is full, or other jobs must
    /// run. `preceding` holds the bytes before the body, such as the head; the first write sends
    /// and empties it.
    ///
    /// # Errors
    ///
    /// Errors of the source and the socket, and a source that yields more or fewer bytes than
    /// announced. The connection must then be reset, unless [`recall`](Self::recall) succeeds.
    pub(crate) fn run(
        &mut self,
        transport: &mut Transport,
        preceding: &mut Vec<u8>,
        waker: &Waker,
    ) -> io::Result<Outcome> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        if !std::mem::take(&mut self.is_filled) {
            self.is_waiting = false;
            self.turn_len = 0;
        }
        loop {
            if let Some(batch) = &mut self.batch {
                let source = &mut self.source;
                let sent_len = batch.send(transport).inspect_err(|error| {
                    if batch::is_about_file(error) {
                        source.file_failed(error);
                    }
                })?;
                self.sent_len += sent_len;
                self.turn_len += sent_len;
                if !batch.is_sent() {
                    return Ok(Outcome::Blocked);
                }
                batch.clear();
            }
            if self.is_ended && self.tail.is_empty() || self.is_waiting {
                self.batch = None;
                if !transport.flush()? {
                    // Nothing records that the source waits: the next pull returns `Wait` again.
                    return Ok(Outcome::Blocked);
                }
                return Ok(if self.is_waiting {
                    Outcome::Waiting
                } else {
                    Outcome::Done
                });
            }
            if self.turn_len >= YIELD_LEN {
                return Ok(Outcome::Yield);
            }
            if self.may_wait {
                return Ok(Outcome::Empty);
            }
            self.refill(transport.plain().is_some(), preceding, waker)?;
        }
    }

    /// Pulls the source once, after [`Outcome::Empty`]. `takes_files`: the transport can send file
    /// ranges. The next [`run`](Self::run) returns an error, if any.
    pub(crate) fn fill_ahead(&mut self, takes_files: bool, preceding: &mut Vec<u8>, waker: &Waker) {
        let filled = catch_unwind(AssertUnwindSafe(|| {
            self.refill(takes_files, preceding, waker)
        }));
        let panicked = |_panic| Err(io::Error::other("body source panicked"));
        self.failure = filled.unwrap_or_else(panicked).err();
        self.is_filled = true;
    }

    fn refill(
        &mut self,
        takes_files: bool,
        preceding: &mut Vec<u8>,
        waker: &Waker,
    ) -> io::Result<()> {
        let new = || match takes_files {
            true => Batch::of_files(waker.clone()),
            false => Batch::new(waker.clone()),
        };
        let mut batch = self.batch.take().unwrap_or_else(new);
        // Assume failure before the call, because the source may panic.
        self.is_source_failed = true;
        self.fill(&mut batch, preceding)?;
        self.is_source_failed = false;
        self.batch = Some(batch);
        Ok(())
    }

    /// Fills a batch. `preceding` stays complete until the source has succeeded; see
    /// [`recall`](Self::recall).
    fn fill(&mut self, batch: &mut Batch, preceding: &mut Vec<u8>) -> io::Result<()> {
        let preceding_len = batch.put(preceding);
        let has_room = preceding_len == preceding.len() && batch.room_len() > 2 * CHUNK_HEAD_LEN;
        if has_room && !self.is_ended {
            match self.framing {
                Framing::Chunked => self.fill_chunk(batch)?,
                Framing::Length(_) | Framing::Close => self.fill_plain(batch)?,
            }
        }
        let tail_len = batch.put(&self.tail);
        self.tail.drain(..tail_len);
        self.framing_len += tail_len as u64;
        preceding.drain(..preceding_len);
        self.framing_len += preceding_len as u64;
        Ok(())
    }

    /// Removes the head of this response from `preceding` after the source has failed, so that an
    /// error response can replace it. Returns `false` if part of the head was sent, or if the
    /// socket has failed.
    pub(crate) fn recall(&self, preceding: &mut Vec<u8>) -> bool {
        let Some(before_len) = self.before_len.checked_sub(self.sent_len) else {
            return false;
        };
        if self.is_source_failed {
            preceding.truncate(usize::try_from(before_len).unwrap_or(usize::MAX));
        }
        self.is_source_failed
    }

    fn fill_plain(&mut self, batch: &mut Batch) -> io::Result<()> {
        let before = batch.added_len();
        let progress = self.source.pull(batch)?;
        self.account(progress, batch.added_len() - before)
    }

    /// Adds one chunk. The size is known only after the data, so its field has a fixed width:
    /// leading zeros are allowed (RFC 9112, 7.1).
    fn fill_chunk(&mut self, batch: &mut Batch) -> io::Result<()> {
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
        }
        Ok(())
    }

    /// Checks that the source has yielded no more and no fewer bytes than announced.
    fn account(&mut self, progress: Progress, len: u64) -> io::Result<()> {
        account(&mut self.left, progress, len)?;
        self.is_waiting = progress == Progress::Wait;
        self.next_pull = match self.is_waiting {
            true => self.source.next_pull(),
            false => None,
        };
        self.is_ended = progress == Progress::End;
        Ok(())
    }
}

/// Checks a source against its announced length. `left`: number of announced bytes not yielded
/// before this pull; `len`: number of bytes that this pull yielded.
pub(crate) fn account(left: &mut Option<u64>, progress: Progress, len: u64) -> io::Result<()> {
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
