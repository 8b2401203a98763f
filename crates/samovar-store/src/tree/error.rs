//! [`TreeError`]: the reasons why a tree cannot be read completely.

use std::io;

use rustix::io::Errno;
use samovar_nix::nar::EncodeError;

/// Reason why the tree could not be read completely. The bytes read so far are not a valid NAR.
///
/// A server that has sent some of these bytes resets the connection. To distinguish a
/// garbage-collected path from a damaged one, look it up again: a garbage-collected path is absent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// A file, directory or link is missing: most likely the path is being garbage-collected.
    #[error("a part of the tree has vanished")]
    Vanished,
    /// A file ended before the size it had when opened.
    #[error("a file of {announced} bytes ended after {found}")]
    Short {
        /// Size that the file had when it was opened, in bytes; already written to the NAR.
        announced: u64,
        /// Number of bytes that could be read from the file.
        found: u64,
    },
    /// An entry is neither a regular file nor a directory nor a symbolic link.
    #[error("a file has a type that a NAR cannot hold")]
    UnsupportedType,
    /// A directory or file was replaced during the walk.
    #[error("the tree was changed while it was read")]
    Changed,
    /// A name, target or size exceeds the limits of a NAR.
    #[error("the tree cannot be written as a NAR")]
    Encode(#[from] EncodeError),
    /// A skip to an offset before the current one or beyond the end.
    #[error("the offset is not ahead in the NAR")]
    NoSuchOffset,
    /// The process or the machine is out of memory or descriptors. The tree may be intact.
    #[error("no descriptors or memory left")]
    Exhausted,
    /// The operating system failed an operation: permissions, or a disk error.
    #[error("reading the tree failed: {}", .0.kind())]
    Io(#[source] io::Error),
}

impl TreeError {
    /// Returns whether the tree itself is damaged. Otherwise reading failed for a reason that says
    /// nothing about the tree.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Vanished
            | Self::Short { .. }
            | Self::UnsupportedType
            | Self::Changed
            | Self::Encode(_) => true,
            Self::NoSuchOffset | Self::Exhausted | Self::Io(_) => false,
        }
    }
}

impl From<Errno> for TreeError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::STALE => Self::Vanished,
            // The file was replaced after its directory entry was read: it is now a link, or no
            // longer a directory.
            Errno::LOOP | Errno::NOTDIR | Errno::INVAL => Self::Changed,
            // A socket, or a device without a driver, cannot be opened.
            Errno::NXIO | Errno::NODEV => Self::UnsupportedType,
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS => Self::Exhausted,
            other => Self::Io(other.into()),
        }
    }
}

impl From<TreeError> for io::Error {
    fn from(error: TreeError) -> Self {
        let kind = match &error {
            TreeError::Vanished => io::ErrorKind::NotFound,
            TreeError::Short { .. } => io::ErrorKind::UnexpectedEof,
            TreeError::Io(error) => error.kind(),
            TreeError::Exhausted => io::ErrorKind::OutOfMemory,
            TreeError::UnsupportedType => io::ErrorKind::Unsupported,
            TreeError::NoSuchOffset => io::ErrorKind::InvalidInput,
            TreeError::Changed | TreeError::Encode(_) => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(errno: Errno, is_damage: bool, text: &str) {
        let error = TreeError::from(errno);
        assert_eq!(error.is_damage(), is_damage);
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn damage_exhaustion_and_refusal_are_told_apart() {
        check(Errno::NOENT, true, "a part of the tree has vanished");
        check(Errno::LOOP, true, "the tree was changed while it was read");
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS] {
            check(errno, false, "no descriptors or memory left");
        }
        check(
            Errno::ACCESS,
            false,
            "reading the tree failed: permission denied",
        );
        assert!(!TreeError::from(Errno::IO).is_damage());
    }
}
