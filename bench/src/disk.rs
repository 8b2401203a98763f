//! File systems for the files of servers and clients.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;
use testkit::wait::holds_within;

use crate::nginx;

/// Size of the file system. Its sparse file occupies only what is written.
const DISK_LEN: u64 = 8 << 30;

/// Number of inodes; mkfs would create fewer.
const INODE_COUNT: &str = "1200000";

/// Maximum time that unmounting may take.
const UNMOUNT_MAX: Duration = Duration::from_secs(10);

/// A directory for the files of servers or clients: a new ext4 file system in a sparse file,
/// because on a file system from which many files were deleted, creating files can take much
/// longer. Requires root; otherwise an ordinary directory. Unmounted and removed on drop.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) dir: PathBuf,
    pub(crate) is_mounted: bool,
    /// Sentence for the report.
    pub(crate) remark: String,
    _scratch: TempDir,
}

impl Disk {
    /// Creates the directory below `parent`, as a file system of its own with these mount `options`
    /// (separated by commas, perhaps none) if there are any and if the machine permits it.
    pub(crate) fn new(parent: &Path, options: Option<&str>) -> Result<Self> {
        let scratch = tempfile::Builder::new()
            .prefix("samovar-bench-")
            .tempdir_in(parent)
            .with_context(|| format!("cannot write to {}", parent.display()))?;
        let dir = scratch.path().join("disk");
        fs::create_dir(&dir)?;
        let mounted = options.and_then(|options| mount(scratch.path(), &dir, options));
        let is_mounted = mounted.is_some();
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

    /// Returns the number of flushes that the disk has completed so far; `None` if the kernel does
    /// not count them for this file system alone.
    pub(crate) fn flush_count(&self) -> Option<u64> {
        const FLUSHES: usize = 15;
        let device = fs::metadata(&self.dir).ok()?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let path = format!("/sys/dev/block/{major}:{minor}/stat");
        let counts = self.is_mounted.then(|| fs::read_to_string(path).ok())??;
        counts.split_whitespace().nth(FLUSHES)?.parse().ok()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            // A process that was just stopped may have files open.
            let unmount = || Command::new("umount").arg(&self.dir).output();
            let is_done = || unmount().is_ok_and(|done| done.status.success());
            if !holds_within(UNMOUNT_MAX, is_done) {
                crate::progress(&format!("cannot unmount {}", self.dir.display()));
            }
        }
    }
}

/// Mounts a new file system in a file below `scratch` at `dir`; `None` if that is not possible.
fn mount(scratch: &Path, dir: &Path, options: &str) -> Option<()> {
    let image = scratch.join("disk.img");
    File::create(&image).ok()?.set_len(DISK_LEN).ok()?;
    let mut make = Command::new(nginx::find("mkfs.ext4"));
    make.args(["-q", "-F", "-O", "has_journal", "-N", INODE_COUNT]);
    make.args(["-E", "lazy_itable_init=0,lazy_journal_init=0"]);
    let mut mount = Command::new("mount");
    mount.args(["-o", &format!("loop,{options}")]);
    for command in [make.arg(&image), mount.arg(&image).arg(dir)] {
        let done = command.output().ok()?;
        if !done.status.success() {
            crate::progress(String::from_utf8_lossy(&done.stderr).trim_end());
            return None;
        }
    }
    Some(())
}
