//! Checks that a directory is on a disk that suits its use: not on a network file system, for
//! example.

use std::io;
use std::path::Path;

use crate::sys;

/// A use of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Files of mounted snapshots: needs holes and locks, at the speed of a local disk.
    MountCache,
    /// Changes of an overlay: needs what overlayfs demands of its upper directory.
    Overlay,
    /// Files of a workspace: needs the speed of a local disk.
    Workspace,
}

use Use::{MountCache, Overlay, Workspace};

/// The type of FUSE file systems.
const FUSE: u32 = 0x6573_5546;

/// The type of `statfs(2)`, a name for messages, and the uses that the file system does not suit.
///
/// # Source
///
/// Linux, `include/uapi/linux/magic.h`.
const UNSUITABLE: [(u32, &str, &[Use]); 16] = [
    (0x6969, "NFS", &[MountCache, Overlay, Workspace]),
    (0x517b, "SMB", &[MountCache, Overlay, Workspace]),
    (0xff53_4d42, "SMB", &[MountCache, Overlay, Workspace]),
    (0xfe53_4d42, "SMB", &[MountCache, Overlay, Workspace]),
    (FUSE, "FUSE", &[MountCache, Overlay, Workspace]),
    (0x5346_414f, "AFS", &[MountCache, Overlay, Workspace]),
    (0x00c3_6400, "Ceph", &[MountCache, Overlay, Workspace]),
    (0x0102_1997, "9P", &[Overlay, Workspace]),
    (0x0bd0_0bd0, "Lustre", &[Workspace]),
    (0x4750_4653, "GPFS", &[Workspace]),
    (0x564c, "NCP", &[Workspace]),
    (0x7375_7245, "Coda", &[Workspace]),
    (0x794c_7630, "overlayfs", &[Overlay]),
    (0xf15f, "eCryptfs", &[Overlay]),
    (0x4d44, "FAT", &[Overlay]),
    (0x2011_bab0, "exFAT", &[Overlay]),
];

/// Returns the name of the file system at `path` if it does not suit a use.
///
/// # Errors
///
/// Those of `statfs(2)`.
pub fn unsuitable(path: &Path, wanted: Use) -> io::Result<Option<&'static str>> {
    Ok(unsuitable_type(type_of(path)?, wanted))
}

/// Returns whether the file system at `path` is a FUSE file system whose process answers.
pub fn is_served_by_fuse(path: &Path) -> bool {
    type_of(path).is_ok_and(|kind| kind == FUSE)
}

fn type_of(path: &Path) -> io::Result<u32> {
    Ok(sys::file_system(path)?)
}

fn unsuitable_type(kind: u32, wanted: Use) -> Option<&'static str> {
    let is_unsuitable =
        |(number, _, uses): &&(u32, _, &[Use])| *number == kind && uses.contains(&wanted);
    let found = UNSUITABLE.iter().find(is_unsuitable);
    found.map(|(_, name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_suit_no_use() {
        for wanted in [MountCache, Overlay, Workspace] {
            assert_eq!(unsuitable_type(0x6969, wanted), Some("NFS"));
            assert_eq!(unsuitable_type(0x6573_5546, wanted), Some("FUSE"));
            // ext4
            assert_eq!(unsuitable_type(0xef53, wanted), None);
        }
    }

    #[test]
    fn some_file_systems_suit_some_uses() {
        assert_eq!(unsuitable_type(0x794c_7630, Overlay), Some("overlayfs"));
        assert_eq!(unsuitable_type(0x794c_7630, Workspace), None);
        assert_eq!(unsuitable_type(0x0bd0_0bd0, Workspace), Some("Lustre"));
        assert_eq!(unsuitable_type(0x0bd0_0bd0, MountCache), None);
    }
}
