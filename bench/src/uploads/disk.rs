//! The file system that receives the uploads.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::nginx;

/// Size of the file system. Its sparse file occupies only what is written.
const DISK_LEN: u64 = 8 << 30;

/// Number of inodes; mkfs would create fewer.
const INODE_COUNT: &str = "600000";

/// A directory for the servers' files: a new ext4 file system in a sparse file, because on a file
/// system from which many files were deleted, creating files can take much longer. Requires root;
/// otherwise an ordinary directory. Unmounted and removed on drop.
#[derive(Debug)]
pub(crate) struct Disk {
    dir: PathBuf,
    is_mounted: bool,
    /// Sentence for the report.
    pub(crate) remark: String,
    _scratch: TempDir,
}

impl Disk {
    /// Creates the directory below `parent`, as a file system of its own if `is_mounted` and if the
    /// machine permits it.
    pub(crate) fn new(parent: &Path, is_mounted: bool) -> Result<Self> {
        let scratch = tempfile::Builder::new()
            .prefix("samovar-bench-")
            .tempdir_in(parent)
            .with_context(|| format!("cannot write to {}", parent.display()))?;
        let dir = scratch.path().join("disk");
        fs::create_dir(&dir)?;
        let is_mounted = is_mounted && mount(scratch.path(), &dir).is_some();
        let remark = if is_mounted {
            "Files are on a new ext4 file system with a journal, in a loop-mounted sparse file."
        } else {
            "Files are in a directory of an existing file system."
        };
        Ok(Self {
            dir,
            is_mounted,
            remark: remark.into(),
            _scratch: scratch,
        })
    }

    /// Creates an empty directory. It is not removed before the end of the run, because deletions
    /// would slow down later measurements.
    pub(crate) fn new_folder(&self) -> io::Result<PathBuf> {
        Ok(tempfile::tempdir_in(&self.dir)?.keep())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            Command::new("umount").arg(&self.dir).status().ok();
        }
    }
}

/// Mounts a new file system in a file below `scratch` at `dir`; `None` if that is not possible.
fn mount(scratch: &Path, dir: &Path) -> Option<()> {
    let image = scratch.join("disk.img");
    File::create(&image).ok()?.set_len(DISK_LEN).ok()?;
    let mut make = Command::new(nginx::find("mkfs.ext4"));
    make.args(["-q", "-F", "-N", INODE_COUNT]);
    make.args(["-E", "lazy_itable_init=0,lazy_journal_init=0"]);
    let mut mount = Command::new("mount");
    mount.args(["-o", "loop"]);
    for command in [make.arg(&image), mount.arg(&image).arg(dir)] {
        let done = command.output().ok()?;
        if !done.status.success() {
            crate::progress(String::from_utf8_lossy(&done.stderr).trim_end());
            return None;
        }
    }
    Some(())
}
