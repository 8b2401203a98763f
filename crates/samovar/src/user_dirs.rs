//! The directories of the user.

use std::path::{Path, PathBuf};

pub(crate) use samovar_client::user_dirs::{cache, config, create_private, state, variable};
use samovar_workspace::STATE_DIRECTORY;

/// Returns the directory with the states of workspaces. `None`: the user has no home directory.
pub(crate) fn workspaces() -> Option<PathBuf> {
    Some(state()?.join("samovar").join(STATE_DIRECTORY))
}

/// Returns whether a path is that of the directory with the states of workspaces.
pub(crate) fn is_workspaces(path: &Path) -> bool {
    let own = workspaces().and_then(|own| own.canonicalize().ok());
    own.is_some_and(|own| own == path)
}
