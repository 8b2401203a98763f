//! Encodes the framing of a NAR around contents that the caller sends.

use super::name::{Names, check_target};
use super::{CONTENTS_END_MAX, NameError, TargetError, token};

/// The destination of an [`Encoder`]'s framing.
pub trait Sink {
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A [`Sink`] that discards all bytes, for computing offsets and sizes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Discard;

impl Sink for Discard {
    #[inline]
    fn put(&mut self, _bytes: &[u8]) {}
}

/// Writes the framing of a NAR, one call per step of a walk.
///
/// The order of calls follows the grammar: [`begin`](Self::begin), one node,
/// [`finish`](Self::finish). The calls of a node are
///
/// * for a file, [`file`](Self::file), and [`end_file`](Self::end_file) after the caller has sent
///   the contents;
/// * for a link, [`symlink`](Self::symlink);
/// * for a directory, [`begin_directory`](Self::begin_directory); for each child
///   [`entry`](Self::entry), a node and [`end_entry`](Self::end_entry); and at last
///   [`end_directory`](Self::end_directory).
///
/// A call that returns an error has written nothing and changed nothing. A clone continues from the
/// same offset, so it can serve as a bookmark.
///
/// # Examples
///
/// ```
/// # use samovar_nix::nar::Encoder;
/// let mut nar = Vec::new();
/// let mut encoder = Encoder::new();
/// encoder.begin(&mut nar)?;
/// encoder.file(&mut nar, false, 6)?;
/// nar.extend_from_slice(b"hello\n");
/// encoder.end_file(&mut nar)?;
/// assert_eq!(encoder.finish()?, 120);
/// assert_eq!(nar.len(), 120);
/// # Ok::<(), samovar_nix::nar::EncodeError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Encoder {
    state: State,
    offset: u64,
    names: Names,
}

/// The state of an encoder: the calls that are allowed next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// Only `begin` is allowed.
    #[default]
    Start,
    /// `file`, `symlink` or `begin_directory` is allowed.
    Node,
    /// Only `end_file` is allowed, after the caller has sent contents of this length.
    Contents { size: u64 },
    /// `entry` or `end_directory` is allowed.
    Directory,
    /// Only `end_entry` is allowed.
    EntryEnd,
    /// Only `finish` is allowed.
    Done,
}

