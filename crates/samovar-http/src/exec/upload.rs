//! The link of an HTTP/1 connection to its request, while a handler has the request.

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::patience::{self, Patience};
use crate::conn::Conn;
use crate::core::Core;
use crate::http::Status;
use crate::proto::Refusal;
use crate::proto::conn::{Conn as Proto, Step};
use crate::proto::encode;
use crate::proto::head::HeadIndex;
use crate::sys::{self, PollFlags};
use crate::upload::{BodyError, RequestLink};

/// Maximum number of bytes read from a socket at once.
const READ_LEN: usize = 64 * 1024;

/// A connection from which a handler reads a request body.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) conn: Box<Conn>,
    core: Arc<Core>,
    /// Number of bytes of `conn.input` already consumed; at most its length.
    input_at: usize,
    /// The refusal that has ended the body; `None` while the body is valid.
    refusal: Option<Refusal>,
    /// Whether this upload has read from the socket.
    has_received: bool,
    patience: Patience,
}

impl Upload {
    pub(crate) fn new(conn: Box<Conn>, core: &Arc<Core>) -> Self {
        Self {
            conn,
            core: Arc::clone(core),
            input_at: 0,
            refusal: None,
            has_received: false,
            patience: Patience::default(),
        }
    }

    /// Takes the connection out of the request's link; returns `None` if the link is not an
    /// `Upload`.
    pub(crate) fn take_conn(link: Box<dyn RequestLink>) -> Option<Box<Conn>> {
        let upload = link.into_any().downcast::<Self>().ok()?;
        let mut conn = upload.conn;
        conn.input.drain(..upload.input_at);
        if conn.input.is_empty() {
            conn.input = Vec::new();
        }
        // While the handler had the connection, readiness events went to the I/O thread. If the
        // handler has read from the socket, these events may be outdated, so the I/O thread must
        // try to read. If it has not, the events are correct, and a connection with nothing to read
        // wakes no thread.
        conn.readable |= upload.has_received;
        conn.needs_linger |= conn.proto.has_body();
        Some(conn)
    }

    /// Reads body bytes directly into the caller's buffer.
    fn read_data(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.receive_into(buffer)?;
        match advance(
            &mut self.conn.proto,
            &buffer[..len],
            &self.core,
            self.conn.body_len_max,
        ) {
            (_, Step::Refused(refusal)) => Err(self.refuse(refusal)),
            (taken, _) => Ok(taken),
        }
    }

    fn refuse(&mut self, refusal: Refusal) -> io::Error {
        self.refusal = Some(refusal);
        BodyError::Refused(refusal).into()
    }

    /// Reads bytes into `conn.input`.
    fn receive(&mut self) -> io::Result<()> {
        let mut input = std::mem::take(&mut self.conn.input);
        input.drain(..self.input_at);
        self.input_at = 0;
        let old_len = input.len();
        input.resize(old_len + READ_LEN, 0);
        let received = self.receive_into(&mut input[old_len..]);
        input.truncate(old_len + received.as_ref().copied().unwrap_or(0));
        self.conn.input = input;
        received.map(drop)
    }

    /// Reads at least one byte; waits for the client if necessary.
    fn receive_into(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.has_received = true;
        loop {
            match self.conn.read(buffer)? {
                Some(0) => {
                    self.conn.proto.close_after();
                    return Err(BodyError::Incomplete.into());
                }
                Some(len) => {
                    self.patience.moved(len);
                    return Ok(len);
                }
                None => self.wait(PollFlags::IN)?,
            }
        }
    }

    fn send_output(&mut self) -> io::Result<()> {
        while !self.conn.flush()? {
            self.wait(PollFlags::OUT)?;
        }
        Ok(())
    }

    /// Waits until the socket is ready. Meanwhile the worker slot is lent to other jobs.
    fn wait(&mut self, readiness: PollFlags) -> io::Result<()> {
        let core = Arc::clone(&self.core);
        let (peer, lane) = (self.conn.peer, self.conn.answer.lane);
        let mut waiting = self.patience.wait(&core, peer, lane);
        let outcome = loop {
            let time = match self.patience.check(&mut waiting) {
                Ok(time) => time,
                Err(error) => break Err(error),
            };
            let started = Instant::now();
            let is_ready = match sys::wait_for(&self.conn.transport, readiness, time) {
                Ok(is_ready) => is_ready,
                Err(error) => {
                    self.patience.end(waiting);
                    return Err(error);
                }
            };
            match self.patience.waited(started.elapsed(), &core.limits) {
                Ok(()) if !is_ready => {}
                outcome => break outcome,
            }
        };
        self.patience.end(waiting);
        if outcome.is_err() {
            self.conn.proto.close_after();
        }
        Ok(outcome?)
    }
}

fn advance(proto: &mut Proto, input: &[u8], core: &Core, len_max: u64) -> (usize, Step) {
    // The index stays unused: it is for a head, and no head can follow before the body has ended.
    proto.advance(input, &core.limits.head, len_max, &mut HeadIndex::default())
}

impl RequestLink for Upload {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Return the error again: a caller that ignores it must not mistake what follows for the
        // end of the body.
        if let Some(refusal) = self.refusal {
            return Err(BodyError::Refused(refusal).into());
        }
        if self.conn.proto.has_body() && self.conn.proto.take_expect_continue() {
            // RFC 9110, 10.1.1: send no 100 if bytes of the body have already arrived.
            if self.conn.input.len() == self.input_at {
                let interim = b"HTTP/1.1 100 Continue\r\n\r\n";
                self.conn.output.extend_from_slice(interim);
                self.send_output()?;
            }
        }
        loop {
            if !self.conn.proto.has_body() {
                return Ok(0);
            }
            let data_len = self.conn.proto.data_len();
            if self.input_at == self.conn.input.len() && data_len >= buffer.len() as u64 {
                return self.read_data(buffer);
            }
            // Invariant: `input_at <= input.len()`.
            let mut input = &self.conn.input[self.input_at..];
            if data_len > 0 {
                input = &input[..input.len().min(buffer.len())];
            }
            let (taken, step) = advance(
                &mut self.conn.proto,
                input,
                &self.core,
                self.conn.body_len_max,
            );
            self.input_at += taken;
            match step {
                Step::Data => {
                    // `input` is not longer than `buffer`, so the slice is in range.
                    buffer[..taken].copy_from_slice(&input[..taken]);
                    return Ok(taken);
                }
                Step::Framing => {}
                Step::NeedMore => self.receive()?,
                Step::Refused(refusal) => return Err(self.refuse(refusal)),
                Step::BodyEnd | Step::Head | Step::Paused | Step::Closed => return Ok(0),
                Step::Http2 => return Ok(0),
            }
        }
    }

    fn inform(&mut self, status: Status, fields: &[u8]) -> io::Result<()> {
        let output = &mut self.conn.output;
        encode::status_line(output, status);
        output.extend_from_slice(fields);
        output.extend_from_slice(b"\r\n");
        // Bytes that the socket does not accept now are sent before the response.
        self.conn.flush().map(drop)
    }

    fn wait(&self, is_ready: &mut dyn FnMut(Duration) -> bool) -> io::Result<()> {
        patience::wait(&self.core, self.conn.answer.lane, is_ready)
    }

    fn is_streamed(&self) -> bool {
        self.conn.proto.has_body()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
