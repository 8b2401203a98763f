//! File systems in memory that are too small.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it has not tested"
)]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

/// A mounted file system in memory. Dropping it unmounts it.
pub(crate) struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// Mounts a file system with these options of tmpfs. Returns `None`, after printing the reason,
    /// if this machine does not permit it.
    pub(crate) fn new(options: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let data = CString::new(options).unwrap();
        match mount("none", dir.path(), "tmpfs", MountFlags::empty(), &*data) {
            Ok(()) => Some(Self(dir)),
            Err(error) => {
                println!("not tested: no file system can be mounted here: {error}");
                None
            }
        }
    }

    /// Changes the options.
    pub(crate) fn resize(&self, options: &str) {
        let data = CString::new(options).unwrap();
        mount_remount(self.path(), MountFlags::empty(), &*data).unwrap();
    }

    /// Fills the file system with a file. Leaves this number of bytes free.
    pub(crate) fn fill(&self, free_len: u64) -> PathBuf {
        let disk = rustix::fs::statvfs(self.path()).unwrap();
        let file = self.path().join("filler");
        let len = disk.f_bavail * disk.f_frsize - free_len;
        fs::write(&file, vec![1; usize::try_from(len).unwrap()]).unwrap();
        file
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        unmount(self.path(), UnmountFlags::DETACH).ok();
    }
}
