//! [`Writers`]: the threads that write files.
//!
//! Each thread has a queue of its own, so that all parts of a large file reach the same thread in
//! order. The queues are bounded: reading the archive waits for the disk.

use std::fs::File;
use std::io::{self, Write};
use std::panic;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};

use sha2::{Digest, Sha256};

use super::batch::{Batch, Part};
use super::temporary::Destination;
use super::{Progress, UnpackError};
use crate::root::{Root, set_open_attributes};

/// Number of batches that wait for a thread.
const QUEUE_LEN: usize = 4;

/// The threads that write files.
#[derive(Debug)]
pub(super) struct Writers<'scope> {
    threads: Vec<Thread<'scope>>,
    /// Index of the thread that gets the next batch if its queue is not full.
    next: usize,
    /// Batches to be reused.
    emptied: Receiver<Batch>,
}

#[derive(Debug)]
struct Thread<'scope> {
    queue: SyncSender<Batch>,
    handle: ScopedJoinHandle<'scope, Result<(), UnpackError>>,
}

/// A thread has ended early. [`Writers::finish`] returns its error.
#[derive(Debug)]
pub(super) struct Stopped;

/// The state of a thread that writes files.
struct Writer<'a> {
    root: &'a Root,
    destination: &'a Destination<'a>,
    progress: Option<&'a Progress>,
    open: Option<OpenFile>,
}

struct OpenFile {
    file: File,
    hasher: Option<Sha256>,
}

impl<'scope> Writers<'scope> {
    /// Starts up to `count` threads, which create files below `root`.
    pub(super) fn start<'env: 'scope>(
        scope: &'scope Scope<'scope, 'env>,
        count: usize,
        root: &'env Root,
        destination: &'env Destination<'env>,
        progress: Option<&'env Progress>,
    ) -> Result<Self, UnpackError> {
        let (recycle, emptied) = channel();
        let mut threads = Vec::new();
        for _ in 0..count {
            let (queue, batches) = sync_channel(QUEUE_LEN);
            let recycle = recycle.clone();
            let writer = Writer {
                root,
                destination,
                progress,
                open: None,
            };
            let builder = Builder::new().name("unpack".to_owned());
            match builder.spawn_scoped(scope, move || writer.run(&batches, &recycle)) {
                Ok(handle) => threads.push(Thread { queue, handle }),
                Err(error) if threads.is_empty() => return Err(UnpackError::Thread(error)),
                // One thread is enough.
                Err(_) => break,
            }
        }
        Ok(Self {
            threads,
            next: 0,
            emptied,
        })
    }

    /// Returns an empty batch.
    pub(super) fn batch(&self) -> Batch {
        self.emptied.try_recv().unwrap_or_default()
    }

    /// Sends a batch to the given thread, or to any. Returns the index of the thread.
    pub(super) fn send(
        &mut self,
        mut batch: Batch,
        thread: Option<usize>,
    ) -> Result<usize, Stopped> {
        let count = self.threads.len();
        let first = thread.unwrap_or(self.next);
        let tries = if thread.is_some() { 0 } else { count };
        for index in (first..count).chain(0..first).take(tries) {
            match self.queue(index)?.try_send(batch) {
                Ok(()) => {
                    self.next = (index + 1) % count;
                    return Ok(index);
                }
                Err(TrySendError::Full(unsent)) => batch = unsent,
                Err(TrySendError::Disconnected(_)) => return Err(Stopped),
            }
        }
        // A send error has no other cause.
        let sent = self.queue(first)?.send(batch);
        sent.map(|()| first).or(Err(Stopped))
    }

    fn queue(&self, index: usize) -> Result<&SyncSender<Batch>, Stopped> {
        self.threads
            .get(index)
            .map(|thread| &thread.queue)
            .ok_or(Stopped)
    }

    /// Waits until all batches are written, and returns the first error.
    pub(super) fn finish(self) -> Result<(), UnpackError> {
        let (queues, handles): (Vec<_>, Vec<_>) = self
            .threads
            .into_iter()
            .map(|thread| (thread.queue, thread.handle))
            .unzip();
        drop(queues);
        let mut result = Ok(());
        for handle in handles {
            let written = handle
                .join()
                .unwrap_or_else(|payload| panic::resume_unwind(payload));
            result = result.and(written);
        }
        result
    }
}

impl Writer<'_> {
    fn run(
        mut self,
        batches: &Receiver<Batch>,
        recycle: &Sender<Batch>,
    ) -> Result<(), UnpackError> {
        for mut batch in batches {
            for part in batch.parts() {
                self.write(part, batch.path(part), batch.content(part))?;
            }
            batch.clear();
            // The receiver is gone when no more batches are needed.
            recycle.send(batch).ok();
        }
        Ok(())
    }

    fn write(&mut self, part: &Part, path: &[u8], content: &[u8]) -> Result<(), UnpackError> {
        let destination = self.destination;
        let failed = |action| move |error| destination.error(action, path, error);
        let new_file = &part.new_file;
        let mut open = match self.open.take() {
            Some(open) if !part.is_first => open,
            _ => OpenFile {
                file: self
                    .root
                    .create_file(path, new_file.mode)
                    .map_err(failed("create"))?,
                hasher: new_file.digest.map(|_| Sha256::new()),
            },
        };
        if let Some(hasher) = &mut open.hasher {
            hasher.update(content);
        }
        write_all(&open.file, content).map_err(failed("write"))?;
        if !part.is_last {
            self.open = Some(open);
            return Ok(());
        }
        let digest = open.hasher.map(|hasher| hasher.finalize().into());
        if digest != new_file.digest {
            return Err(destination.differs(path, "its contents have another digest"));
        }
        if let Some(attributes) = new_file.attributes {
            set_open_attributes(&open.file, attributes)
                .map_err(failed("set the mode or the time of"))?;
        }
        if let Some(progress) = self.progress {
            progress.add_files(1);
        }
        Ok(())
    }
}

fn write_all(mut file: &File, content: &[u8]) -> io::Result<()> {
    file.write_all(content)
}
