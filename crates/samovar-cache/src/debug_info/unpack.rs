//! Reads a file in a compressed NAR while a thread decompresses the NAR.
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | threads | 16 | further responses wait; a decompressor may need 128 MiB |
//! | pieces that a reader has not taken | 4 of 64 KiB | memory of one response |

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::Builder;

use samovar_verify::decoded_nar;

use super::find::Packed;
use crate::sync::{Locked, unpoisoned};

/// Maximum number of threads that decompress.
const THREAD_COUNT_MAX: usize = 16;

/// Length of a piece, in bytes.
const PIECE_LEN: usize = 64 << 10;

/// Number of pieces between the thread and the reader.
const PIECE_COUNT: usize = 4;

/// The threads of all servers in the process.
static THREADS: Threads = Threads {
    count: Mutex::new(0),
    ended: Condvar::new(),
};

struct Threads {
    count: Mutex<usize>,
    ended: Condvar,
}

/// One of the threads that may exist.
struct Turn;

impl Turn {
    /// Waits until a thread may be started.
    fn wait() -> Self {
        let mut count = THREADS.count.locked();
        while *count >= THREAD_COUNT_MAX {
            count = unpoisoned(THREADS.ended.wait(count));
        }
        *count += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *THREADS.count.locked() -= 1;
        THREADS.ended.notify_one();
    }
}

/// Returns a reader of a file of `size` bytes. Nothing is decompressed before the first read.
pub(super) fn reader(packed: Packed, size: u64) -> impl Read + Send {
    Unpacked {
        packed: Some((packed, size)),
        pieces: None,
        piece: io::Cursor::default(),
        is_gone: Arc::default(),
    }
}

struct Unpacked {
    /// `None` once the thread was started.
    packed: Option<(Packed, u64)>,
    pieces: Option<Receiver<io::Result<Vec<u8>>>>,
    piece: io::Cursor<Vec<u8>>,
    /// Set when nobody reads any more.
    is_gone: Arc<AtomicBool>,
}

impl Unpacked {
    fn start(&mut self, packed: Packed, size: u64) -> io::Result<()> {
        let turn = Turn::wait();
        let (sender, pieces) = sync_channel(PIECE_COUNT);
        let is_gone = Arc::clone(&self.is_gone);
        Builder::new().name("unpack".to_owned()).spawn(move || {
            let _turn = turn;
            if let Err(error) = unpack(packed, size, &sender, &is_gone) {
                // If nobody reads any more, the error does not matter.
                sender.send(Err(error)).ok();
            }
        })?;
        self.pieces = Some(pieces);
        Ok(())
    }
}

impl Read for Unpacked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some((packed, size)) = self.packed.take() {
            self.start(packed, size)?;
        }
        loop {
            let len = self.piece.read(buffer)?;
            if len > 0 || buffer.is_empty() {
                return Ok(len);
            }
            let next = self.pieces.as_ref().and_then(|pieces| pieces.recv().ok());
            match next {
                Some(piece) => self.piece = io::Cursor::new(piece?),
                None => return Ok(0),
            }
        }
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }
}

/// Sends the pieces of a file of `size` bytes.
fn unpack(
    packed: Packed,
    size: u64,
    sender: &SyncSender<io::Result<Vec<u8>>>,
    is_gone: &AtomicBool,
) -> io::Result<()> {
    let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
    let mut file = io::BufReader::new(packed.nar.file);
    decoded_nar(&mut file, packed.nar.compression, |nar| {
        let mut skipped = nar.take(packed.skip);
        let mut waste = vec![0; PIECE_LEN];
        while skipped.limit() > 0 {
            if is_gone.load(Ordering::Relaxed) {
                return Err(gone());
            }
            if skipped.read(&mut waste)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let mut content = skipped.into_inner().take(size);
        while content.limit() > 0 {
            let mut piece = Vec::with_capacity(PIECE_LEN);
            content
                .by_ref()
                .take(PIECE_LEN as u64)
                .read_to_end(&mut piece)?;
            if piece.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            sender.send(Ok(piece)).map_err(|_gone| gone())?;
        }
        Ok(())
    })?
}
