//! The part of a path's row on which its NAR depends.

use samovar_nix::{NarHash, PathInfo, StorePath};

/// The columns of a path's row that identify its registration and its NAR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) path: StorePath,
    pub(crate) nar_hash: NarHash,
    /// Length of the NAR, in bytes. Zero means unknown.
    pub(crate) nar_size: u64,
    /// The registration number; `None` if the store has none. See [`PathInfo::registration`].
    pub(crate) registration: Option<i64>,
    /// Registration time, in seconds since 1970.
    pub(crate) registration_time: i64,
}

impl From<&PathInfo> for Row {
    fn from(info: &PathInfo) -> Self {
        Self {
            path: info.path.clone(),
            nar_hash: info.nar_hash,
            nar_size: info.nar_size,
            registration: info.registration,
            registration_time: info.registration_time,
        }
    }
}
