//! The body of a response with the file of a stored NAR.

use std::io;
use std::ops::Range;

use samovar_http::{Batch, Body, Progress, Source};
use samovar_storage::objects::{NarFile, Ready};

use crate::known::nar_cache::add_file;

/// Maximum number of bytes of a file in a batch. Other bodies are served between two batches.
const PART_LEN: u64 = 2 << 20;

/// Makes a body with a range of the file. The kernel sends what is in a local file.
pub(crate) fn body(file: &NarFile, range: Range<u64>) -> Body {
    match file.whole(range.clone()) {
        Some((file, range)) => Body::file_range(file, range),
        None => Body::Source(Box::new(ArrivingBody {
            file: file.clone(),
            len: range.end - range.start,
            left: range,
        })),
    }
}

/// A range of a file that is being received.
struct ArrivingBody {
    file: NarFile,
    /// Length of the whole body, in bytes.
    len: u64,
    /// The part that is not sent yet.
    left: Range<u64>,
}

impl Source for ArrivingBody {
    fn len(&self) -> Option<u64> {
        Some(self.len)
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        if self.left.is_empty() {
            return Ok(Progress::End);
        }
        let waker = batch.waker().clone();
        match self.file.ready(self.left.clone(), move || waker.wake())? {
            Ready::Wait => Ok(Progress::Wait),
            Ready::Bytes(file, at) => {
                let end = at.end.min(at.start + PART_LEN);
                let sent = add_file(batch, &file, at.start, end)? - at.start;
                self.left.start += sent;
                Ok(match self.left.is_empty() {
                    true => Progress::End,
                    false => Progress::More,
                })
            }
        }
    }
}

/// A body whose length is stated, in bytes, and that is not sent.
pub(crate) struct Unread(pub(crate) u64);

impl Source for Unread {
    fn len(&self) -> Option<u64> {
        Some(self.0)
    }

    fn pull(&mut self, _batch: &mut Batch) -> io::Result<Progress> {
        Err(io::Error::other("the body of a HEAD request is not sent"))
    }
}
