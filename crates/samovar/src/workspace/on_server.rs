//! [`OnServer`]: the ref of a workspace on the server, compared with the base of the workspace.

use anyhow::anyhow;

use super::state::State;
use crate::outcome::Failed;
use crate::refs::{Generation, Refs};

/// The ref of a workspace on the server.
#[derive(Debug)]
pub(super) enum OnServer {
    /// The ref has this newest generation.
    Newest(Generation),
    /// The ref does not exist.
    Absent,
    /// The server has lost the generation on which the files are based, as the error says.
    BaseLost(anyhow::Error),
}

impl OnServer {
    /// Whether the server has lost the ref, or the generation on which the files are based.
    pub(super) fn is_lost(&self, state: &State) -> bool {
        match self {
            Self::Newest(_) => false,
            Self::Absent => state.base.is_some(),
            Self::BaseLost(_) => true,
        }
    }

    /// Returns the number of the newest generation; `None` if it is not a successor of the base.
    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Newest(newest) => Some(newest.number),
            Self::Absent | Self::BaseLost(_) => None,
        }
    }

    /// Looks the ref of a workspace up.
    ///
    /// # Errors
    ///
    /// The cache is unavailable or refuses the request.
    pub(super) fn of(refs: &Refs, state: &State) -> anyhow::Result<Self> {
        let generations = refs.get(&state.name)?.map(|log| log.generations);
        let generations = generations.unwrap_or_default();
        let Some(newest) = generations.first() else {
            return Ok(Self::Absent);
        };
        if let Some(base) = &state.base {
            let mut all = generations.iter();
            // A generation that is not in the log any more is older than those that are kept.
            let same = all.find(|generation| generation.number == base.generation);
            let is_other = same.is_some_and(|same| same.manifest != base.manifest);
            if is_other || newest.number < base.generation {
                return Ok(Self::BaseLost(Failed::Refused.because(anyhow!(
                    "the server has lost generation {} of {}, on which these files are based: its \
                     newest one is {}, as after a restore from a backup. Nothing was changed: \
                     samovar workspace push --force publishes these files as the next generation",
                    base.generation,
                    state.name,
                    newest.number
                ))));
            }
        }
        Ok(Self::Newest(newest.clone()))
    }
}

/// Returns the newest generation of the ref of a workspace. Returns `None` if the ref does not
/// exist.
///
/// # Errors
///
/// The cache is unavailable, or has lost the generation on which the files are based.
pub(super) fn newest(refs: &Refs, state: &State) -> anyhow::Result<Option<Generation>> {
    match OnServer::of(refs, state)? {
        OnServer::Newest(newest) => Ok(Some(newest)),
        OnServer::Absent => Ok(None),
        OnServer::BaseLost(error) => Err(error),
    }
}

/// Checks that the server has the generation on which the files of a workspace are based.
///
/// # Errors
///
/// The cache is unavailable, or has lost the generation or the ref.
pub(super) fn check_base(refs: &Refs, state: &State) -> anyhow::Result<()> {
    match newest(refs, state)? {
        None if state.base.is_some() => Err(missing(state)),
        _ => Ok(()),
    }
}

/// Returns the error about the ref of a workspace that does not exist.
pub(super) fn missing(state: &State) -> anyhow::Error {
    let name = &state.name;
    Failed::Refused.because(match state.base {
        None => anyhow!("the ref {name} does not exist: samovar workspace push creates it"),
        Some(_) => anyhow!("the ref {name} was removed: {RECREATE}"),
    })
}

/// Advice about a ref that was removed.
pub(super) const RECREATE: &str = "samovar workspace push --force creates it again";
