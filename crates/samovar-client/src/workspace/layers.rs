//! The directories with the layers of overlays: where they are, and what their mounts are called.
//! `samovar-mount` defines their contents.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use samovar_workspace::disk::{Use, unsuitable};

use crate::failed::Failed;
use crate::user_dirs::{self, create_private};

/// Environment variable that names the directory for the state of overlays.
pub const VARIABLE: &str = "SAMOVAR_STATE_DIR";

/// Name of the directory with the layers of all workspaces.
pub const OVERLAYS: &str = "overlays";

/// Name of the directory with the changes.
pub const UPPER: &str = "upper";
/// Prefix of the sources of mounts.
const SOURCE: &str = "samovar:";

/// Name of the file with the path of the directory on which an earlier version mounted a workspace.
const DIRECTORY: &str = "directory";

/// Returns the directory for the state of overlays, and creates it if it does not exist.
///
/// # Errors
///
/// The directory cannot be created, or its file system is unsuitable.
pub fn state_dir() -> anyhow::Result<PathBuf> {
    let dir = user_dirs::variable(VARIABLE);
    let dir = dir.or_else(|| Some(user_dirs::state()?.join("samovar")));
    let dir = dir.with_context(|| {
        format!(
            "HOME is not set, so there is no directory for changes: \
                                           set {VARIABLE}"
        )
    })?;
    let created = create_private(&dir).and_then(|()| dir.canonicalize());
    let dir = created.with_context(|| {
        format!("cannot create the directory {dir:?}: set {VARIABLE} to another one")
    })?;
    check_file_system(&dir)?;
    Ok(dir)
}

/// Checks that a directory can have the changes of an overlay.
///
/// # Errors
///
/// Its file system is unsuitable, or its type cannot be read.
pub fn check_file_system(dir: &Path) -> anyhow::Result<()> {
    let kind = unsuitable(dir, Use::Overlay)
        .with_context(|| format!("cannot read the type of the file system of {dir:?}"))?;
    let Some(kind) = kind else {
        return Ok(());
    };
    let error = anyhow!(
        "{dir:?} is on {kind}, which cannot have the changes of an overlay: set {VARIABLE} to a \
         directory on a local disk, such as /var/tmp/samovar-$USER, or use samovar ws open, which \
         works without overlays"
    );
    Err(Failed::Usage.because(error))
}

/// Returns the directory with the changes, in the directory of an overlay.
pub fn upper(dir: &Path) -> PathBuf {
    dir.join(UPPER)
}

/// Returns the source of the mount of the layers in this directory.
pub fn mount_source(dir: &Path) -> String {
    let name = dir.file_name().unwrap_or_default();
    format!("{SOURCE}{}", name.to_string_lossy())
}

/// Returns the directory, below `parent`, of the layers whose mount has this source.
pub fn of_source(parent: &Path, source: &str) -> Option<PathBuf> {
    Some(parent.join(source.strip_prefix(SOURCE)?))
}

/// Returns the directory of the workspace that an earlier version mounted last, in the directory of
/// an overlay.
pub fn last_directory(dir: &Path) -> Option<PathBuf> {
    let path = fs::read(dir.join(DIRECTORY)).ok()?;
    Some(OsString::from_vec(path).into())
}
