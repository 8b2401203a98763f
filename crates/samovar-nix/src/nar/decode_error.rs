//! Why an input is no NAR.

use super::{CONTENTS_END_MAX, NameError, TargetError};

/// Why the input is no NAR. Final: no event follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {kind}")]
pub struct DecodeError {
    /// Where the string begins that was wrong, counted from the first byte of the NAR.
    pub offset: u64,
    /// What was wrong with it.
    pub kind: DecodeErrorKind,
}

/// The rules of a NAR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// Not the string that the grammar has here.
    #[error("expected {expected}")]
    Token {
        /// What the grammar has here.
        expected: &'static str,
    },
    /// The executable marker is followed by something.
    #[error("executable marker with a value")]
    ExecutableMarker,
    /// Padding that is not zero: if any value passed, one content would have many hashes.
    #[error("padding is not zero")]
    Padding,
    /// A bad name, or one out of order.
    #[error("{0}")]
    Name(NameError),
    /// A bad target.
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
