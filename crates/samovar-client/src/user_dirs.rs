//! The directories of the user, from environment variables.
//!
//! # Source
//!
//! XDG Base Directory Specification 0.8.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use samovar_workspace::STATE_DIRECTORY;

/// Returns the path in an environment variable. `None`: the variable is unset or empty.
pub fn variable(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

/// Returns the directory for configuration. `None`: the user has no home directory.
pub fn config() -> Option<PathBuf> {
    variable("XDG_CONFIG_HOME").or_else(|| in_home(".config"))
}

/// Returns the directory for data that can be made again. `None`: the user has no home directory.
pub fn cache() -> Option<PathBuf> {
    variable("XDG_CACHE_HOME").or_else(|| in_home(".cache"))
}

/// Returns the directory for the state of programs. `None`: the user has no home directory.
pub fn state() -> Option<PathBuf> {
    variable("XDG_STATE_HOME").or_else(|| in_home(".local/state"))
}

/// Returns the directory with the states of workspaces. `None`: the user has no home directory.
pub fn workspaces() -> Option<PathBuf> {
    Some(state()?.join("samovar").join(STATE_DIRECTORY))
}

/// Returns whether a path is the path of the directory with the states of workspaces.
pub fn is_workspaces(path: &Path) -> bool {
    let own = workspaces().and_then(|own| own.canonicalize().ok());
    own.is_some_and(|own| own == path)
}

/// Creates a directory that only the user can read, with its parents, unless it exists.
///
/// # Errors
///
/// Those of `mkdir(2)`.
pub fn create_private(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn in_home(name: &str) -> Option<PathBuf> {
    Some(variable("HOME")?.join(name))
}
