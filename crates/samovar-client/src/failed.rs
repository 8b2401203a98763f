//! [`Failed`]: why a command failed, which determines its exit code.

use std::fmt;
use std::process::ExitCode;

use crate::private::Private;

/// The reason why a command that transfers paths failed. It determines the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// The cache refused the request, or a path that the command line names does not exist.
    Refused = 1,
    /// The command line or the configuration is invalid.
    Usage = 2,
    /// The cache, the store, the storage or a directory is unavailable.
    Unavailable = 3,
}

impl Failed {
    /// Returns the reason of an error, if it has one.
    pub fn of(error: &anyhow::Error) -> Option<Self> {
        match error.downcast_ref::<WithReason>() {
            Some(error) => Some(error.failed),
            None if error.is::<Private>() => Some(Self::Refused),
            None => None,
        }
    }

    /// Attaches this reason to an error, unless it has one.
    pub fn because(self, error: impl Into<anyhow::Error>) -> anyhow::Error {
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
    pub fn code(self) -> ExitCode {
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
