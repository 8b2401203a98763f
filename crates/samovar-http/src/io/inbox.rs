//! What others have to say to an I/O thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::conn::Conn;
use super::slab::Key;
use super::sys;

/// How a worker gives a connection back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The answer is with the kernel; the next request is welcome.
    Answered {
        /// Whether the connection may stay open.
        keep: bool,
    },
    /// The socket takes no more for now.
    Blocked,
    /// The answer, or the rest of it, is not there yet; the connection will be woken.
    Waiting,
    /// Beyond repair.
    Reset,
}

/// A message to an I/O thread.
#[derive(Debug)]
pub(crate) enum Message {
    /// A connection comes back.
    Returned(Box<Conn>, Verdict),
    /// Something that a connection waits for is there; and for which stream of it.
    Wake(Key, u32),
    /// A connection does not come back: a panic took it.
    Lost(Key),
    /// Accept no more, close what is idle, be gone by then.
    Drain(Instant),
    /// Say that you are alive.
    Ping(SyncSender<()>),
}

/// A queue that wakes its thread when it becomes non-empty, so once for many messages.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// `None` once the thread is gone.
    messages: Mutex<Option<Vec<Message>>>,
    wake: OwnedFd,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            messages: Mutex::new(Some(Vec::new())),
            wake: sys::wake_descriptor()?,
        })
    }

    /// Leaves a message, or gives it back if nobody will read it any more.
    pub(crate) fn push(&self, message: Message) -> Result<(), Message> {
        let mut messages = self.lock();
        let Some(waiting) = &mut *messages else {
            return Err(message);
        };
        let was_empty = waiting.is_empty();
        waiting.push(message);
        drop(messages);
        if was_empty {
            sys::wake(&self.wake).expect("an eventfd that is open can be written");
        }
        Ok(())
    }

    /// Moves everything into `messages`.
    pub(crate) fn drain(&self, messages: &mut Vec<Message>) {
        sys::clear_wake(&self.wake);
        if let Some(waiting) = &mut *self.lock() {
            messages.append(waiting);
        }
    }

    /// Takes no more; returns what nobody has read.
    pub(crate) fn close(&self) -> Vec<Message> {
        self.lock().take().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Message>>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
