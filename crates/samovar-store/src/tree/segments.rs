//! The queue of a NAR's next segments: framing in memory, contents in open files.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use samovar_nix::nar::{EncodeError, Encoder, Sink};

use super::TreeError;
use super::scan::nanoseconds;
use super::steps::Steps;
use super::walk::{Contents, Step};
use crate::sys;

/// Maximum length that the kernel is asked to fetch per file, in bytes. A reader that gets this far
/// has started the kernel's own read-ahead.
const ADVISE_LEN_MAX: u64 = 2 << 20;

/// A contiguous part of the NAR.
#[derive(Debug)]
pub(super) enum Segment {
    /// Bytes at the front of [`Segments::framing`].
    Framing(usize),
    /// The contents of a file, from `start` to `size`.
    Contents {
        file: OpenFile,
        start: u64,
        size: u64,
    },
    /// Number of bytes before the target of a skip, which are not read.
    Skipped(u64),
}

/// A file owned by this reader, or shared with a sink.
#[derive(Debug)]
pub(super) enum OpenFile {
    Own(OwnedFd),
    /// A file that a sink may keep. Not used for small files, which saves an allocation for each.
    Shared(Arc<File>),
}

impl OpenFile {
    /// Returns the file as a shared handle.
    fn share(self) -> Arc<File> {
        match self {
            Self::Own(file) => Arc::new(File::from(file)),
            Self::Shared(file) => file,
        }
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(file) => file.as_fd(),
            Self::Shared(file) => file.as_fd(),
        }
    }
}

/// The queue of segments not read yet.
#[derive(Debug)]
pub(super) struct Segments {
    steps: Steps,
    encoder: Encoder,
    /// Framing bytes. Those before `framing_start` have been read.
    framing: Vec<u8>,
    framing_start: usize,
    queue: VecDeque<Segment>,
    file_count: usize,
    contents_len: u64,
    /// The latest change time of the files opened so far, if it is watched.
    newest_change: Option<(i64, u32)>,
    ended: bool,
}

impl Segments {
    /// Starts at the beginning of the NAR, or at the state of a resumed encoder.
    pub(super) fn new(steps: Steps, bookmark: Option<Encoder>) -> Result<Self, TreeError> {
        let is_beginning = bookmark.is_none();
        let mut new = Self {
            steps,
            encoder: bookmark.unwrap_or_default(),
            framing: Vec::new(),
            framing_start: 0,
            queue: VecDeque::new(),
            file_count: 0,
            contents_len: 0,
            newest_change: None,
            ended: false,
        };
        if is_beginning {
            new.encoder.begin(&mut new.framing)?;
            new.note_framing(0);
            // Open the root now, so that the caller learns of an error before it sends a response.
            new.extend(0, false)?;
        }
        Ok(new)
    }

    /// Watches the change times of files that are opened from now on.
    pub(super) fn watch_changes(&mut self) {
        self.newest_change = Some((i64::MIN, 0));
    }

    /// Returns the latest change time of the files opened since it is watched, in seconds and
    /// nanoseconds since 1970; `None` if it is not watched.
    pub(super) fn newest_change(&self) -> Option<(i64, u32)> {
        self.newest_change
    }

    /// Returns the next segment; `None` if the queue is empty.
    pub(super) fn front(&self) -> Option<&Segment> {
        self.queue.front()
    }

    /// Returns whether the walk has ended, so that no segment follows those in the queue.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the number of open files.
    pub(super) fn file_count(&self) -> usize {
        self.file_count
    }

    /// Returns the number of unread bytes of the open files.
    pub(super) fn contents_len(&self) -> u64 {
        self.contents_len
    }

