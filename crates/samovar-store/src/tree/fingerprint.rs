//! A hash of a tree's metadata, to detect changes without reading contents.

use std::path::Path;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Stat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::TreeError;
use super::descent::{Descent, open_directory};
use super::directory::{Dents, Entries};

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
        let mut nodes = Nodes::default();
        match rustix::fs::statat(CWD, root, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => nodes.hash.update(b"nothing"),
            Err(error) => return Err(error.into()),
            Ok(stat) => {
                note(&mut nodes.hash, b"", &stat);
                if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                    nodes.walk(root)?;
                }
            }
        }
        let hash: [u8; 32] = nodes.hash.finalize().into();
        let mut first = [0; 16];
        first.copy_from_slice(&hash[..16]);
        Ok(Self(first))
    }
}

#[derive(Default)]
struct Nodes {
    hash: Sha256,
    descent: Descent,
    /// One level per directory of the descent, each with the index of its next entry.
    levels: Vec<(Entries, usize)>,
    dents: Dents,
}

impl Nodes {
    fn walk(&mut self, root: &Path) -> Result<(), TreeError> {
        self.enter(open_directory(CWD, root)?)?;
        while let Some((entries, next)) = self.levels.last_mut() {
            if *next == entries.count() && entries.has_more() {
                // The memory budget did not suffice for the whole directory: read its next part.
                entries.read_on(self.descent.innermost()?, &mut self.dents)?;
                *next = 0;
            }
            let index = *next;
            if index == entries.count() {
                self.hash.update(b"end");
                self.levels.pop();
                self.descent.leave()?;
                continue;
            }
            *next += 1;
            let parent = self.descent.innermost()?;
            let name = entries.c_name(index)?;
            let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let inner = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => Some(open_directory(parent, name)?),
                _ => None,
            };
            note(&mut self.hash, name.to_bytes_with_nul(), &stat);
            if let Some(directory) = inner {
                self.enter(directory)?;
            }
        }
        Ok(())
    }

    fn enter(&mut self, directory: OwnedFd) -> Result<(), TreeError> {
        let mut entries = Entries::default();
        entries.read(directory.as_fd(), &mut self.dents)?;
        self.descent.enter(directory)?;
        self.levels.push((entries, 0));
        Ok(())
    }
}

/// Adds a file to the hash. Leaves out the device number, which may change on reboot.
fn note(hash: &mut Sha256, name: &[u8], stat: &Stat) {
    hash.update(name);
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
