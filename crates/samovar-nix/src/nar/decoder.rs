//! Decodes a NAR that arrives in pieces of any size.
//!
//! # Theory of operation
//!
//! The grammar requires no more look-ahead than one string, so a [`State`] names the next string. A
//! string is collected in a buffer until it and its padding are complete. Its length is checked
//! against the state's limit as soon as the eight bytes of the length are known, before memory is
//! allocated. Only file contents may be long, and they bypass the buffer: the caller gets them as
//! slices of its input.

use super::name::{Names, check_target};
use super::{
    CONTENTS_END_MAX, DEPTH_MAX, DecodeError, DecodeErrorKind, Event, NAME_LEN_MAX, NameError,
    TARGET_LEN_MAX, TargetError, token,
};

/// The position of the decoder: the string that must come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Magic,
    /// Expects `(` before a node.
    NodeOpen,
    /// Expects `type`.
    Type,
    /// Expects `regular`, `symlink` or `directory`.
    Kind,
    /// Expects `executable` or `contents`.
    ContentsOrExecutable,
    /// Expects the empty string after `executable`.
    Marker,
    /// Expects `contents`.
    Contents,
    /// Expects the length of a file's contents.
    Size {
        executable: bool,
    },
    /// Number of bytes of contents and padding that follow.
    Data {
        left: u64,
        padding_len: usize,
    },
    /// Expects the padding after the contents.
    Padding {
        len: usize,
    },
    /// Expects `)` after a regular file.
    FileClose,
    /// Expects `target`.
    TargetTag,
    /// Expects the target of a symbolic link.
    Target,
    /// Expects `)` after a symbolic link.
    SymlinkClose,
    /// Expects `entry` or `)` in a directory.
    EntryOrClose,
    /// Expects `(` of an entry.
    EntryOpen,
    /// Expects `name`.
    NameTag,
    /// Expects the name of an entry.
    Name,
    /// Expects `node`.
    NodeTag,
    /// Expects `)` of an entry.
    EntryClose,
    Done,
    Failed(DecodeError),
}

/// The result of processing one string, or one piece of a file's contents.
enum Step<'a> {
    /// No step is possible: the input is used up, or the NAR is complete.
    Pause,
    /// The string was consumed and gives no event.
    Silent,
    Report(Event<'a>),
    /// An entry, whose name is in the buffer.
    Entry,
    /// A symbolic link, whose target is in the buffer.
    Symlink,
}

/// A push parser for NARs.
///
/// # Examples
///
/// ```
/// # use samovar_nix::nar::{DecodeError, Decoder, Event};
/// # fn names(pieces: &[&[u8]]) -> Result<Vec<Vec<u8>>, DecodeError> {
/// let mut names = Vec::new();
/// let mut decoder = Decoder::new();
/// for piece in pieces {
///     let mut input: &[u8] = piece;
///     while let Some(event) = decoder.decode(&mut input)? {
///         if let Event::Entry { name } = event {
///             names.push(name.to_vec());
///         }
///     }
/// }
/// decoder.finish()?;
/// # Ok(names)
/// # }
/// # assert!(names(&[b"no NAR"]).is_err());
/// ```
#[derive(Debug, Clone)]
pub struct Decoder {
    state: State,
    /// The string that is being collected: length, bytes, padding. Its size is bounded by the
    /// longest target with its framing.
    buffer: Vec<u8>,
    /// Length of the string in `buffer` if it is complete; otherwise `None`. The next call removes
    /// a complete string.
    text_len: Option<usize>,
    names: Names,
    /// Number of bytes consumed since the start of the NAR.
    offset: u64,
    /// Offset in the NAR of the string that is being collected.
    string_offset: u64,
    depth_max: usize,
}

