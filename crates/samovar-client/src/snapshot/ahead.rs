//! [`Ahead`]: reads from another reader on a thread of its own.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

/// Length of a buffer, in bytes.
const BUFFER_LEN: usize = 1 << 20;

/// Number of buffers.
const BUFFER_COUNT: usize = 4;

/// Reads ahead on a thread of its own, so that decompression and unpacking use two processors.
#[derive(Debug)]
pub(super) struct Ahead {
    filled: Receiver<io::Result<Vec<u8>>>,
    empty: Sender<Vec<u8>>,
    buffer: Vec<u8>,
    /// Index in `buffer` of the next byte.
    next: usize,
}

impl Ahead {
    pub(super) fn start(source: impl Read + Send + 'static) -> io::Result<Self> {
        let (filled_sender, filled) = sync_channel(BUFFER_COUNT);
        let (empty, empty_receiver) = channel();
        for _ in 0..BUFFER_COUNT {
            // The receiver exists.
            empty.send(Vec::with_capacity(BUFFER_LEN)).ok();
        }
        let thread = thread::Builder::new().name("nar".to_owned());
        thread.spawn(move || read_all(source, &empty_receiver, &filled_sender))?;
        Ok(Self {
            filled,
            empty,
            buffer: Vec::new(),
            next: 0,
        })
    }
}

/// Reads until the end of the source, an error, or the end of the other side.
fn read_all(
    mut source: impl Read,
    empty: &Receiver<Vec<u8>>,
    filled: &SyncSender<io::Result<Vec<u8>>>,
) {
    while let Ok(mut buffer) = empty.recv() {
        buffer.clear();
        let read = source
            .by_ref()
            .take(BUFFER_LEN as u64)
            .read_to_end(&mut buffer);
        let is_last = !matches!(read, Ok(len) if len > 0);
        if filled.send(read.map(|_len| buffer)).is_err() || is_last {
            return;
        }
    }
}

impl Read for Ahead {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.next == self.buffer.len() {
            let Ok(filled) = self.filled.recv() else {
                return Ok(0);
            };
            let used = std::mem::replace(&mut self.buffer, filled?);
            self.next = 0;
            // The thread may have ended.
            self.empty.send(used).ok();
        }
        let mut rest = self.buffer.get(self.next..).unwrap_or_default();
        let len = rest.read(out)?;
        self.next += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_arrive_in_order() {
        let bytes: Vec<u8> = (0..=250).cycle().take(5 * BUFFER_LEN + 7).collect();
        let mut read = Vec::new();
        let mut ahead = Ahead::start(io::Cursor::new(bytes.clone())).unwrap();
        ahead.read_to_end(&mut read).unwrap();
        assert!(read == bytes);
    }

    #[test]
    fn an_error_arrives_after_the_bytes_before_it() {
        struct Failing(usize);
        impl Read for Failing {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                if self.0 == 0 {
                    return Err(io::Error::other("reading failed"));
                }
                self.0 -= 1;
                out[0] = 1;
                Ok(1)
            }
        }
        let mut read = Vec::new();
        let error = Ahead::start(Failing(3)).unwrap().read_to_end(&mut read);
        assert_eq!(error.unwrap_err().to_string(), "reading failed");
    }
}
