//! Messages to an I/O thread.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use super::Conn;
use crate::body::Transfer;
use crate::net::key::Key;
use crate::sync::Lock;
use crate::sys::WakeUp;
use crate::tls::Handshake;

/// Reason for which a worker returns a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The kernel has accepted the whole response.
    Answered,
    /// The socket buffer is full.
    Blocked,
    /// The application has not provided the response, or the rest of it; it will wake the
    /// connection once it has.
    Waiting,
    /// The handler has sent the request back.
    SentBack,
    /// The TLS handshake has made progress.
    Handshake(Handshake),
    /// The response has failed, and the connection must be reset.
    Reset,
}

/// A message to an I/O thread.
#[derive(Debug)]
pub(crate) enum Message {
    /// A worker returns a connection.
    Returned(Box<Conn>, Verdict),
    /// A [`Waker`](crate::net::wake::Waker) of this connection, or of a stream of it, was called.
    Wake(Key, u32),
    /// A worker's job for an HTTP/2 stream has a result.
    Stream(Key, u32, super::StreamNews),
    /// A worker waits for the body's source, and the client of this connection, which was
    /// [laid by](Inbox::lay_by), may have left.
    Departed(Key),
    /// A source that has waited has filled its transfer. Together with it, the bytes to send before
    /// the body.
    Filled(Key, Box<Transfer>, Vec<u8>),
    /// A panic has dropped a connection, which therefore never returns.
    Lost(Key),
    /// Evict a connection, because another thread has refused a new one at the connection limit.
    Evict,
    /// Drain: accept no more connections, close idle ones, and end by this time.
    Drain(Instant),
    /// Send a message back, which shows that the thread is responsive.
    Ping(SyncSender<()>),
}

/// A message queue that wakes its thread only for urgent messages, and only once for several of
/// them.
///
/// A returned connection with a complete response and nothing left to read is not urgent: when its
/// client sends data, that event wakes the thread anyway. The thread then finds that a worker has
/// the connection, and checks this queue ([`Inbox::miss`]). If the connection has not returned yet,
/// it is recorded as missed, and its return becomes urgent. The return of a connection that waits
/// for a deferred response is not urgent either: completing the response wakes the thread, after
/// the return.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// The queued messages; `None` once the thread has ended.
    mail: Mutex<Option<Mail>>,
    wake: WakeUp,
    laid_by: Mutex<LaidBy>,
}

/// Connections whose bodies come from sources that wait.
#[derive(Debug, Default)]
struct LaidBy {
    conns: HashMap<u64, Box<Conn>>,
    /// Connections that a worker has, and whose clients have ended their side meanwhile.
    ended: Vec<Key>,
}

#[derive(Debug, Default)]
struct Mail {
    messages: Vec<Message>,
    /// Connections that a worker has, and for which the thread has received an event meanwhile.
    missed: Vec<Key>,
    is_woken: bool,
}

