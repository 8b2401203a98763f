//! Exit codes: [`Outcome`] is the result of a command that ran, [`Failed`] the error of one that
//! did not.
//!
//! # Exit codes of commands that transfer paths
//!
//! `push`, `import`, `export` and `use`:
//!
//! | exit code | meaning |
//! | --- | --- |
//! | 0 | done |
//! | 1 | a path was not transferred, a step is left to the user, or the cache refused the request |
//! | 2 | the command line or the configuration is invalid |
//! | 3 | the cache, the store, the storage or a directory is unavailable |

use std::fmt;
use std::process::ExitCode;

use samovar_server::config::ConfigError;
use samovar_workspace::ReadError;

use crate::private::Private;

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

/// The reason why a command that transfers paths failed. It determines the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The cache refused the request, or a path that the command line names does not exist.
    Refused = 1,
    /// The command line or the configuration is invalid.
    Usage = 2,
    /// The cache, the store, the storage or a directory is unavailable.
    Unavailable = 3,
}

impl Failed {
    /// Returns the reason of an error, if it has one.
    pub(crate) fn of(error: &anyhow::Error) -> Option<Self> {
        match error.downcast_ref::<WithReason>() {
            Some(error) => Some(error.failed),
            None if error.is::<ConfigError>() => Some(Self::Usage),
            None if error.is::<Private>() => Some(Self::Refused),
            None if error.is::<TreeChanges>() || error.is::<ReadError>() => Some(Self::Refused),
            None => None,
        }
    }

    /// Attaches this reason to an error, unless it has one.
    pub(crate) fn because(self, error: impl Into<anyhow::Error>) -> anyhow::Error {
        let error = error.into();
        match error.is::<WithReason>() {
            true => error,
            false => WithReason {
                failed: self,
                error,
            }
            .into(),
        }
    }

    /// Returns the exit code of the process.
    pub(crate) fn code(self) -> ExitCode {
        ExitCode::from(self as u8)
    }
}

/// An error with its reason.
#[derive(Debug)]
struct WithReason {
    failed: Failed,
    error: anyhow::Error,
}

impl fmt::Display for WithReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.error)
    }
}

impl std::error::Error for WithReason {}

/// The error of a tree to which programs write. The exit code is that of a refusal.
#[derive(Debug, thiserror::Error)]
#[error("{0}: run the command again when no program writes to the tree")]
pub(crate) struct TreeChanges(pub(crate) ReadError);

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, anyhow};

    use super::*;

    #[test]
    fn the_first_reason_of_an_error_counts() {
        assert_eq!(Failed::of(&anyhow!("a")), None);
        let error = Failed::Usage.because(anyhow!("a").context("b"));
        let outer: anyhow::Error = Err::<(), _>(error).context("c").unwrap_err();
        assert_eq!(Failed::of(&outer), Some(Failed::Usage));
        let outer = Failed::Refused.because(outer);
        assert_eq!(Failed::of(&outer), Some(Failed::Usage));
        assert_eq!(format!("{outer:#}"), "c: b: a");
    }
}