/// Size of the length field of a string, in bytes.
const LEN_LEN: usize = 8;

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// Creates a decoder with the depth limit [`DEPTH_MAX`].
    #[must_use]
    pub fn new() -> Self {
        Self::with_depth_max(DEPTH_MAX)
    }

    /// Creates a decoder that rejects paths of `depth_max` components below the root.
    ///
    /// Each level takes up to 300 bytes of memory and no stack.
    #[must_use]
    pub fn with_depth_max(depth_max: usize) -> Self {
        Self {
            state: State::Magic,
            buffer: Vec::new(),
            text_len: None,
            names: Names::default(),
            offset: 0,
            string_offset: 0,
            depth_max,
        }
    }

    /// Consumes bytes from the front of `input` up to the next event.
    ///
    /// Returns `None` if the input is used up, or if the NAR is [complete](Self::is_done); then the
    /// rest of the input is not consumed.
    ///
    /// # Errors
    ///
    /// Any [`DecodeError`]. Later calls return the same error.
    pub fn decode<'a, 'input: 'a>(
        &'a mut self,
        input: &mut &'input [u8],
    ) -> Result<Option<Event<'a>>, DecodeError> {
        if let State::Failed(error) = self.state {
            return Err(error);
        }
        loop {
            match self.step(input) {
                Ok(Step::Silent) => {}
                Ok(Step::Pause) => return Ok(None),
                Ok(Step::Report(event)) => return Ok(Some(event)),
                Ok(Step::Entry) => return Ok(Some(Event::Entry { name: self.text() })),
                Ok(Step::Symlink) => {
                    return Ok(Some(Event::Symlink {
                        target: self.text(),
                    }));
                }
                Err(kind) => {
                    let error = DecodeError {
                        offset: self.string_offset,
                        kind,
                    };
                    self.state = State::Failed(error);
                    return Err(error);
                }
            }
        }
    }

    /// Returns the number of bytes consumed so far.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns whether the NAR is complete: the last `)` has been read.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Ends the input and returns the length of the NAR in bytes.
    ///
    /// # Errors
    ///
    /// The error of [`decode`](Self::decode), or [`DecodeErrorKind::Truncated`].
    pub fn finish(self) -> Result<u64, DecodeError> {
        if self.is_done() {
            return Ok(self.offset);
        }
        if let State::Failed(error) = self.state {
            return Err(error);
        }
        Err(DecodeError {
            offset: self.string_offset,
            kind: DecodeErrorKind::Truncated,
        })
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "in all other states a string comes next"
    )]
    fn step<'a>(&mut self, input: &mut &'a [u8]) -> Result<Step<'a>, DecodeErrorKind> {
        match self.state {
            State::Done | State::Failed(_) => Ok(Step::Pause),
            State::Size { executable } => self.size(input, executable),
            State::Data { left, padding_len } => Ok(self.data(input, left, padding_len)),
            State::Padding { len } => self.padding(input, len),
            _ => match self.collect(input)? {
                true => self.string(),
                false => Ok(Step::Pause),
            },
        }
    }

    /// Checks a complete string against the grammar and advances the state.
    fn string<'a>(&mut self) -> Result<Step<'a>, DecodeErrorKind> {
        let state = self.state;
        let text = text_of(&self.buffer, self.text_len);
        let (next, step) = match (state, text) {
            (State::Magic, b"nix-archive-1") => (State::NodeOpen, Step::Silent),
            (State::NodeOpen, b"(") => (State::Type, Step::Silent),
            (State::Type, b"type") => (State::Kind, Step::Silent),
            (State::Kind, b"regular") => (State::ContentsOrExecutable, Step::Silent),
            (State::Kind, b"symlink") => (State::TargetTag, Step::Silent),
            (State::Kind, b"directory") => {
                self.names.enter();
                (State::EntryOrClose, Step::Report(Event::DirectoryBegin))
            }
            (State::ContentsOrExecutable, b"executable") => (State::Marker, Step::Silent),
            (State::ContentsOrExecutable, b"contents") => {
                (State::Size { executable: false }, Step::Silent)
            }
            (State::Marker, b"") => (State::Contents, Step::Silent),
            (State::Contents, b"contents") => (State::Size { executable: true }, Step::Silent),
            (State::FileClose, b")") => (self.after_node(), Step::Report(Event::FileEnd)),
            (State::TargetTag, b"target") => (State::Target, Step::Silent),
            (State::Target, target) => {
                check_target(target).map_err(DecodeErrorKind::Target)?;
                (State::SymlinkClose, Step::Symlink)
            }
            (State::SymlinkClose, b")") => (self.after_node(), Step::Silent),
            (State::EntryOrClose, b"entry") => {
                // The child's path has as many components as there are open directories.
                if self.names.depth() >= self.depth_max {
                    return Err(DecodeErrorKind::Depth);
                }
                (State::EntryOpen, Step::Silent)
            }
            (State::EntryOrClose, b")") => {
                self.names.leave();
                (self.after_node(), Step::Report(Event::DirectoryEnd))
            }
            (State::EntryOpen, b"(") => (State::NameTag, Step::Silent),
            (State::NameTag, b"name") => (State::Name, Step::Silent),
            (State::Name, name) => {
                self.names.next(name).map_err(DecodeErrorKind::Name)?;
                (State::NodeTag, Step::Entry)
            }
            (State::NodeTag, b"node") => (State::NodeOpen, Step::Silent),
            (State::EntryClose, b")") => (State::EntryOrClose, Step::Report(Event::EntryEnd)),
            _ => return Err(state.unexpected()),
        };
        self.state = next;
        Ok(step)
    }

    fn after_node(&self) -> State {
        if self.names.depth() == 0 {
            State::Done
        } else {
            State::EntryClose
        }
    }

    /// Reads the length of a file's contents.
    fn size<'a>(
        &mut self,
        input: &mut &'a [u8],
        executable: bool,
    ) -> Result<Step<'a>, DecodeErrorKind> {
        self.drop_string();
        if !self.fill(input, LEN_LEN) {
            return Ok(Step::Pause);
        }
        let size = self.len();
        if self.offset.saturating_add(size) > CONTENTS_END_MAX {
            return Err(DecodeErrorKind::TooLong);
        }
        self.buffer.clear();
        self.state = State::Data {
            left: size,
            padding_len: token::padding(size).len(),
        };
        Ok(Step::Report(Event::File {
            executable,
            size,
            offset: self.offset,
        }))
    }

    /// Reports a piece of a file's contents.
    fn data<'a>(&mut self, input: &mut &'a [u8], left: u64, padding_len: usize) -> Step<'a> {
        if left == 0 {
            self.string_offset = self.offset;
            self.state = State::Padding { len: padding_len };
            return Step::Silent;
        }
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
        if len == 0 {
            return Step::Pause;
        }
        let (data, rest) = input.split_at(len);
        *input = rest;
        self.offset = self.offset.saturating_add(len as u64);
        self.state = State::Data {
            left: left.saturating_sub(len as u64),
            padding_len,
        };
        Step::Report(Event::Contents(data))
    }

    /// Reads the padding after a file's contents.
    fn padding<'a>(
        &mut self,
        input: &mut &'a [u8],
        len: usize,
    ) -> Result<Step<'a>, DecodeErrorKind> {
        if !self.fill(input, len) {
            return Ok(Step::Pause);
        }
        if self.buffer.iter().any(|&byte| byte != 0) {
            return Err(DecodeErrorKind::Padding);
        }
        self.buffer.clear();
        self.string_offset = self.offset;
        self.state = State::FileClose;
        Ok(Step::Silent)
    }

    /// Collects the next string; returns whether it is complete.
    fn collect(&mut self, input: &mut &[u8]) -> Result<bool, DecodeErrorKind> {
        self.drop_string();
        if !self.fill(input, LEN_LEN) {
            return Ok(false);
        }
        let len = match usize::try_from(self.len()) {
            Ok(len) if len <= self.state.len_max() => len,
            _ => return Err(self.state.unexpected()),
        };
        // The limit of the state prevents overflow.
        let text_end = LEN_LEN.saturating_add(len);
        if !self.fill(input, text_end.next_multiple_of(8)) {
            return Ok(false);
        }
        if self.buffer.iter().skip(text_end).any(|&byte| byte != 0) {
            return Err(DecodeErrorKind::Padding);
        }
        self.text_len = Some(len);
        Ok(true)
    }

    /// Removes the string from the start of the buffer, if it was complete.
    fn drop_string(&mut self) {
        if self.text_len.take().is_some() {
            self.buffer.clear();
            self.string_offset = self.offset;
        }
    }

    /// Moves bytes from `input` into the buffer; returns whether it holds `want` bytes.
    fn fill(&mut self, input: &mut &[u8], want: usize) -> bool {
        let missing = want.saturating_sub(self.buffer.len());
        let (taken, rest) = input.split_at(missing.min(input.len()));
        self.buffer.extend_from_slice(taken);
        *input = rest;
        self.offset = self.offset.saturating_add(taken.len() as u64);
        taken.len() == missing
    }

    /// Returns the length at the start of the buffer, which must hold at least eight bytes.
    fn len(&self) -> u64 {
        self.buffer
            .first_chunk()
            .map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
    }

    fn text(&self) -> &[u8] {
        text_of(&self.buffer, self.text_len)
    }
}

