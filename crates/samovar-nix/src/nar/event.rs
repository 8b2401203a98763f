//! What a NAR is made of, as a reader meets it.

/// What a [`Decoder`](super::Decoder) has found. The same NAR gives the same events however it is
/// cut, but that [`Contents`](Self::Contents) may come in more pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// A directory starts.
    DirectoryBegin,
    /// The next child of the directory; its node follows.
    Entry {
        /// Its name: valid, and after the one before it.
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
    /// The next bytes of the file, never empty.
    Contents(&'a [u8]),
    /// The file is complete: all its bytes have been reported.
    FileEnd,
    /// A symbolic link.
    Symlink {
        /// Its target: not empty, no NUL.
        target: &'a [u8],
    },
}
