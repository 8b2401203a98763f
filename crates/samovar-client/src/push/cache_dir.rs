//! Files in the cache directory of the user.

use std::path::PathBuf;

use samovar_nix::nixbase32;
use sha2::{Digest as _, Sha256};

use crate::user_dirs;

/// Returns the path of a file for `key` in `folder` of this program's cache directory. `None`: the
/// user has no cache directory. `key`: names the store and the cache, so that each pair has a file
/// of its own.
pub(super) fn path(folder: &str, key: &str) -> Option<PathBuf> {
    let digest = nixbase32::encode(&Sha256::digest(key));
    Some(
        user_dirs::cache()?
            .join("samovar")
            .join(folder)
            .join(digest),
    )
}
