//! [`Place`]: where a merge changes files.

use std::path::PathBuf;

/// A tree whose files a merge changes.
#[derive(Debug)]
pub struct Place {
    /// Root of the tree, an absolute path.
    pub root: PathBuf,
    /// Directory for files that are received, on the file system of the root.
    pub incoming: PathBuf,
    /// Directory with what is known about the base of the tree.
    pub state: PathBuf,
}
