//! Why a tree could not be read to its end.

use std::io;

use rustix::io::Errno;
use samovar_nix::nar::EncodeError;

use crate::error::StoreError;

/// The tree could not be read to its end. What was read so far is not a NAR.
///
/// A server that has sent a part breaks the connection. Whether the path was collected or is
/// damaged shows by asking the store again: after a collection it is absent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// A file, directory or link is gone: the path is being collected, most likely.
    #[error("a part of the tree has vanished")]
    Vanished,
    /// A file ended before the size it had when it was opened.
    #[error("a file of {announced} bytes ended after {found}")]
    Short {
        /// Its size when it was opened, which stands in the NAR already.
        announced: u64,
        /// How many bytes there were.
        found: u64,
    },
    /// Something that is neither a regular file nor a directory nor a symbolic link.
    #[error("a file has a type that no NAR can hold")]
    UnsupportedType,
    /// A directory or file was put in the place of another one during the walk.
    #[error("the tree was changed while it was read")]
    Changed,
    /// A name or target that no NAR can hold, or a NAR longer than any may be.
    #[error("the tree makes no NAR")]
    Encode(#[from] EncodeError),
    /// The files are not on this machine.
    #[error("the files are not on this machine")]
    Remote,
    /// The daemon did not send what it announced.
    #[error("the daemon failed to send the NAR")]
    Daemon(#[source] StoreError),
    /// A skip to a place behind or beyond the end.
    #[error("there is no such place ahead in the NAR")]
    NoSuchOffset,
    /// This process or the machine has run out of something. The tree may be whole.
    #[error("no descriptors or memory left")]
    Exhausted,
    /// The operating system refused an operation: permissions, or a failing disk.
    #[error("reading the tree failed: {}", .0.kind())]
    Io(#[source] io::Error),
}

impl TreeError {
    /// Whether the tree itself is not what it should be. Otherwise reading it failed for another
    /// reason, and says nothing about the tree.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Vanished
            | Self::Short { .. }
            | Self::UnsupportedType
            | Self::Changed
            | Self::Encode(_) => true,
            Self::Remote | Self::Daemon(_) | Self::NoSuchOffset | Self::Exhausted | Self::Io(_) => {
                false
            }
        }
    }
}

impl From<Errno> for TreeError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::STALE => Self::Vanished,
            // A link or a file where the directory entry said otherwise.
            Errno::LOOP | Errno::NOTDIR | Errno::INVAL => Self::Changed,
            // A socket, or a device without a driver.
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
            TreeError::UnsupportedType | TreeError::Remote => io::ErrorKind::Unsupported,
            TreeError::NoSuchOffset => io::ErrorKind::InvalidInput,
            TreeError::Changed | TreeError::Encode(_) | TreeError::Daemon(_) => {
                io::ErrorKind::InvalidData
            }
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