impl Mail {
    /// Returns whether the thread must handle a message at once.
    fn is_urgent(&mut self, message: &Message) -> bool {
        let (key, can_wait) = match message {
            Message::Returned(conn, verdict) => {
                let can_wait = match verdict {
                    Verdict::Answered => {
                        conn.answer.keep
                            && conn.input.is_empty()
                            && !conn.readable
                            && conn.upgrade.is_none()
                    }
                    // Only the return with a deferred response can wait: a body that waits may
                    // already have called the waker.
                    Verdict::Waiting => {
                        conn.later.is_some()
                            && !conn.peer_ended
                            && conn.output.is_empty()
                            && !conn.transport.has_pending()
                    }
                    _ => false,
                };
                (conn.key, can_wait)
            }
            Message::Lost(key) => (*key, false),
            _ => return true,
        };
        let missed = self.missed.iter().position(|missed| *missed == key);
        if let Some(at) = missed {
            self.missed.swap_remove(at);
        }
        missed.is_some() || !can_wait
    }
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            mail: Mutex::new(Some(Mail::default())),
            wake: WakeUp::new()?,
            laid_by: Mutex::default(),
        })
    }

    /// Adds a message; returns the message if the thread has ended.
    pub(crate) fn push(&self, message: Message) -> Result<(), Message> {
        let mut guard = self.mail.locked();
        let Some(mail) = &mut *guard else {
            return Err(message);
        };
        let wakes = mail.is_urgent(&message) && !mail.is_woken;
        mail.is_woken |= wakes;
        mail.messages.push(message);
        drop(guard);
        if wakes {
            self.wake
                .wake()
                .expect("a descriptor that is open can be written");
        }
        Ok(())
    }

    /// Moves all messages into `messages`.
    pub(crate) fn drain(&self, messages: &mut Vec<Message>) {
        if let Some(mail) = &mut *self.mail.locked() {
            // A sender adds its message before it wakes the thread, so the message may be taken
            // before the wake-up arrives. `is_woken` makes `take` clear the wake-up even then:
            // a wake-up that is left pending would end every later wait at once.
            mail.is_woken = true;
            self.take(mail, messages);
        }
    }

    /// Moves all messages into `messages`. Called when an event has arrived for a connection that a
    /// worker has. If the connection is not among the returned ones, its return becomes urgent.
    pub(crate) fn miss(&self, key: Key, messages: &mut Vec<Message>) {
        if let Some(mail) = &mut *self.mail.locked() {
            let is_back = |message: &Message| match message {
                Message::Returned(conn, _) => conn.key == key,
                // A lost connection never returns, so an entry in `missed` would stay forever.
                Message::Lost(lost) => *lost == key,
                _ => false,
            };
            if !mail.messages.iter().any(is_back) && !mail.missed.contains(&key) {
                mail.missed.push(key);
            }
            self.take(mail, messages);
        }
    }

    fn take(&self, mail: &mut Mail, messages: &mut Vec<Message>) {
        if std::mem::take(&mut mail.is_woken) {
            self.wake.clear();
        }
        messages.append(&mut mail.messages);
    }

    /// Keeps a connection while a worker waits for the source of its body.
    pub(crate) fn lay_by(&self, conn: Box<Conn>) {
        let (key, peer_ended) = (conn.key, conn.peer_ended);
        let mut laid_by = self.laid_by.locked();
        let has_ended = peer_ended || laid_by.ended.contains(&key);
        laid_by.conns.insert(key.to_bits(), conn);
        drop(laid_by);
        if has_ended {
            // If the thread has ended, so has the connection.
            drop(self.push(Message::Departed(key)));
        }
    }

    /// Returns a connection that was laid by; `None` if its I/O thread has taken it.
    pub(crate) fn take_back(&self, key: Key) -> Option<Box<Conn>> {
        self.laid_by.locked().conns.remove(&key.to_bits())
    }

    /// Returns a connection that a worker has laid by, and whose client has ended its side. If the
    /// worker has it, [`lay_by`](Self::lay_by) will report it.
    pub(crate) fn take_ended(&self, key: Key) -> Option<Box<Conn>> {
        let mut laid_by = self.laid_by.locked();
        let conn = laid_by.conns.remove(&key.to_bits());
        let is_known = laid_by.ended.contains(&key);
        if conn.is_none() && !is_known {
            laid_by.ended.push(key);
        } else if conn.is_some() && is_known {
            laid_by.ended.retain(|ended| *ended != key);
        }
        drop(laid_by);
        if conn.is_some()
            && let Some(mail) = &mut *self.mail.locked()
        {
            mail.missed.retain(|missed| *missed != key);
        }
        conn
    }

    /// Forgets that the client of a connection has ended its side, because the connection is back.
    pub(crate) fn forget_ended(&self, key: Key) {
        self.laid_by.locked().ended.retain(|ended| *ended != key);
    }

    /// Returns all connections that are laid by.
    pub(crate) fn take_laid_by(&self) -> impl Iterator<Item = Box<Conn>> + use<> {
        let conns = std::mem::take(&mut self.laid_by.locked().conns);
        conns.into_values()
    }

    /// Stops accepting messages; returns the remaining ones.
    pub(crate) fn close(&self) -> Vec<Message> {
        self.mail.locked().take().unwrap_or_default().messages
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sys;

    fn is_awake(inbox: &Inbox) -> bool {
        sys::wait_for(inbox, sys::PollFlags::IN, Duration::ZERO).unwrap()
    }

    #[test]
    fn the_key_of_a_lost_connection_is_not_recorded_as_missed() {
        let inbox = Inbox::new().unwrap();
        let key = Key::from_bits(7);
        inbox.push(Message::Lost(key)).unwrap();
        let mut messages = Vec::new();
        inbox.miss(key, &mut messages);
        assert_eq!(messages.len(), 1);
        assert!(inbox.mail.locked().as_ref().unwrap().missed.is_empty());
    }

    #[test]
    fn a_wake_up_after_its_message_was_taken_is_reset() {
        let inbox = Inbox::new().unwrap();
        let (sender, _receiver) = std::sync::mpsc::sync_channel(1);
        inbox.push(Message::Ping(sender)).unwrap();
        assert!(is_awake(&inbox));
        let mut messages = Vec::new();
        inbox.drain(&mut messages);
        assert_eq!(messages.len(), 1);
        // Simulates a sender that is interrupted between adding its message and waking the thread.
        inbox.wake.wake().unwrap();
        assert!(is_awake(&inbox));
        inbox.drain(&mut messages);
        assert!(!is_awake(&inbox));
    }
}