/// Returns the string in the buffer. Not a method, so that callers can borrow other fields of
/// `Decoder`.
fn text_of(buffer: &[u8], text_len: Option<usize>) -> &[u8] {
    let text = buffer.get(LEN_LEN..).unwrap_or_default();
    text.get(..text_len.unwrap_or(0)).unwrap_or_default()
}

impl State {
    /// Maximum length of the next string, in bytes.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "all other strings are keywords of the grammar"
    )]
    const fn len_max(self) -> usize {
        match self {
            Self::Name => NAME_LEN_MAX,
            Self::Target => TARGET_LEN_MAX,
            Self::Marker => 0,
            _ => "nix-archive-1".len(),
        }
    }

    /// Returns the error for a string that is too long or not the required one.
    const fn unexpected(self) -> DecodeErrorKind {
        let expected = match self {
            Self::Name => return DecodeErrorKind::Name(NameError::TooLong),
            Self::Target => return DecodeErrorKind::Target(TargetError::TooLong),
            Self::Marker => return DecodeErrorKind::ExecutableMarker,
            Self::Magic => "\"nix-archive-1\"",
            Self::NodeOpen | Self::EntryOpen => "\"(\"",
            Self::Type => "\"type\"",
            Self::Kind => "\"regular\", \"symlink\" or \"directory\"",
            Self::ContentsOrExecutable => "\"executable\" or \"contents\"",
            Self::Contents => "\"contents\"",
            Self::FileClose | Self::SymlinkClose | Self::EntryClose => "\")\"",
            Self::TargetTag => "\"target\"",
            Self::EntryOrClose => "\"entry\" or \")\"",
            Self::NameTag => "\"name\"",
            Self::NodeTag => "\"node\"",
            Self::Size { .. }
            | Self::Data { .. }
            | Self::Padding { .. }
            | Self::Done
            | Self::Failed(_) => "no string",
        };
        DecodeErrorKind::Token { expected }
    }
}

#[cfg(test)]
mod tests;