    /// Takes one step of the walk. Does not open files whose contents end at or before
    /// `needed_from`. With `advise`, asks the kernel to fetch the contents of the others.
    pub(super) fn extend(&mut self, needed_from: u64, advise: bool) -> Result<(), TreeError> {
        let framed = self.framing.len();
        let end = self.encoder.offset();
        // Every step adds framing, so the contents of a file that starts before this offset may not
        // be needed.
        let contents = if end < needed_from {
            Contents::SizesOnly
        } else {
            Contents::Open
        };
        let Some(step) = self.steps.next(contents)? else {
            self.ended = true;
            return Ok(());
        };
        encode(&mut self.encoder, &mut self.framing, &step)?;
        let Step::File { size, file, .. } = step else {
            self.note_framing(framed);
            return Ok(());
        };
        self.note_framing(framed);
        if size > 0 {
            self.add_contents(size, file, needed_from, advise)?;
        }
        let framed = self.framing.len();
        self.encoder.end_file(&mut self.framing)?;
        self.note_framing(framed);
        Ok(())
    }

    fn add_contents(
        &mut self,
        size: u64,
        file: Option<OwnedFd>,
        needed_from: u64,
        advise: bool,
    ) -> Result<(), TreeError> {
        let file = match file {
            Some(file) => file,
            None if self.encoder.offset() <= needed_from => {
                self.queue.push_back(Segment::Skipped(size));
                return Ok(());
            }
            None => self.steps.open_last(size)?,
        };
        if let Some(newest) = &mut self.newest_change {
            let stat = rustix::fs::fstat(&file)?;
            *newest = (*newest).max((stat.st_ctime, nanoseconds(stat.st_ctime_nsec)));
        }
        if advise {
            sys::advise(&file, size.min(ADVISE_LEN_MAX));
        }
        self.queue.push_back(Segment::Contents {
            file: OpenFile::Own(file),
            start: 0,
            size,
        });
        self.file_count += 1;
        self.contents_len += size;
        Ok(())
    }

    /// Returns the framing at the front, at most `len` bytes.
    pub(super) fn framing(&self, len: usize) -> &[u8] {
        let rest = &self.framing[self.framing_start..];
        &rest[..len.min(rest.len())]
    }

    /// Returns the file at the front of the queue and the offset at which to continue in it; `None`
    /// if framing is next or the queue is empty.
    pub(super) fn shared_front(&mut self) -> Option<(Arc<File>, u64)> {
        match self.queue.pop_front()? {
            Segment::Contents { file, start, size } => {
                let shared = file.share();
                let file = OpenFile::Shared(Arc::clone(&shared));
                self.queue
                    .push_front(Segment::Contents { file, start, size });
                Some((shared, start))
            }
            other => {
                self.queue.push_front(other);
                None
            }
        }
    }

    /// Consumes `len` bytes of the front segment, which has at least as many.
    pub(super) fn pass(&mut self, len: u64) {
        let Some(front) = self.queue.front_mut() else {
            return;
        };
        let emptied = match front {
            Segment::Framing(left) => {
                let len = usize::try_from(len).unwrap_or(usize::MAX).min(*left);
                *left -= len;
                self.framing_start += len;
                *left == 0
            }
            Segment::Contents { start, size, .. } => {
                *start += len;
                start == size
            }
            Segment::Skipped(left) => {
                *left -= len;
                *left == 0
            }
        };
        if emptied {
            self.drop_front();
        }
    }

    fn drop_front(&mut self) {
        if let Some(Segment::Contents { size, .. }) = self.queue.pop_front() {
            self.file_count -= 1;
            self.contents_len -= size;
        }
        if self.framing_start == self.framing.len() {
            self.framing.clear();
            self.framing_start = 0;
        }
    }

    fn note_framing(&mut self, before: usize) {
        let added = self.framing.len() - before;
        match self.queue.back_mut() {
            Some(Segment::Framing(len)) => *len += added,
            _ if added > 0 => self.queue.push_back(Segment::Framing(added)),
            _ => {}
        }
    }
}

/// Writes the framing of a step.
pub(super) fn encode<S: Sink + ?Sized>(
    encoder: &mut Encoder,
    out: &mut S,
    step: &Step<'_>,
) -> Result<(), EncodeError> {
    match step {
        Step::File {
            executable, size, ..
        } => encoder.file(out, *executable, *size).map(drop),
        Step::Symlink { target } => encoder.symlink(out, target),
        Step::BeginDirectory => encoder.begin_directory(out),
        Step::Entry { name } => encoder.entry(out, name),
        Step::EndEntry => encoder.end_entry(out),
        Step::EndDirectory => encoder.end_directory(out),
    }
}
