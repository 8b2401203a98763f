//! Files of a state directory.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use anyhow::anyhow;

use crate::failed::Failed;

/// End of the names of files that are not complete.
pub(super) const TEMPORARY: &str = ".tmp";

/// Atomically replaces a file in a state directory, and writes it to stable storage.
pub(super) fn replace_file(state: &Path, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let path = state.join(name);
    let temporary = state.join(format!("{name}.{}{TEMPORARY}", std::process::id()));
    let written = || {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        File::open(state)?.sync_all()
    };
    written().map_err(|error| {
        fs::remove_file(&temporary).unwrap_or_default();
        Failed::Unavailable.because(anyhow!("cannot write {path:?}: {error}"))
    })
}
