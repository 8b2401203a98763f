//! The mirror: narinfos and other files that make the storage directory a plain binary cache. Any
//! Nix can read it as `file://` without this program.

use samovar_nix::narinfo::NarInfo;
use samovar_nix::{NarHash, StoreDir};

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

/// Returns the narinfo of an uploaded path, with the uploaded signatures only.
#[must_use]
pub fn narinfo(path: &StoredPath) -> NarInfo {
    NarInfo {
        store_path: path.path.clone(),
        url: path.nar.object_key.clone(),
        compression: path.nar.compression,
        file_hash: Some(NarHash::from_bytes(path.nar.file_hash).to_hash()),
        file_size: Some(path.nar.file_size),
        nar_hash: path.nar.nar_hash,
        nar_size: path.nar.nar_size,
        references: path.references.clone(),
        deriver: path.deriver.clone(),
        system: None,
        signatures: path.signatures.clone(),
        content_address: path.content_address,
    }
}
