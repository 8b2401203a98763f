//! [`ListingReader`]: the bytes of a `.ls` listing, in order.

use std::io;
use std::sync::Arc;

use samovar_nix::nar::Listing;

use super::TreeError;
use super::nar_plan::{NarPlan, Replay};
use super::walk::{Contents, Step, Walk};

/// Length of the part of the document that is generated at a time, in bytes. This length and one
/// directory entry bound the memory of a reader.
const PIECE_LEN: usize = 16 * 1024;

/// Reads the `.ls` listing of a tree, version 1, with the NAR offset of every file.
#[derive(Debug)]
pub struct ListingReader {
    source: Source,
    /// The listing that generates the document; `None` at the end, and after an error.
    listing: Option<Listing>,
    has_ended: bool,
    /// The last piece; the bytes before `start` were read.
    piece: String,
    start: usize,
}

#[derive(Debug)]
enum Source {
    Walk(Box<Walk>),
    Plan(Replay),
}

impl ListingReader {
    pub(super) fn of_walk(walk: Walk) -> Self {
        Self::new(Source::Walk(Box::new(walk)))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            listing: Some(Listing::new()),
            has_ended: false,
            piece: String::new(),
            start: 0,
        }
    }

    /// Fills the buffer with the next bytes and returns their number: 0 at the end. A partly filled
    /// buffer does not mean the end.
    ///
    /// # Errors
    ///
    /// Any [`TreeError`]. The bytes read so far are not a valid listing, and later calls fail too.
    pub fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, TreeError> {
        if self.start == self.piece.len() {
            self.start = 0;
            self.piece = self.next_piece()?;
        }
        let rest = &self.piece.as_bytes()[self.start..];
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        self.start += len;
        Ok(len)
    }

    fn next_piece(&mut self) -> Result<String, TreeError> {
        if self.has_ended {
            return Ok(String::new());
        }
        let mut listing = self.listing.take().ok_or(TreeError::Changed)?;
        while listing.pending_len() < PIECE_LEN {
            if !self.source.add_to(&mut listing)? {
                let rest = listing.finish()?;
                self.has_ended = true;
                return Ok(rest);
            }
        }
        let piece = listing.take();
        self.listing = Some(listing);
        Ok(piece)
    }
}

impl NarPlan {
    /// Generates the listing from the plan: see [`Tree::listing`](super::Tree::listing). Reads no
    /// files.
    #[must_use]
    pub fn listing(self: &Arc<Self>) -> ListingReader {
        ListingReader::new(Source::Plan(Replay::new(self)))
    }

    /// Returns the length of the listing, in bytes. The first call generates the listing.
    ///
    /// # Errors
    ///
    /// Any [`TreeError`], never in practice: a valid plan has a valid listing.
    pub fn listing_len(self: &Arc<Self>) -> Result<u64, TreeError> {
        if let Some(len) = self.listing_len.get() {
            return Ok(*len);
        }
        let (mut listing, mut buffer, mut len) = (self.listing(), [0; 4096], 0);
        loop {
            match listing.fill(&mut buffer)? {
                0 => return Ok(*self.listing_len.get_or_init(|| len)),
                filled => len += filled as u64,
            }
        }
    }
}

impl io::Read for ListingReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.fill(buffer)?)
    }
}

impl Source {
    /// Adds the next step to the listing; `false` at the end.
    fn add_to(&mut self, listing: &mut Listing) -> Result<bool, TreeError> {
        let step = match self {
            Self::Walk(walk) => walk.next(Contents::SizesOnly)?,
            Self::Plan(replay) => replay.next()?,
        };
        let Some(step) = step else {
            return Ok(false);
        };
        match step {
            Step::File {
                executable, size, ..
            } => listing.file(executable, size),
            Step::Symlink { target } => listing.symlink(target),
            Step::BeginDirectory => listing.begin_directory(),
            Step::Entry { name } => listing.entry(name),
            Step::EndEntry => listing.end_entry(),
            Step::EndDirectory => listing.end_directory(),
        }?;
        Ok(true)
    }
}
