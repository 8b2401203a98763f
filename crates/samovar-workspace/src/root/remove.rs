//! Removal of entries.

use std::io;

use rustix::fs::{AtFlags, FileType, Mode};
use rustix::io::Errno;

use super::{Root, read_names};
use crate::sys;

impl Root {
    /// Removes a file or symbolic link.
    ///
    /// # Errors
    ///
    /// Those of `unlink(2)`.
    pub fn remove_file(&self, path: &[u8]) -> io::Result<()> {
        self.in_parent(path, sys::unlink)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// Those of `rmdir(2)`.
    pub fn remove_directory(&self, path: &[u8]) -> io::Result<()> {
        self.in_parent(path, |parent, name| {
            rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
        })
    }

    /// Removes an entry, and all entries below it if it is a directory. Directories whose mode does
    /// not permit this get another mode first. The files of mount points stay.
    ///
    /// # Errors
    ///
    /// Those of `unlink(2)`, `rmdir(2)`, `open(2)` and `getdents64(2)`;
    /// [`io::ErrorKind::CrossesDevices`] for a mount point. Some entries may have been removed
    /// then.
    pub fn remove_all(&self, path: &[u8]) -> io::Result<()> {
        match self.remove_file(path) {
            Err(error) if is_directory(&error) => {}
            removed => return removed,
        }
        // The last path is the directory to empty; its parents precede it.
        let mut open = vec![path.to_vec()];
        while let Some(path) = open.last() {
            let subdirectories = self.empty(path)?;
            if subdirectories.is_empty() {
                self.remove_directory(path)?;
                open.pop();
            } else {
                open.extend(subdirectories);
            }
        }
        Ok(())
    }

    /// Removes the entries of a directory. Returns the paths of its subdirectories, which remain.
    fn empty(&self, path: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.permit(path)?;
        let directory = self.directory(path)?;
        let mut subdirectories = Vec::new();
        for (name, file_type) in read_names(&directory)? {
            let removed = match file_type {
                FileType::Directory => Err(Errno::ISDIR.into()),
                _ => directory.remove_file(&name),
            };
            match removed {
                Err(error) if is_directory(&error) => {
                    subdirectories.push([path, b"/", &name[..]].concat());
                }
                // Another process has removed the entry.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        Ok(subdirectories)
    }

    /// Permits the owner to read and change a directory.
    fn permit(&self, path: &[u8]) -> io::Result<()> {
        let fd = self.open_at(path, sys::LOCATE_DIRECTORY, 0)?;
        let mode = Mode::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
        match mode.contains(Mode::RWXU) {
            true => Ok(()),
            false => Ok(sys::set_mode(&fd, Mode::RWXU)?),
        }
    }
}

/// Returns whether `unlink` has failed because the entry is a directory.
fn is_directory(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::IsADirectory
}
