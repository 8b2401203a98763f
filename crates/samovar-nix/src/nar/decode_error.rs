//! Errors of decoding a NAR.

use super::{CONTENTS_END_MAX, NameError, TargetError};

/// Error of decoding a NAR: the broken rule and its position. After this error the decoder reports
/// no more events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {kind}")]
pub struct DecodeError {
    /// Offset in the NAR of the string that breaks the rule.
    pub offset: u64,
    /// The rule that the input breaks.
    pub kind: DecodeErrorKind,
}

/// The rules of the NAR format that an input can break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// A string differs from what the grammar requires.
    #[error("expected {expected}")]
    Token {
        /// The required string.
        expected: &'static str,
    },
    /// The executable marker is followed by a non-empty string.
    #[error("executable marker with a value")]
    ExecutableMarker,
    /// Padding is not zero: with arbitrary padding one tree would have many hashes.
    #[error("padding is not zero")]
    Padding,
    /// A name is invalid or out of order.
    #[error("{0}")]
    Name(NameError),
    /// A target is invalid.
    #[error("{0}")]
    Target(TargetError),
    /// A path has more components than the reader allows.
    #[error("nested too deeply")]
    Depth,
    /// The contents of a file would end after [`CONTENTS_END_MAX`].
    #[error("contents end after {CONTENTS_END_MAX} bytes")]
    TooLong,
    /// The input ends before the NAR does.
    #[error("cut short")]
    Truncated,
}
