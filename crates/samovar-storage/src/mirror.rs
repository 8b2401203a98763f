//! The mirror: narinfos and other files that make the storage directory a plain binary cache. Any
//! Nix can read it as `file://` without this program.

use samovar_nix::StoreDir;

use crate::metadata::StoredPath;

/// Renders the narinfo of an uploaded path, including the cache's signatures.
pub type Render<'a> = dyn Fn(&StoredPath) -> Vec<u8> + 'a;

/// Returns the text of `nix-cache-info`.
#[must_use]
pub fn cache_info(dir: &StoreDir) -> String {
    format!(
        "StoreDir: {}\nWantMassQuery: 1\nPriority: 30\n",
        dir.as_str()
    )
}
