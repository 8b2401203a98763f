//! `tidy`: the rules of the tree that no other tool knows.

use std::path::Path;

use anyhow::Result;

/// Checks every rule below `repository`.
///
/// # Errors
///
/// If a rule is broken.
pub(crate) fn check(_repository: &Path) -> Result<()> {
    Ok(())
}
