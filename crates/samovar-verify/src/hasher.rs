//! [`Hasher`]: hashes a long NAR in a thread of its own.

use std::mem;
use std::panic;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use sha2::{Digest as _, Sha256};

/// Number of bytes after which a thread hashes the rest. Starting one takes as long as hashing some
/// 100 KiB.
const INLINE_LEN: usize = 4 << 20;

/// Length of a buffer, in bytes.
const BUFFER_LEN: usize = 256 << 10;

/// Number of buffers. The memory of a verification includes them.
const BUFFER_COUNT: usize = 4;

/// Computes a SHA-256 of bytes that arrive in pieces. SHA-256 takes about as long as decompressing
/// the bytes, so that a thread halves the time of a long NAR.
pub(super) enum Hasher {
    /// Hashes in the calling thread.
    Inline {
        hasher: Sha256,
        /// Number of bytes hashed since the start, or since a thread could not be started.
        len: usize,
    },
    Threaded(Threaded),
}

/// Bytes on their way to a thread that hashes them.
pub(super) struct Threaded {
    /// Bytes that are not sent yet.
    pending: Vec<u8>,
    full: SyncSender<Vec<u8>>,
    empty: Receiver<Vec<u8>>,
    thread: JoinHandle<Sha256>,
}

impl Hasher {
    pub(super) fn new() -> Self {
        Self::Inline {
            hasher: Sha256::new(),
            len: 0,
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Inline { hasher, len } => {
                hasher.update(bytes);
                *len += bytes.len();
                if *len >= INLINE_LEN {
                    match Threaded::start(hasher) {
                        Some(threaded) => *self = Self::Threaded(threaded),
                        None => *len = 0,
                    }
                }
            }
            Self::Threaded(threaded) => threaded.update(bytes),
        }
    }

    pub(super) fn finish(self) -> [u8; 32] {
        let hasher = match self {
            Self::Inline { hasher, .. } => hasher,
            Self::Threaded(threaded) => threaded.finish(),
        };
        hasher.finalize().into()
    }
}

impl Threaded {
    /// Starts a thread that continues with the state of `hasher`. Returns `None` if the system
    /// permits no thread.
    fn start(hasher: &Sha256) -> Option<Self> {
        let (full, received) = sync_channel::<Vec<u8>>(BUFFER_COUNT);
        let (returned, empty) = sync_channel(BUFFER_COUNT);
        let mut hasher = hasher.clone();
        let thread = thread::Builder::new().name("nar-hash".to_owned());
        let spares = returned.clone();
        let thread = thread.spawn(move || {
            for mut bytes in received {
                hasher.update(&bytes);
                bytes.clear();
                // The other end is gone only after an error, and then needs no buffers.
                drop(returned.send(bytes));
            }
            hasher
        });
        for _ in 1..BUFFER_COUNT {
            spares.send(Vec::new()).ok()?;
        }
        Some(Self {
            pending: Vec::with_capacity(BUFFER_LEN),
            full,
            empty,
            thread: thread.ok()?,
        })
    }

    fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = BUFFER_LEN - self.pending.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.pending.extend_from_slice(now);
            bytes = later;
            if self.pending.len() == BUFFER_LEN {
                self.send();
            }
        }
    }

    /// Sends the pending bytes, and waits for an empty buffer.
    fn send(&mut self) {
        // Both ends live until `finish`, unless the thread has panicked, which `finish` reports.
        drop(self.full.send(mem::take(&mut self.pending)));
        self.pending = self.empty.recv().unwrap_or_default();
        self.pending.reserve_exact(BUFFER_LEN);
    }

    fn finish(mut self) -> Sha256 {
        self.send();
        drop(self.full);
        match self.thread.join() {
            Ok(hasher) => hasher,
            Err(reason) => panic::resume_unwind(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_any_pieces_is_that_of_the_whole() {
        for len in [
            0,
            INLINE_LEN - 1,
            INLINE_LEN,
            INLINE_LEN + 1,
            INLINE_LEN + BUFFER_LEN,
            INLINE_LEN + 9 * BUFFER_LEN + 7,
        ] {
            let bytes: Vec<u8> = (0..=250).cycle().take(len).collect();
            for piece_len in [100_003, INLINE_LEN, len.max(1)] {
                let mut hasher = Hasher::new();
                for piece in bytes.chunks(piece_len) {
                    hasher.update(piece);
                }
                let is_inline = matches!(hasher, Hasher::Inline { .. });
                assert_eq!(is_inline, len < INLINE_LEN, "{len}");
                assert_eq!(hasher.finish()[..], Sha256::digest(&bytes)[..], "{len}");
            }
        }
    }

    #[test]
    fn a_dropped_hasher_ends_its_thread() {
        let mut hasher = Hasher::new();
        hasher.update(&vec![1; INLINE_LEN]);
        hasher.update(&vec![1; 3 * BUFFER_LEN + 1]);
        let Hasher::Threaded(threaded) = hasher else {
            panic!("no thread was started");
        };
        let Threaded { full, thread, .. } = threaded;
        drop(full);
        assert!(thread.join().is_ok());
    }
}
