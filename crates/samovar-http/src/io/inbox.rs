//! What others have to say to an I/O thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use super::conn::Conn;
use super::key::Key;
use super::sys;
use crate::sync::Lock;
#[cfg(feature = "tls")]
use crate::tls::Handshake;

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
    /// Something has become of its handshake.
    #[cfg(feature = "tls")]
    Handshake(Handshake),
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
    /// Something has happened to this stream of a connection.
    #[cfg(feature = "http2")]
    Stream(Key, u32, super::stream::StreamNews),
    /// A connection does not come back: a panic took it.
    Lost(Key),
    /// Evict a connection: a new one was refused at the connection limit.
    Evict,
    /// Accept no more, close what is idle, be gone by then.
    Drain(Instant),
    /// Say that you are alive.
    Ping(SyncSender<()>),
}

/// A queue that wakes its thread when something in it cannot wait, once for many messages.
///
/// A connection that comes back answered, with nothing left to read, can wait: until its peer sends
/// something, which is an event and wakes the thread anyway. Then the thread finds the connection
/// away and looks in here ([`Inbox::miss`]). If it is still not back, it is noted as missed, and
/// its return will wake. One whose answer was promised can wait likewise: whoever has promised
/// will wake it, and not before it is here.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// `None` once the thread is gone.
    mail: Mutex<Option<Mail>>,
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct Mail {
    messages: Vec<Message>,
    /// Connections that are away and that something has arrived for.
    missed: Vec<Key>,
    is_woken: bool,
}

impl Mail {
    /// Whether a message has to be looked at now.
    fn is_urgent(&mut self, message: &Message) -> bool {
        let (key, can_wait) = match message {
            Message::Returned(conn, verdict) => {
                let can_wait = match verdict {
                    Verdict::Answered { keep: true } => {
                        conn.input.is_empty() && !conn.readable && conn.upgrade.is_none()
                    }
                    // What waits for more of its body may have been woken by now.
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
            #[cfg(feature = "http2")]
            Message::Stream(..) => return true,
            Message::Wake(..) | Message::Evict | Message::Drain(_) | Message::Ping(_) => {
                return true;
            }
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
            wake: sys::wake_descriptor()?,
        })
    }

    /// Leaves a message, or gives it back if nobody will read it any more.
    pub(crate) fn push(&self, message: Message) -> Result<(), Message> {
        let mut guard = self.lock();
        let Some(mail) = &mut *guard else {
            return Err(message);
        };
        let wakes = mail.is_urgent(&message) && !mail.is_woken;
        mail.is_woken |= wakes;
        mail.messages.push(message);
        drop(guard);
        if wakes {
            sys::wake(&self.wake).expect("an eventfd that is open can be written");
        }
        Ok(())
    }

    /// Moves everything into `messages`.
    pub(crate) fn drain(&self, messages: &mut Vec<Message>) {
        if let Some(mail) = &mut *self.lock() {
            // Whoever wakes does so after leaving the message, which may have been taken by then.
            // A wake-up that nobody took back would end every wait from then on.
            mail.is_woken = true;
            self.take(mail, messages);
        }
    }

    /// Something has arrived for a connection that is away. Moves everything into `messages`; if
    /// the connection is not among them, its return will wake.
    pub(crate) fn miss(&self, key: Key, messages: &mut Vec<Message>) {
        if let Some(mail) = &mut *self.lock() {
            let is_back = |message: &Message| match message {
                Message::Returned(conn, _) => conn.key == key,
                // Noted as missed it would be so for ever.
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
            sys::clear_wake(&self.wake);
        }
        messages.append(&mut mail.messages);
    }

    /// Takes no more; returns what nobody has read.
    pub(crate) fn close(&self) -> Vec<Message> {
        self.lock().take().unwrap_or_default().messages
    }

    fn lock(&self) -> MutexGuard<'_, Option<Mail>> {
        self.mail.locked()
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

    fn is_awake(inbox: &Inbox) -> bool {
        sys::wait_for(inbox, sys::Direction::Read, Duration::ZERO).unwrap()
    }

    #[test]
    fn nobody_is_missed_who_is_known_to_be_lost() {
        let inbox = Inbox::new().unwrap();
        let key = Key::from_bits(7);
        inbox.push(Message::Lost(key)).unwrap();
        let mut messages = Vec::new();
        inbox.miss(key, &mut messages);
        assert_eq!(messages.len(), 1);
        assert!(inbox.lock().as_ref().unwrap().missed.is_empty());
    }

    #[test]
    fn a_wake_up_behind_its_message_is_taken_back() {
        let inbox = Inbox::new().unwrap();
        let (sender, _receiver) = std::sync::mpsc::sync_channel(1);
        inbox.push(Message::Ping(sender)).unwrap();
        assert!(is_awake(&inbox));
        let mut messages = Vec::new();
        inbox.drain(&mut messages);
        assert_eq!(messages.len(), 1);
        // As from one who was interrupted between leaving a message and waking.
        sys::wake(&inbox.wake).unwrap();
        assert!(is_awake(&inbox));
        inbox.drain(&mut messages);
        assert!(!is_awake(&inbox));
    }
}
