//! Errors of verification.

use std::fmt;
use std::io;

use samovar_nix::nar::{DEPTH_MAX, DecodeError, DecodeErrorKind};
use samovar_nix::{NarHash, nixbase32};
use samovar_text::human;

use super::MemoryError;

/// Reason why the verification of an upload has failed.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// Reading the body failed, which is the client's fault. Contains the unchanged error of the
    /// source.
    #[error("cannot read the upload")]
    Source(#[source] io::Error),
    /// Writing the body failed, which is the server's fault. Contains the unchanged error of the
    /// sink.
    #[error("cannot write the upload")]
    Sink(#[source] io::Error),
    /// There is no memory for the window of the decompressor.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The body breaks a rule.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Reason why the file of a NAR is refused. `Display` prints one sentence for the client: the fault
/// and its fix.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The file ends before the compressed stream does.
    Truncated {
        /// Name of the compression format.
        format: &'static str,
        /// Length of the file, in bytes.
        file_size: u64,
    },
    /// The decompressor rejects the file.
    Corrupt {
        /// Name of the compression format.
        format: &'static str,
        /// Message of the decompressor.
        reason: String,
    },
    /// The decompressed file is not a NAR.
    NotANar(DecodeError),
    /// Bytes follow the end of the compressed stream.
    BytesAfterStream {
        /// Name of the compression format.
        format: &'static str,
    },
    /// Bytes follow the end of the NAR.
    BytesAfterNar {
        /// Length of the NAR in the file, in bytes.
        nar_size: u64,
    },
    /// The SHA-256 of the file is not the one in its file name.
    FileHash {
        /// SHA-256 in the file name.
        named: [u8; 32],
        /// SHA-256 of the file.
        found: [u8; 32],
    },
    /// The SHA-256 of the NAR is not the stated one.
    NarHash {
        /// The hash that the client states.
        stated: NarHash,
        /// The hash of the uploaded NAR.
        found: NarHash,
    },
    /// The NAR is longer than [`Limits::nar_size_max`](super::Limits::nar_size_max).
    TooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The NAR is too long compared with the file: see
    /// [`Limits::ratio_max`](super::Limits::ratio_max).
    Ratio {
        /// The maximum ratio.
        ratio: u64,
        /// Number of bytes by which the NAR may exceed the ratio.
        free_len: u64,
    },
    /// The file is more than twice as long as the NAR, so it contains something else.
    Oversized {
        /// Length of the file so far, in bytes.
        file_size: u64,
        /// Length of the decompressed NAR so far, in bytes.
        nar_size: u64,
    },
    /// The stream needs a larger window or dictionary than the limits allow.
    Window {
        /// Name of the compression format.
        format: &'static str,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The server cannot decode this compression.
    UnsupportedCompression {
        /// Name of the compression format.
        format: &'static str,
    },
}

impl Refusal {
    /// Returns whether the upload exceeds a size limit (HTTP status 413) rather than being invalid
    /// (422).
    #[must_use]
    pub const fn is_too_large(&self) -> bool {
        matches!(self, Self::TooLarge { .. })
    }

    /// Returns the fault of the file, without the fix for the client.
    #[must_use]
    pub fn fault(&self) -> String {
        match self {
            Self::Truncated { format, file_size } => {
                format!("the {format} stream is cut short after {file_size} bytes")
            }
            Self::Corrupt { format, reason } => {
                format!("the file is not a valid {format} stream: {reason}")
            }
            Self::NotANar(error) if error.kind == DecodeErrorKind::Depth => {
                format!("a path in the NAR has {DEPTH_MAX} names or more, which Nix refuses")
            }
            Self::NotANar(error) => format!("the content is not a NAR: {error}"),
            Self::BytesAfterStream { format } => {
                format!("bytes follow the end of the {format} stream")
            }
            Self::BytesAfterNar { nar_size } => {
                format!("bytes follow the end of the NAR at byte {nar_size}")
            }
            Self::FileHash { named, found } => format!(
                "the file name states the SHA-256 {}, but the file has {}",
                nixbase32::encode(named),
                nixbase32::encode(found)
            ),
            Self::NarHash { stated, found } => {
                format!("the NAR has the hash {found}, not {stated} as stated")
            }
            Self::TooLarge { limit } => {
                format!("the NAR is larger than {limit} bytes, the limit of this cache")
            }
            Self::Ratio { ratio, free_len } => format!(
                "the file expands to more than {ratio} times its length and {}",
                human(*free_len)
            ),
            Self::Oversized {
                file_size,
                nar_size,
            } => {
                format!("the file is {file_size} bytes long, but the NAR in it only {nar_size}")
            }
            Self::Window { format, limit } => {
                format!("the {format} stream needs a window of more than {limit} bytes")
            }
            Self::UnsupportedCompression { format } => {
                format!("the file is compressed with {format}, which this server cannot decode")
            }
        }
    }

    /// Returns what the client can do.
    const fn fix(&self) -> &'static str {
        match self {
            Self::Truncated { .. } | Self::FileHash { .. } => "upload the file again",
            Self::Corrupt { .. } => {
                "compress the NAR again, or check that the suffix of the file name states its \
                 compression"
            }
            Self::NotANar(error) if matches!(error.kind, DecodeErrorKind::Depth) => {
                "move the files up"
            }
            Self::NotANar(_) => {
                "make the NAR with nix-store --dump, which writes all names in order and none of \
                 them twice"
            }
            Self::BytesAfterStream { .. } => "upload the stream alone",
            Self::BytesAfterNar { .. } => "upload the NAR alone",
            Self::NarHash { .. } => {
                "check with nix-store --verify-path that the path is intact, and upload it again"
            }
            Self::TooLarge { .. } => "split the path",
            Self::Ratio { .. } => "upload it with samovar push, or with compression=none",
            Self::Oversized { .. } => "upload the compressed NAR alone",
            Self::Window { .. } => "compress with a smaller window",
            Self::UnsupportedCompression { .. } => "use zstd",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.fault(), self.fix())
    }
}

impl std::error::Error for Refusal {}
