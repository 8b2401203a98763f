//! Errors of unpacking.

use std::io;
use std::path::PathBuf;

use samovar_nix::NarHash;
use samovar_nix::nar::DecodeError;

/// Reason why an archive was not unpacked. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnpackError {
    /// Reading the archive has failed. Contains the unchanged error of the source.
    #[error("cannot read the archive")]
    Source(#[source] io::Error),
    /// The archive breaks the grammar or a limit of NARs.
    #[error("the archive is not a NAR: {0}")]
    NotANar(DecodeError),
    /// Bytes follow the end of the NAR.
    #[error("bytes follow the end of the NAR after {nar_size} bytes")]
    BytesAfterNar {
        /// Length of the NAR, in bytes.
        nar_size: u64,
    },
    /// The NAR is longer than permitted.
    #[error("the NAR is longer than {limit} bytes")]
    TooLarge {
        /// Maximum length, in bytes.
        limit: u64,
    },
    /// The NAR is shorter than expected.
    #[error("the NAR has {found} bytes, expected {expected}")]
    NarSize {
        /// Expected length, in bytes.
        expected: u64,
        /// Length, in bytes.
        found: u64,
    },
    /// The NAR has more entries than permitted.
    #[error("the NAR has more than {limit} files, directories and links")]
    TooManyEntries {
        /// Maximum number of entries.
        limit: u64,
    },
    /// The NAR has another hash than expected.
    #[error("the hash of the NAR is {found}, expected {expected}")]
    NarHash {
        /// Expected hash.
        expected: NarHash,
        /// Computed hash.
        found: NarHash,
    },
    /// An entry of the NAR differs from the manifest.
    #[error("{path:?} differs from the manifest: {difference}")]
    Differs {
        /// Path of the entry, with the destination.
        path: PathBuf,
        /// Difference, a clause.
        difference: &'static str,
    },
    /// The destination exists, and is not an empty directory.
    #[error("{path:?} exists and is not an empty directory; choose another destination")]
    Exists {
        /// Destination.
        path: PathBuf,
    },
    /// The destination is the current directory, which unpacking would replace.
    #[error("{path:?} is the current directory; unpack it from the parent directory")]
    CurrentDirectory {
        /// Destination.
        path: PathBuf,
    },
    /// The destination is a mount point, which cannot be replaced.
    #[error("{path:?} is a mount point; choose a new directory in it")]
    MountPoint {
        /// Destination.
        path: PathBuf,
    },
    /// The destination does not end in a name.
    #[error("{path:?} does not end in the name of a directory")]
    NoName {
        /// Destination.
        path: PathBuf,
    },
    /// An operation on a file, directory or link has failed.
    #[error("cannot {action} {path:?}")]
    File {
        /// Operation, a verb.
        action: &'static str,
        /// Path, with the destination.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// No thread can be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}
