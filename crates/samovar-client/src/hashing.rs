//! The progress of hashing the files of a tree.

use samovar_workspace::{Kind, Scanned};

use crate::progress::Progress;

/// Starts the display for the hashing of files without a digest, or of the whole NAR.
pub fn progress(scanned: &Scanned, needs_nar_hash: bool, is_quiet: bool) -> Progress {
    let size = |index| match scanned.entries.get(index).map(|entry| &entry.kind) {
        Some(Kind::File { size, .. }) => *size,
        _ => 0,
    };
    match (is_quiet, needs_nar_hash) {
        (true, _) => Progress::hidden(),
        (false, true) => Progress::start("hashed", scanned.entries.nar_size()),
        (false, false) => {
            let sizes = scanned.files_without_digest().map(size);
            Progress::start("hashed", sizes.sum())
        }
    }
}