/// Error of writing a step. Either the caller or the files that it walks are at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The grammar does not allow the call at this position.
    #[error("step out of order")]
    Step,
    /// The name is invalid or out of order.
    #[error("bad name")]
    Name(#[from] NameError),
    /// The target is invalid.
    #[error("bad symlink target")]
    Target(#[from] TargetError),
    /// The contents would end after [`CONTENTS_END_MAX`].
    #[error("contents end after {CONTENTS_END_MAX} bytes")]
    TooLong,
}

impl Encoder {
    /// Creates an encoder at the start of a NAR.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an encoder in the state after [`begin`](Self::begin), and discards the bytes of that
    /// call.
    pub(super) fn begun() -> Self {
        let mut encoder = Self {
            state: State::Node,
            ..Self::default()
        };
        encoder.put(&mut Discard, token::MAGIC);
        encoder
    }

    /// Creates an encoder that continues inside a NAR: at `offset`, in the directory at `path`
    /// below the root, before one of its children or its end.
    ///
    /// The offset is not checked. The names in `path` and all names that are added later are
    /// checked, and so is their order, except for the first name that is added to each directory of
    /// `path`: the name before it is unknown.
    ///
    /// # Errors
    ///
    /// [`EncodeError::Name`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use samovar_nix::nar::{Discard, Encoder};
    /// let mut encoder = Encoder::resume(4096, [&b"share"[..], b"doc"])?;
    /// encoder.end_directory(&mut Discard)?; // doc
    /// encoder.end_entry(&mut Discard)?;
    /// encoder.end_directory(&mut Discard)?; // share
    /// encoder.end_entry(&mut Discard)?;
    /// encoder.end_directory(&mut Discard)?; // the root
    /// assert_eq!(encoder.finish()?, 4096 + 5 * 16);
    /// # Ok::<(), samovar_nix::nar::EncodeError>(())
    /// ```
    pub fn resume<'name>(
        offset: u64,
        path: impl IntoIterator<Item = &'name [u8]>,
    ) -> Result<Self, EncodeError> {
        let mut names = Names::default();
        names.enter();
        for name in path {
            names.next(name)?;
            names.enter();
        }
        Ok(Self {
            state: State::Directory,
            offset,
            names,
        })
    }

    /// Writes the start of a NAR.
    ///
    /// # Errors
    ///
    /// [`EncodeError::Step`].
    pub fn begin<S: Sink + ?Sized>(&mut self, out: &mut S) -> Result<(), EncodeError> {
        self.step(State::Start, State::Node)?;
        self.put(out, token::MAGIC);
        Ok(())
    }

    /// Writes the framing of a regular file that precedes its contents. Returns the offset of the
    /// first content byte.
    ///
    /// The caller must then send exactly `size` bytes, which [`offset`](Self::offset) already
    /// counts. If it cannot, it must abandon the NAR, because the size is already written.
    ///
    /// # Errors
    ///
    /// [`EncodeError::Step`], [`EncodeError::TooLong`].
    #[inline]
    pub fn file<S: Sink + ?Sized>(
        &mut self,
        out: &mut S,
        executable: bool,
        size: u64,
    ) -> Result<u64, EncodeError> {
        let framing = if executable {
            token::EXECUTABLE_FILE
        } else {
            token::FILE
        };
        let head_len = framing.len().saturating_add(size_of::<u64>()) as u64;
        let contents_offset = self.offset.saturating_add(head_len);
        let contents_end = contents_offset.saturating_add(size);
        if contents_end > CONTENTS_END_MAX {
            return Err(EncodeError::TooLong);
        }
        self.step(State::Node, State::Contents { size })?;
        self.put(out, framing);
        self.put(out, &size.to_le_bytes());
        self.offset = contents_end;
        Ok(contents_offset)
    }

    /// Writes the framing that follows the contents of a regular file.
    ///
    /// # Errors
    ///
    /// [`EncodeError::Step`].
    #[inline]
    pub fn end_file<S: Sink + ?Sized>(&mut self, out: &mut S) -> Result<(), EncodeError> {
        let State::Contents { size } = self.state else {
            return Err(EncodeError::Step);
        };
        self.put(out, token::padding(size));
        self.close_node(out);
        Ok(())
    }

    /// Writes a symbolic link.
    ///
    /// # Errors
    ///
    /// [`EncodeError::Step`], [`EncodeError::Target`].
    pub fn symlink<S: Sink + ?Sized>(
        &mut self,
        out: &mut S,
        target: &[u8],
    ) -> Result<(), EncodeError> {
        check_target(target)?;
        self.step(State::Node, State::Node)?;
        self.put(out, token::SYMLINK);
        self.put_string(out, target);
        self.close_node(out);
        Ok(())
    }

    /// Opens a directory.
    ///
    /// # Errors
    ///
    /// [`EncodeError::Step`].
    pub fn begin_directory<S: Sink + ?Sized>(&mut self, out: &mut S) -> Result<(), EncodeError> {
        self.step(State::Node, State::Directory)?;
        self.put(out, token::DIRECTORY);
        self.names.enter();
        Ok(())
    }

    /// Writes the name of the next child; its node follows.
    ///
    /// # Errors
    ///
    /// [`EncodeError::Step`]; [`EncodeError::Name`] also if the name is not greater than its
    /// predecessor in this directory.
    #[inline]
    pub fn entry<S: Sink + ?Sized>(&mut self, out: &mut S, name: &[u8]) -> Result<(), EncodeError> {
        if self.state != State::Directory {
            return Err(EncodeError::Step);
        }
        self.names.next(name)?;
        self.state = State::Node;
        self.put(out, token::ENTRY);
        self.put_string(out, name);
        self.put(out, token::NODE);
        Ok(())
    }

    /// Ends a child, after its node.
    ///
    /// # Errors
    ///
    /// [`EncodeError::Step`].
    #[inline]
    pub fn end_entry<S: Sink + ?Sized>(&mut self, out: &mut S) -> Result<(), EncodeError> {
        self.step(State::EntryEnd, State::Directory)?;
        self.put(out, token::CLOSE);
        Ok(())
    }

    /// Closes the innermost directory.
    ///
    /// # Errors
    ///
    /// [`EncodeError::Step`].
    pub fn end_directory<S: Sink + ?Sized>(&mut self, out: &mut S) -> Result<(), EncodeError> {
        self.step(State::Directory, State::Directory)?;
        self.names.leave();
        self.close_node(out);
        Ok(())
    }

    /// Returns the number of bytes written, including announced contents.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns whether the NAR is complete.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Ends the NAR and returns its length in bytes.
    ///
    /// # Errors
    ///
    /// [`EncodeError::Step`] if it is not complete.
    pub fn finish(self) -> Result<u64, EncodeError> {
        if self.is_done() {
            Ok(self.offset)
        } else {
            Err(EncodeError::Step)
        }
    }

    fn step(&mut self, from: State, to: State) -> Result<(), EncodeError> {
        if self.state != from {
            return Err(EncodeError::Step);
        }
        self.state = to;
        Ok(())
    }

    fn close_node<S: Sink + ?Sized>(&mut self, out: &mut S) {
        self.put(out, token::CLOSE);
        self.state = if self.names.depth() == 0 {
            State::Done
        } else {
            State::EntryEnd
        };
    }

    /// Writes a short string.
    fn put_string<S: Sink + ?Sized>(&mut self, out: &mut S, string: &[u8]) {
        let len = string.len() as u64;
        self.put(out, &len.to_le_bytes());
        self.put(out, string);
        self.put(out, token::padding(len));
    }

    #[inline]
    fn put<S: Sink + ?Sized>(&mut self, out: &mut S, bytes: &[u8]) {
        out.put(bytes);
        // Cannot overflow: CONTENTS_END_MAX leaves room in u64 for all framing.
        self.offset = self.offset.saturating_add(bytes.len() as u64);
    }
}

#[cfg(test)]
mod tests;
