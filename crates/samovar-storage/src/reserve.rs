//! The reserve: files that occupy space on the disk, so that tokens can be revoked and data can be
//! deleted when the disk is full.
//!
//! The files of the reserve are deleted when the storage is opened, or the collector starts, and
//! the free space is less than the reserve. While the reserve is missing, uploads leave as much
//! space free. The background thread of a server creates the reserve again when the free space is
//! twice its size.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate, statvfs};

use crate::error::is_full;
use crate::layout::TMP;

/// Directory of the files.
const RESERVE: &str = ".samovar/reserve";

/// Maximum length of the first file, in bytes. The write-ahead log of the database needs the most:
/// it has 4 MiB when SQLite copies it into the database.
const LEN_MAX: u64 = 16 << 20;

/// The length of the first file is at most the size of the disk divided by this.
const DISK_SHARE: u64 = 8;

/// Number of files. The others are empty and hold inodes: the database has two more files while it
/// is open, and the trial of the disk needs one.
const COUNT: usize = 4;

/// Length that is written to find out whether the disk has space, in bytes.
const TRIAL_LEN: usize = 256 << 10;

/// Whether the reserve of a storage exists, and the space on its disk.
struct State {
    is_made: bool,
    /// Length of the first file, in bytes. 0: the size of the disk is unknown.
    len: u64,
    /// Whether the disk has more than once, and more than twice, the space of the reserve.
    has_room: bool,
    has_much_room: bool,
}

impl State {
    fn of(root: &Path) -> io::Result<Self> {
        let disk = statvfs(root)?;
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        let len = LEN_MAX.min(bytes(disk.f_blocks) / DISK_SHARE);
        let file = fs::metadata(root.join(RESERVE).join("0"));
        // A copy of the storage may have a hole instead of the file's blocks.
        let is_made = file.is_ok_and(|file| file.blocks().saturating_mul(512) >= len);
        let (free, inodes) = (bytes(disk.f_bavail), disk.f_favail);
        // Some file systems have no fixed number of inodes, and state 0.
        let has = |factor: u64| {
            free >= len * factor && (disk.f_files == 0 || inodes > COUNT as u64 * factor)
        };
        Ok(Self {
            is_made,
            len,
            has_room: has(1),
            has_much_room: has(2),
        })
    }
}

/// Makes the reserve if it does not exist and the disk has twice its space.
pub(crate) fn make(root: &Path) -> io::Result<()> {
    let state = State::of(root)?;
    if state.is_made || state.len == 0 || !state.has_much_room {
        return Ok(());
    }
    let directory = root.join(RESERVE);
    // Only where a storage is: another directory may have taken its place.
    match fs::create_dir(&directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    for number in 1..COUNT {
        File::create(directory.join(number.to_string()))?;
    }
    let mut file = tempfile::NamedTempFile::new_in(root.join(TMP))?;
    // Compression must not shrink the file, so random bytes are written if blocks cannot be had
    // without writing.
    if fallocate(&file, FallocateFlags::empty(), 0, state.len).is_err()
        || file.as_file().metadata()?.blocks().saturating_mul(512) < state.len
    {
        file.as_file().set_len(0)?;
        io::copy(&mut File::open("/dev/urandom")?.take(state.len), &mut file)?;
    }
    file.persist(directory.join("0"))
        .map_err(|error| error.error)?;
    Ok(())
}

/// Gives the reserve back if the disk is full.
pub(crate) fn give_back(root: &Path) {
    let directory = root.join(RESERVE);
    if !directory.exists() {
        return;
    }
    let has_room = State::of(root).is_ok_and(|state| state.has_room);
    // The limit of a user, which the numbers above do not include, may be reached.
    if has_room && can_write(root) {
        return;
    }
    for number in 0..COUNT {
        // Ignore errors: what needs the space will fail and say why.
        fs::remove_file(directory.join(number.to_string())).ok();
    }
}

fn can_write(root: &Path) -> bool {
    let file = tempfile::NamedTempFile::new_in(root.join(TMP));
    let written = file.and_then(|mut file| file.write_all(&[0; TRIAL_LEN]));
    match written {
        Err(error) => !is_full(&error),
        Ok(()) => true,
    }
}

/// Returns whether uploads into a storage leave the space and the inodes free that were reserved.
/// If not, they are refused.
#[must_use]
pub fn has_room(root: &Path) -> bool {
    check_room(root).is_ok()
}

/// Fails if an upload would use the space that was reserved.
pub(crate) fn check_room(root: &Path) -> io::Result<()> {
    let state = State::of(root)?;
    match state.is_made || state.len == 0 || state.has_room {
        true => Ok(()),
        false => Err(rustix::io::Errno::NOSPC.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_where_no_storage_is() {
        let root = tempfile::tempdir().unwrap();
        make(root.path()).unwrap_err();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
        fs::create_dir_all(root.path().join(TMP)).unwrap();
        make(root.path()).unwrap();
        assert!(root.path().join(RESERVE).join("0").exists());
    }
}
