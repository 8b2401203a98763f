//! [`Outcome`]: the result of a command and its exit code.

use std::process::ExitCode;

/// The result of a command. It determines the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All paths are available or intact.
    Complete,
    /// At least one path is missing, damaged or untrusted.
    Incomplete,
    /// A path could not be verified, and none is damaged.
    Unchecked,
}

impl Outcome {
    /// Returns the exit code of the process for this outcome.
    pub(crate) fn code(self) -> ExitCode {
        match self {
            Self::Complete => ExitCode::SUCCESS,
            Self::Incomplete => ExitCode::FAILURE,
            Self::Unchecked => ExitCode::from(2),
        }
    }
}
