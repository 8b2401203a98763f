//! Exit codes: [`Outcome`] is the result of a command that ran, [`Failed`] the error of one that
//! did not.
//!
//! # Exit codes of commands that transfer paths
//!
//! `push`, `prefetch`, `import`, `export` and `use`:
//!
//! | exit code | meaning |
//! | --- | --- |
//! | 0 | done |
//! | 1 | a path was not transferred, a step is left to the user, or the cache refused the request |
//! | 2 | the command line or the configuration is invalid |
//! | 3 | the cache, the store, the storage or a directory is unavailable |

use std::process::ExitCode;

pub(crate) use samovar_client::failed::Failed;
use samovar_server::config::ConfigError;
use samovar_workspace::ReadError;

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

/// Returns the reason of an error, if it has one.
pub(crate) fn reason(error: &anyhow::Error) -> Option<Failed> {
    let is_refused = || error.is::<TreeChanges>() || error.is::<ReadError>();
    match Failed::of(error) {
        Some(failed) => Some(failed),
        None if error.is::<ConfigError>() => Some(Failed::Usage),
        None if is_refused() => Some(Failed::Refused),
        None => None,
    }
}

/// The error of a tree to which programs write. The exit code is the same as for a refusal.
#[derive(Debug, thiserror::Error)]
#[error("{0}: run the command again when no program writes to the tree")]
pub(crate) struct TreeChanges(pub(crate) ReadError);
