//! [`Replacement`]: a file that atomically replaces another one.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};

use super::{Attributes, Root, create_symlink, set_open_attributes, split};
use crate::entries::Mtime;

/// Start of the names of files that are not complete.
const TEMPORARY: &str = ".samovar-tmp-";

/// Part of the names of directories that are not complete, after the name of the destination.
pub(crate) const MARK: &[u8] = b".samovar-";

/// Number of hexadecimal digits at the end of a temporary name.
pub(crate) const DIGITS_LEN: usize = 16;

/// A new file that is not complete. [`commit`](Self::commit) gives the file its name; dropping the
/// value removes the file.
#[derive(Debug)]
pub struct Replacement<'a> {
    root: &'a Root,
    path: Vec<u8>,
    temporary: Temporary<'a>,
    file: File,
}

/// The path of an entry with a temporary name, which is removed on drop.
#[derive(Debug)]
struct Temporary<'a> {
    root: &'a Root,
    path: Vec<u8>,
    is_renamed: bool,
}

/// Returns whether this is the temporary name of an incomplete file, or of a directory into which
/// an archive is [unpacked](crate::unpack::unpack).
///
/// Such an entry is no part of a snapshot. It may be the left-over of a process that was killed.
#[must_use]
pub fn is_temporary(name: &[u8]) -> bool {
    name.split_last_chunk::<DIGITS_LEN>()
        .is_some_and(|(start, digits)| {
            let is_file = start == TEMPORARY.as_bytes();
            let is_directory = start.starts_with(b".") && start.ends_with(MARK);
            (is_file || is_directory) && digits.iter().all(u8::is_ascii_hexdigit)
        })
}

/// Returns a number that no other process can guess.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}

impl Root {
    /// Starts a file that will replace the regular file or symbolic link at this path, or create
    /// one. Until [`Replacement::commit`] it has a temporary name in the same directory.
    ///
    /// # Errors
    ///
    /// Those of `open(2)`.
    pub fn replace_file(&self, path: &[u8]) -> io::Result<Replacement<'_>> {
        let temporary = Temporary::beside(self, path);
        let file = self.create_file(&temporary.path, 0o600)?;
        Ok(Replacement {
            root: self,
            path: path.to_vec(),
            temporary,
            file,
        })
    }

    /// Writes a file, and atomically replaces the regular file or symbolic link at this path, or
    /// creates one. Returns the number of bytes written. Does not write them to stable storage: see
    /// [`sync`](Self::sync).
    ///
    /// # Errors
    ///
    /// Those of `content` and of the file system. The path is unchanged then.
    pub fn write_file(
        &self,
        path: &[u8],
        content: &mut dyn Read,
        attributes: Attributes,
    ) -> io::Result<u64> {
        let mut replacement = self.replace_file(path)?;
        let len = io::copy(content, &mut replacement.file)?;
        replacement.commit(attributes)?;
        Ok(len)
    }

    /// Atomically replaces the regular file or symbolic link at this path by a symbolic link, or
    /// creates one.
    ///
    /// # Errors
    ///
    /// Those of `symlink(2)` and `rename(2)`.
    pub fn write_symlink(
        &self,
        path: &[u8],
        target: &[u8],
        mtime: Option<Mtime>,
    ) -> io::Result<()> {
        let temporary = Temporary::beside(self, path);
        self.in_parent(&temporary.path, |parent, name| {
            create_symlink(parent, name, target, mtime)
        })?;
        temporary.rename_to(path)
    }
}

impl Replacement<'_> {
    /// Sets the attributes of the file, and atomically gives it its name.
    ///
    /// # Errors
    ///
    /// Those of `fchmod(2)`, `futimens(2)` and `rename(2)`. The path is unchanged then.
    pub fn commit(self, attributes: Attributes) -> io::Result<()> {
        set_open_attributes(&self.file, attributes)?;
        self.temporary.rename_to(&self.path)
    }

    /// Returns the directory below which the file is.
    #[must_use]
    pub fn root(&self) -> &Root {
        self.root
    }
}

impl Write for Replacement<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> Temporary<'a> {
    /// Chooses a temporary name in the directory of `path`.
    fn beside(root: &'a Root, path: &[u8]) -> Self {
        let name = format!("{TEMPORARY}{:0DIGITS_LEN$x}", random());
        let path = match split(path) {
            (Some(parent), _) => [parent, b"/", name.as_bytes()].concat(),
            (None, _) => name.into_bytes(),
        };
        Self {
            root,
            path,
            is_renamed: false,
        }
    }

    fn rename_to(mut self, path: &[u8]) -> io::Result<()> {
        let from = split(&self.path).1;
        self.root.in_parent(path, |parent, name| {
            rustix::fs::renameat(parent, from, parent, name)
        })?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.is_renamed {
            // The file may not exist. If it cannot be removed, its name marks it as temporary.
            self.root.remove_file(&self.path).ok();
        }
    }
}
