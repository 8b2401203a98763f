//! Request bodies that a handler reads as they come.

use std::error::Error;
use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::http::Status;
use crate::io::conn::Conn;
use crate::io::sys::{self, Direction};
use crate::patience::{GLANCE_TIME, Patience};
use crate::proto::Refusal;
use crate::proto::conn::{Conn as Proto, Step};
use crate::proto::head::HeadIndex;
use crate::request::{Link, Request};
use crate::server::Core;

/// Bytes read from a socket at once.
const READ_LEN: usize = 64 * 1024;

/// A request's body as [`Read`]; made by [`Request::reader`].
#[derive(Debug)]
pub struct BodyReader<'a> {
    request: &'a mut Request,
}

/// Why a body could not be read to its end. Stands inside the [`io::Error`] of a [`BodyReader`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BodyError {
    /// The peer broke the protocol or a limit.
    Refused(Refusal),
    /// The peer went away in the middle.
    Incomplete,
    /// The server is being stopped.
    Stopped,
}

impl BodyError {
    /// The status to answer with.
    pub fn status(self) -> Status {
        match self {
            Self::Refused(refusal) => refusal.status(),
            Self::Incomplete => Status::BAD_REQUEST,
            Self::Stopped => Status::SERVICE_UNAVAILABLE,
        }
    }

    /// What is inside an error of a [`BodyReader`], also after it went through code that passes
    /// [`io::Error`]s on.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Incomplete => f.write_str("request body is incomplete"),
            Self::Stopped => f.write_str("server is stopping"),
        }
    }
}

impl Error for BodyError {}

impl From<BodyError> for io::Error {
    fn from(error: BodyError) -> Self {
        let kind = match error {
            BodyError::Refused(Refusal::BodyTooLarge) => io::ErrorKind::FileTooLarge,
            BodyError::Refused(Refusal::Timeout) => io::ErrorKind::TimedOut,
            BodyError::Refused(_) => io::ErrorKind::InvalidData,
            BodyError::Incomplete => io::ErrorKind::UnexpectedEof,
            BodyError::Stopped => io::ErrorKind::ConnectionAborted,
        };
        Self::new(kind, error)
    }
}

impl<'a> BodyReader<'a> {
    pub(crate) fn new(request: &'a mut Request) -> Self {
        Self { request }
    }
}

impl Read for BodyReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let request = &mut *self.request;
        let rest = request.body.get(request.read_len..).unwrap_or_default();
        if !rest.is_empty() {
            let len = copy(rest, buffer);
            request.read_len += len;
            return Ok(len);
        }
        match &mut request.link {
            Link::None => Ok(0),
            Link::Http1(upload) => upload.read(buffer),
            #[cfg(feature = "http2")]
            Link::Http2(stream) => stream.read(buffer),
        }
    }
}

fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let len = from.len().min(to.len());
    if let (Some(from), Some(to)) = (from.get(..len), to.get_mut(..len)) {
        to.copy_from_slice(from);
    }
    len
}

/// An HTTP/1 connection while a handler has it.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) conn: Box<Conn>,
    core: Arc<Core>,
    /// Bytes of `conn.input` that are dealt with.
    input_at: usize,
    /// Why there is no more to read.
    refusal: Option<Refusal>,
    /// Whether the socket was read here.
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

    /// Gives the connection back, with what was not read.
    pub(crate) fn into_conn(self) -> Box<Conn> {
        let mut conn = self.conn;
        conn.input.drain(..self.input_at);
        if conn.input.is_empty() {
            conn.input = Vec::new();
        }
        // What the kernel said meanwhile went to the I/O thread, and may be old by now. Where
        // nothing was read it is not, and a connection with nothing to read is worth no wake-up.
        conn.readable |= self.has_received;
        conn.needs_linger |= conn.proto.has_body();
        conn
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Whoever goes on after an error must not take what follows for the end.
        if let Some(refusal) = self.refusal {
            return Err(BodyError::Refused(refusal).into());
        }
        if self.conn.proto.has_body() && self.conn.proto.take_expect_continue() {
            // RFC 9110, 10.1.1: not if the body is on its way already.
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
            let mut input = self.conn.input.get(self.input_at..).unwrap_or_default();
            if data_len > 0 {
                // No more than the reader has room for.
                input = input.get(..buffer.len()).unwrap_or(input);
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
                    return Ok(copy(input.get(..taken).unwrap_or_default(), buffer));
                }
                Step::Framing => {}
                Step::NeedMore => self.receive()?,
                Step::Refused(refusal) => return Err(self.refuse(refusal)),
                Step::BodyEnd | Step::Head | Step::Paused | Step::Closed => return Ok(0),
                #[cfg(feature = "http2")]
                Step::Http2 => return Ok(0),
            }
        }
    }

    /// Reads data, and nothing else, to where it is wanted.
    fn read_data(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.receive_into(buffer)?;
        let data = buffer.get(..len).unwrap_or_default();
        match advance(
            &mut self.conn.proto,
            data,
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

    /// Adds to the input.
    fn receive(&mut self) -> io::Result<()> {
        let mut input = std::mem::take(&mut self.conn.input);
        input.drain(..self.input_at);
        self.input_at = 0;
        let old_len = input.len();
        input.resize(old_len + READ_LEN, 0);
        let received = self.receive_into(input.get_mut(old_len..).unwrap_or_default());
        input.truncate(old_len + received.as_ref().copied().unwrap_or(0));
        self.conn.input = input;
        received.map(drop)
    }

    /// Waits for bytes; at least one.
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
                None => self.wait(Direction::Read)?,
            }
        }
    }

    fn send_output(&mut self) -> io::Result<()> {
        while !self.conn.flush()? {
            self.wait(Direction::Write)?;
        }
        Ok(())
    }

    /// Waits until the socket is ready, with another worker in this one's place.
    fn wait(&mut self, direction: Direction) -> io::Result<()> {
        // Where too many wait already it keeps its place: for one stall time at most.
        let _place = self.core.queue.give_place(self.conn.answer.lane);
        loop {
            if self.core.is_cut_off.load(Ordering::Acquire) {
                return Err(BodyError::Stopped.into());
            }
            let started = Instant::now();
            let is_ready = sys::wait_for(&self.conn.transport, direction, GLANCE_TIME)?;
            let waited = self.patience.waited(started.elapsed(), &self.core.limits);
            if let Err(error) = waited {
                self.conn.proto.close_after();
                return Err(error.into());
            }
            if is_ready {
                return Ok(());
            }
        }
    }
}

fn advance(proto: &mut Proto, input: &[u8], core: &Core, len_max: u64) -> (usize, Step) {
    // The index is for heads, and none comes before the body has ended.
    proto.advance(input, &core.limits.head, len_max, &mut HeadIndex::default())
}
