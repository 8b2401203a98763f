//! What others have to say to an I/O thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::conn::Conn;
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
    /// Beyond repair.
    Reset,
}

/// A message to an I/O thread.
#[derive(Debug)]
pub(crate) enum Message {
    /// A connection comes back.
    Returned(Box<Conn>, Verdict),
    /// Accept no more, close what is idle, be gone by then.
    Drain(Instant),
    /// Say that you are alive.
    Ping(SyncSender<()>),
}

/// A queue that wakes its thread when it becomes non-empty, so once for many messages.
#[derive(Debug)]
pub(crate) struct Inbox {
    messages: Mutex<Vec<Message>>,
    wake: OwnedFd,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            messages: Mutex::default(),
            wake: sys::wake_descriptor()?,
        })
    }

    pub(crate) fn push(&self, message: Message) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = messages.is_empty();
        messages.push(message);
        drop(messages);
        if was_empty {
            sys::wake(&self.wake).expect("an eventfd that is open can be written");
        }
    }

    /// Moves everything into `messages`.
    pub(crate) fn drain(&self, messages: &mut Vec<Message>) {
        sys::clear_wake(&self.wake);
        messages.append(&mut self.messages.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
