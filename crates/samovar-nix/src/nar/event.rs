//! [`Event`]: the elements of a NAR, in order.

/// An element of a NAR. Events do not depend on how the input is split, except that
/// [`Contents`](Self::Contents) may come in smaller pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// A directory starts.
    DirectoryBegin,
    /// The next child of the directory. The events of its node follow.
    Entry {
        /// The name of the child: valid, and greater than the previous name in the directory.
        name: &'a [u8],
    },
    /// The child is complete.
    EntryEnd,
    /// The directory is complete.
    DirectoryEnd,
    /// A regular file starts.
    File {
        /// Whether the owner may execute the file.
        executable: bool,
        /// Length of the file's contents, in bytes.
        size: u64,
        /// Offset in the NAR of the file's first content byte.
        offset: u64,
    },
    /// The next contents of the file, never empty.
    Contents(&'a [u8]),
    /// The file is complete.
    FileEnd,
    /// A symbolic link.
    Symlink {
        /// The target of the link: not empty, without NUL.
        target: &'a [u8],
    },
}
