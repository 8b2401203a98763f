//! Changes that a power cut may undo.

use std::collections::BTreeMap;
use std::ffi::OsString;

/// A change of a file since the last `fsync`.
#[derive(Clone)]
pub(super) enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

/// A change of a directory since the last `fsync`.
#[derive(Clone)]
pub(super) struct NameChange {
    pub(super) id: u64,
    pub(super) name: OsString,
    /// The new inode of the name. `None`: the name is removed.
    pub(super) inode: Option<u64>,
    /// The other half of a rename: this change is kept only if that one is kept.
    pub(super) needs: Option<u64>,
}

impl Change {
    pub(super) fn apply(&self, data: &mut Vec<u8>) {
        match self {
            Self::Write(offset, bytes) => {
                let end = offset + bytes.len();
                data.resize(data.len().max(end), 0);
                data[*offset..end].copy_from_slice(bytes);
            }
            Self::Truncate(len) => data.resize(*len, 0),
        }
    }
}

impl NameChange {
    pub(super) fn apply(&self, names: &mut BTreeMap<OsString, u64>) {
        match self.inode {
            Some(inode) => names.insert(self.name.clone(), inode),
            None => names.remove(&self.name),
        };
    }
}
