//! A hash of a tree's metadata, to detect changes without reading contents.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Stat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::TreeError;
use super::scan::{Scan, Visit};

/// A hash of the names, inode numbers, modes, sizes and times of all files of a tree. Any change
/// through the file system changes it; corruption on the disk does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 16]);

impl Fingerprint {
    /// Creates a fingerprint from its stored bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the fingerprint, for storing it.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Computes the fingerprint of the tree at `root`. If nothing exists there, returns a fixed
    /// fingerprint.
    pub(super) fn of(root: &Path) -> Result<Self, TreeError> {
        let mut hash = Sha256::new();
        match rustix::fs::statat(CWD, root, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => hash.update(b"nothing"),
            Err(error) => return Err(error.into()),
            Ok(stat) => {
                note(&mut hash, &[], &stat);
                if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                    note_all(&mut hash, root)?;
                }
            }
        }
        let hash: [u8; 32] = hash.finalize().into();
        let mut first = [0; 16];
        first.copy_from_slice(&hash[..16]);
        Ok(Self(first))
    }
}

/// Hashes the entries below the directory `root`.
fn note_all(hash: &mut Sha256, root: &Path) -> Result<(), TreeError> {
    let mut scan = Scan::open(root, true)?;
    while let Some(visit) = scan.step()? {
        match visit {
            Visit::Entry { name, metadata } | Visit::Enter { name, metadata } => {
                note(hash, &[name, b"\0"], &metadata.0);
            }
            Visit::Leave => hash.update(b"end"),
            Visit::Unreadable { error, .. } => return Err(error),
        }
    }
    Ok(())
}

/// Adds a file to the hash. Leaves out the device number, which may change on reboot.
fn note(hash: &mut Sha256, name: &[&[u8]], stat: &Stat) {
    name.iter().for_each(|part| hash.update(part));
    hash.update(stat.st_mode.to_le_bytes());
    hash.update(stat.st_ino.to_le_bytes());
    hash.update(stat.st_size.to_le_bytes());
    hash.update(stat.st_mtime.to_le_bytes());
    hash.update(stat.st_mtime_nsec.to_le_bytes());
    hash.update(stat.st_ctime.to_le_bytes());
    hash.update(stat.st_ctime_nsec.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn every_change_shows() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        let mut seen = vec![Fingerprint::of(&root).unwrap()];
        assert_eq!(Fingerprint::of(&root).unwrap(), seen[0], "nothing is there");
        let deep = root.join("a/b/c");
        let is_new = |what: &str, seen: &mut Vec<Fingerprint>| {
            let now = Fingerprint::of(&root).unwrap();
            assert!(!seen.contains(&now), "{what}");
            assert_eq!(Fingerprint::of(&root).unwrap(), now, "it stays");
            seen.push(now);
        };
        fs::create_dir_all(&deep).unwrap();
        is_new("directories", &mut seen);
        fs::write(deep.join("file"), "1").unwrap();
        is_new("a file", &mut seen);
        // Wait: file times have the granularity of the kernel's tick.
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::write(deep.join("file"), "2").unwrap();
        is_new("contents of the same length", &mut seen);
        symlink("target", root.join("link")).unwrap();
        is_new("a link", &mut seen);
        fs::set_permissions(deep.join("file"), fs::Permissions::from_mode(0o755)).unwrap();
        is_new("a mode", &mut seen);
        fs::rename(root.join("a/b"), root.join("a/d")).unwrap();
        is_new("a name", &mut seen);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(Fingerprint::of(&root).unwrap(), seen[0]);
    }
}
