//! [`OnServer`]: the ref of a workspace on the server, compared with the base of the workspace.

use anyhow::anyhow;
use samovar_client::workspace::{State, Workspace};

use crate::outcome::Failed;
use crate::refs::{Generation, Log, Refs};

/// The ref of a workspace on the server.
#[derive(Debug)]
pub(super) struct OnServer {
    /// The generations, the newest first; none if the ref does not exist.
    pub(super) log: Log,
    /// Whether a generation of the ref has the snapshot on which the files are based.
    pub(super) has_base: bool,
    /// Whether the generation on which the files are based is gone, or has another snapshot.
    is_base_lost: bool,
}

impl OnServer {
    /// Looks the ref of a workspace up.
    ///
    /// # Errors
    ///
    /// The cache is unavailable or refuses the request.
    pub(super) fn of(refs: &Refs, state: &State) -> anyhow::Result<Self> {
        let log = refs.get(&state.name)?.unwrap_or_default();
        let Some(base) = &state.base else {
            return Ok(Self {
                log,
                has_base: false,
                is_base_lost: false,
            });
        };
        let mut all = log.generations.iter();
        let same = all.find(|generation| generation.number == base.version.number);
        let is_base_lost = match same {
            Some(same) => same.manifest != base.manifest,
            // If the log lacks the generation, it was deleted because only some generations are
            // kept, or the server has lost it.
            None => !log.follows(base.version),
        };
        let mut all = log.generations.iter();
        Ok(Self {
            has_base: all.any(|generation| generation.manifest == base.manifest),
            log,
            is_base_lost,
        })
    }

    /// Returns the newest generation; `None` if the ref does not exist.
    pub(super) fn newest(&self) -> Option<&Generation> {
        self.log.generations.first()
    }

    /// Returns the error if the server has lost the ref, or the generation on which the files are
    /// based.
    pub(super) fn lost(&self, state: &State) -> Option<anyhow::Error> {
        let base = state.base.as_ref().filter(|_| self.is_base_lost)?;
        let Some(newest) = self.newest() else {
            return Some(missing(state));
        };
        let advice = match self.has_base {
            true => "run samovar workspace pull",
            false => {
                "samovar workspace pull makes each difference from that generation a conflict, and \
                 samovar workspace push --force publishes these files as the next generation"
            }
        };
        Some(Failed::Refused.because(anyhow!(
            "the server has lost generation {} of {}, on which these files are based: its newest \
             generation is {}, as after a restore from a backup, or after the ref was removed and \
             created again. Nothing was changed: {advice}",
            base.version.number,
            state.name,
            newest.number
        )))
    }
}

/// Checks that the server has the snapshot on which the files of a workspace are based, so that
/// files without changes can be deleted. Does not change the base.
///
/// # Errors
///
/// The cache is unavailable, or has lost the generation or the ref.
pub(super) fn check_stored(workspace: &Workspace, refs: &Refs) -> anyhow::Result<()> {
    let found = OnServer::of(refs, &workspace.state)?;
    match found.lost(&workspace.state) {
        Some(error) if !found.has_base => Err(error),
        _ => Ok(()),
    }
}

/// Checks that the server has the generation on which the files of a workspace are based. If the
/// newest generation on the server is from a push of this workspace whose response was lost, makes
/// this generation the base: the caller must not have compared the files with the base yet.
///
/// # Errors
///
/// The cache is unavailable, or has lost the generation or the ref.
pub(super) fn check_base(workspace: &mut Workspace, refs: &Refs) -> anyhow::Result<OnServer> {
    let found = OnServer::of(refs, &workspace.state)?;
    let Some(error) = found.lost(&workspace.state) else {
        return Ok(found);
    };
    match found.newest() {
        Some(newest) if workspace.adopt_base(newest)? => OnServer::of(refs, &workspace.state),
        _ => Err(error),
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
