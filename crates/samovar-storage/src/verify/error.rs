//! Errors of verification.

use std::io;

use samovar_nix::nar::DecodeError;
use samovar_nix::{NarHash, nixbase32};

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

/// Reason why a body is refused. `Display` prints one sentence for the client: the fault and its
/// fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The body ends before the compressed stream does.
    #[error("the {format} stream is cut short after {file_size} bytes; upload the file again")]
    Truncated {
        /// Name of the compression format.
        format: &'static str,
        /// Length of the body, in bytes.
        file_size: u64,
    },
    /// The decompressor rejects the body.
    #[error(
        "the body is not a valid {format} stream: {reason}; compress the NAR again, or check that \
         the suffix of the file name states its compression"
    )]
    Corrupt {
        /// Name of the compression format.
        format: &'static str,
        /// Message of the decompressor.
        reason: String,
    },
    /// The decompressed body is not a NAR.
    #[error("the content is not a NAR: {0}; dump the path again")]
    NotANar(DecodeError),
    /// Bytes follow the end of the compressed stream.
    #[error("bytes follow the end of the {format} stream; upload the stream alone")]
    BytesAfterStream {
        /// Name of the compression format.
        format: &'static str,
    },
    /// Bytes follow the end of the NAR.
    #[error("bytes follow the end of the NAR at byte {nar_size}; upload the NAR alone")]
    BytesAfterNar {
        /// Length of the NAR in the body, in bytes.
        nar_size: u64,
    },
    /// The SHA-256 of the body is not the one in its file name.
    #[error(
        "the file name states the SHA-256 {}, but the body has {}; upload the file again",
        nixbase32::encode(.named),
        nixbase32::encode(.found)
    )]
    FileHash {
        /// SHA-256 in the file name.
        named: [u8; 32],
        /// SHA-256 of the body.
        found: [u8; 32],
    },
    /// The SHA-256 of the NAR is not the stated one.
    #[error("the NAR has the hash {found}, not {stated} as stated; dump the path again")]
    NarHash {
        /// The hash that the client states.
        stated: NarHash,
        /// The hash of the uploaded NAR.
        found: NarHash,
    },
    /// The NAR is longer than [`Limits::nar_size_max`](super::Limits::nar_size_max).
    #[error("the NAR is larger than {limit} bytes, the limit of this cache; split the path")]
    TooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The NAR is too long compared with the body: see
    /// [`Limits::ratio_max`](super::Limits::ratio_max).
    #[error(
        "the body expands to more than {ratio} times its length; upload the NAR with \
         compression=none"
    )]
    Ratio {
        /// The maximum ratio.
        ratio: u64,
    },
    /// The body is more than twice as long as the NAR, so it contains something else.
    #[error(
        "the body is {file_size} bytes long, but the NAR in it only {nar_size}; upload the \
         compressed NAR alone"
    )]
    Oversized {
        /// Length of the body so far, in bytes.
        file_size: u64,
        /// Length of the decompressed NAR so far, in bytes.
        nar_size: u64,
    },
    /// The stream needs a larger window or dictionary than the limits allow.
    #[error(
        "the {format} stream needs a window of more than {limit} bytes; compress with a smaller \
         window"
    )]
    Window {
        /// Name of the compression format.
        format: &'static str,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The server cannot decode this compression.
    #[error("the body is compressed with {format}, which this server cannot decode; use zstd")]
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
}
