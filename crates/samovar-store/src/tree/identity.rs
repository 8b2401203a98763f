//! What tells a file or directory from another one put in its place.

use rustix::fs::Stat;

/// Which file, directory or link it is, and its state: another one has another identity, and so has
/// this one once its mode, its links or, of a directory, its entries were changed.
///
/// Says nothing about what lies deeper in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    device: u64,
    inode: u64,
    /// When the inode was last changed, in seconds and nanoseconds.
    changed: (i64, u64),
}

impl Identity {
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    /// What of it is worth writing down: not the device, whose number changes from one start of
    /// the machine to the next.
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
