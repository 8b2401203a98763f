//! [`Identity`]: distinguishes a file from another one put in its place.

use rustix::fs::Stat;

use crate::sys;

/// Device, inode and change time of a file, directory or link. Differs for a replaced file, and for
/// one whose mode, links or (for a directory) entries were changed.
///
/// Does not cover the contents of subdirectories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    device: u64,
    inode: u64,
    /// Change time of the inode, in seconds and nanoseconds.
    changed: (i64, u64),
}

impl Identity {
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            device: sys::device(stat),
            inode: stat.st_ino,
            changed: sys::change_time(stat),
        }
    }

    /// Inode and change time, for storing. Leaves out the device number: it may change on reboot.
    #[must_use]
    pub fn lasting_bytes(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        let (seconds, nanoseconds) = self.changed;
        bytes[..8].copy_from_slice(&self.inode.to_le_bytes());
        bytes[8..16].copy_from_slice(&seconds.to_le_bytes());
        bytes[16..].copy_from_slice(&nanoseconds.to_le_bytes());
        bytes
    }
}
