//! Handover: passing listening sockets to a new process, for zero-downtime upgrades.
//!
//! The old process [gives](give) its sockets through one end of a socket pair; the new process
//! [takes](take) copies of them from the other end. Both processes then accept from the same
//! queues, so no pending connection is lost. Once the new process serves, it
//! [releases](Predecessor::release) the old one, which drains. If the new process fails earlier,
//! the old one continues to serve. Sockets are given only to a process of the same user.
//!
//! ```no_run
//! # fn main() -> std::io::Result<()> {
//! # use std::os::unix::net::UnixStream;
//! # use std::time::Duration;
//! # use samovar_http::{handover, Listener, Router, Server};
//! # fn start_successor(_: UnixStream) {}
//! # fn inherited() -> Option<UnixStream> { None }
//! let (listeners, predecessor) = match inherited() {
//!     Some(stream) => {
//!         let (listeners, predecessor) = handover::take(stream)?;
//!         (listeners, Some(predecessor))
//!     }
//!     None => (vec![Listener::bind("[::]:8080")?], None),
//! };
//! let mut builder = Server::builder(Router::new().get("/", |_| "Hello\n"));
//! for listener in listeners {
//!     builder = builder.listen(listener);
//! }
//! let server = builder.start()?;
//! if let Some(predecessor) = predecessor {
//!     predecessor.release()?;
//! }
//! // Later, to be replaced by a new process:
//! let (ours, theirs) = UnixStream::pair()?;
//! start_successor(theirs);
//! if handover::give(&ours, &server)? {
//!     server.drain(Duration::from_secs(60));
//! }
//! # Ok(())
//! # }
//! ```

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage,
};

use crate::net::listener::Listener;
use crate::server::Server;
use crate::service::Service;
use crate::sys;

/// Kernel limit of descriptors in one message (`SCM_MAX_FD`).
const DESCRIPTORS_MAX: usize = 253;
/// First byte of the message: the version of its format.
const VERSION: u8 = 1;
/// The byte that the successor sends once it serves.
const READY: u8 = b'R';
/// Timeout of sending and of receiving the sockets. The wait for the successor to serve has no
/// timeout.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends the sockets of `server` to the successor at the other end of `stream`, and waits until the
/// successor [serves](Predecessor::release). Returns `false` if the successor ends without serving.
/// The server continues meanwhile; the caller drains it afterwards.
///
/// # Errors
///
/// System errors; `InvalidInput` for more than 253 sockets; `WouldBlock` if `stream` has a read
/// timeout and it expires before the successor is ready.
pub fn give<S: Service>(mut stream: &UnixStream, server: &Server<S>) -> io::Result<bool> {
    if sys::unix_peer(stream)?.uid != rustix::process::getuid().as_raw() {
        return Ok(false);
    }
    stream.set_write_timeout(Some(PATIENCE))?;
    let listeners = server.listening()?;
    let counts = listeners.iter().map(|sockets| u8::try_from(sockets.len()));
    let message: Result<Vec<u8>, _> = std::iter::once(Ok(VERSION)).chain(counts).collect();
    let descriptors: Vec<_> = listeners.iter().flatten().map(AsFd::as_fd).collect();
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let is_added = descriptors.len() <= DESCRIPTORS_MAX
        && ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let (Ok(message), true) = (message, is_added) else {
        let message = "more than 253 sockets to hand over";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    };
    let sent = rustix::net::sendmsg(
        stream,
        &[IoSlice::new(&message)],
        &mut ancillary,
        sys::SEND_MESSAGE,
    );
    // A successor may take any time to start. If it dies, the stream ends and the read returns.
    let mut answer = [0];
    match sent
        .map_err(io::Error::from)
        .and_then(|_| stream.read(&mut answer))
    {
        Ok(len) => Ok(len == 1 && answer == [READY]),
        Err(error) => match error.kind() {
            // The successor has closed its end before or without reading the message.
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Ok(false),
            _ => Err(error),
        },
    }
}

/// The old process, which serves until the new one is ready; returned by [`take`]. Dropping this
/// value without [`release`](Self::release) lets the old process continue to serve.
#[derive(Debug)]
pub struct Predecessor(UnixStream);

impl Predecessor {
    /// Reports to the old process that the new one serves, so that the old one drains.
    ///
    /// # Errors
    ///
    /// If the old process has already ended; this error can be ignored.
    pub fn release(mut self) -> io::Result<()> {
        self.0.write_all(&[READY])
    }
}

/// Takes the sockets that a predecessor [gives](give) at the other end of `stream`. The listeners
/// have the order in which that process added them to its builder.
///
/// # Errors
///
/// If the predecessor refuses, ends, takes too long, or uses another message format.
pub fn take(stream: UnixStream) -> io::Result<(Vec<Listener>, Predecessor)> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut message = [0; DESCRIPTORS_MAX + 1];
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = sys::RECEIVE_DESCRIPTORS;
    let mut pieces = [IoSliceMut::new(&mut message)];
    let received = rustix::net::recvmsg(&stream, &mut pieces, &mut ancillary, flags)?;
    let mut descriptors = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptors.extend(rights);
        }
    }
    descriptors.iter().try_for_each(sys::close_on_exec)?;
    let message = message.get(..received.bytes).unwrap_or_default();
    let is_whole = !received.flags.contains(ReturnFlags::CTRUNC);
    let Some((&VERSION, counts)) = message.split_first().filter(|_| is_whole) else {
        return Err(not_understood());
    };
    let mut descriptors = descriptors.into_iter();
    let listeners = counts
        .iter()
        .map(|count| Listener::handed_over(descriptors.by_ref().take((*count).into()).collect()))
        .collect::<io::Result<_>>()?;
    if descriptors.next().is_some() {
        return Err(not_understood());
    }
    Ok((listeners, Predecessor(stream)))
}

fn not_understood() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the running process sent no sockets, or uses another version of the handover protocol",
    )
}
