//! [`Event`]: the elements of a NAR, in order.

/// An element of a NAR. Events do not depend on how the input is split, except that
/// [`Contents`](Self::Contents) may come in smaller pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// A directory starts.
    DirectoryBegin,
    /// The next child of the directory; its node follows.
    Entry {
        /// The name: valid, and greater than the previous one.
        name: &'a [u8],
    },
    /// The child is complete.
    EntryEnd,
    /// The directory is complete.
    DirectoryEnd,
    /// A regular file starts.
    File {
        /// Whether it may be executed.
        executable: bool,
        /// Length of its contents, in bytes.
        size: u64,
        /// Offset of its first content byte in the NAR.
        offset: u64,
    },
    /// The next contents of the file, never empty.
    Contents(&'a [u8]),
    /// The file is complete.
    FileEnd,
    /// A symbolic link.
    Symlink {
        /// Its target: not empty, no NUL.
        target: &'a [u8],
    },
}
