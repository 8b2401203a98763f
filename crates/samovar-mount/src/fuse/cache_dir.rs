//! [`CacheDir`]: the directory with the files of mounted snapshots, and its limit.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, anyhow, bail};
use samovar_client::failed::Failed;
use samovar_client::notice::notice;
use samovar_client::user_dirs::{self, create_private};
use samovar_text::human;
use samovar_workspace::disk::{Use, unsuitable};

/// Environment variable that names the cache directory.
const VARIABLE: &str = "SAMOVAR_CACHE_DIR";

/// Maximum size of the cache, unless the command line states another one.
pub const SIZE_DEFAULT: u64 = 20 << 30;

/// The directory with the files of all snapshots that were mounted, a folder for each.
#[derive(Debug, Clone)]
pub struct CacheDir {
    path: PathBuf,
    /// In bytes.
    size_max: u64,
}

impl CacheDir {
    /// Opens the cache directory of the user, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// The directory cannot be created, or is on a network file system.
    pub fn open(size_max: u64) -> anyhow::Result<Self> {
        Self::at(locate()?, size_max)
    }

    pub(super) fn at(path: PathBuf, size_max: u64) -> anyhow::Result<Self> {
        create_private(&path).with_context(|| {
            format!("cannot create the cache directory {path:?}: set {VARIABLE} to another one")
        })?;
        let kind = unsuitable(&path, Use::MountCache)
            .with_context(|| format!("cannot read the type of the file system of {path:?}"))?;
        if let Some(kind) = kind {
            let error = anyhow!(
                "the cache directory {path:?} is on {kind}, which would be slower than the mount: \
                 set {VARIABLE} to a directory on a local disk, such as /var/tmp/samovar-$USER"
            );
            return Err(Failed::Usage.because(error));
        }
        Ok(Self { path, size_max })
    }

    /// Returns the path of a file that belongs to no snapshot.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the path of the folder of a snapshot.
    pub(super) fn folder(&self, name: &str) -> PathBuf {
        self.path.join("snapshots").join(name)
    }

    /// Opens the folder of a snapshot. Calls `prepare` with the folder, unless other processes use
    /// the folder: they have called `prepare` before. Returns the folder with its shared lock.
    ///
    /// # Errors
    ///
    /// The folder cannot be created or locked. Errors of `prepare`.
    pub(super) fn snapshot(
        &self,
        name: &str,
        mut prepare: impl FnMut(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<(PathBuf, File)> {
        let dir = self.folder(name);
        let failed = || format!("cannot open the cache directory {dir:?}");
        loop {
            create_private(&dir).with_context(failed)?;
            let lock = open_lock(&dir).with_context(failed)?;
            match lock.try_lock() {
                Ok(()) => prepare(&dir)?,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error).with_context(failed),
            }
            // Waits while another process prepares the folder. If this process had the exclusive
            // lock, another process may get the lock at this moment, and remove the folder.
            lock.lock_shared().with_context(failed)?;
            if is_lock_of(&lock, &dir) && dir.join("marks").exists() {
                lock.set_modified(SystemTime::now()).ok();
                return Ok((dir, lock));
            }
        }
    }

    /// Removes the least recently used snapshots that are not mounted, until there is room for
    /// another one of `len` bytes. `name`: the folder of the new one, which stays.
    ///
    /// # Errors
    ///
    /// There is not enough room.
    pub(super) fn make_room(&self, len: u64, name: &str) -> anyhow::Result<()> {
        let size_max = self.size_max;
        if len > size_max {
            let (len, max) = (human(len), human(size_max));
            bail!(
                "the snapshot has {len} uncompressed, and the cache is limited to {max}: give a \
                 larger --cache-size"
            );
        }
        let mut found = Vec::new();
        let folders = fs::read_dir(self.path.join("snapshots"));
        for folder in folders.into_iter().flatten().flatten() {
            let dir = folder.path();
            let used = fs::metadata(dir.join("lock")).and_then(|lock| lock.modified());
            let size = size(&dir);
            if folder.file_name() != name {
                found.push((used.unwrap_or(SystemTime::UNIX_EPOCH), size, dir));
            }
        }
        found.sort();
        let mut used: u64 = found.iter().map(|(_, size, _)| size).sum();
        for (_, size, dir) in found {
            if used + len <= size_max {
                break;
            }
            if remove(&dir) {
                used -= size;
            }
        }
        if used + len > size_max {
            let (used, len, max) = (human(used), human(len), human(size_max));
            notice(&format!(
                "the mounted snapshots in {:?} take {used}; with this one of {len} they may \
                 exceed the limit of {max}",
                self.path
            ));
        }
        Ok(())
    }
}

fn locate() -> anyhow::Result<PathBuf> {
    if let Some(dir) = user_dirs::variable(VARIABLE) {
        return Ok(dir);
    }
    let dir = user_dirs::cache().with_context(|| {
        format!("HOME is not set, so there is no cache directory: set {VARIABLE}")
    })?;
    Ok(dir.join("samovar/mount"))
}

/// Returns the size of the files in a folder on the disk, also of unfinished downloads.
fn size(dir: &Path) -> u64 {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let blocks = files.filter_map(|file| Some(file.metadata().ok()?.blocks()));
    blocks.sum::<u64>() * 512
}

fn open_lock(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(dir.join("lock"))
}

/// Returns whether `lock` is the lock file of this folder. It is not if the folder was removed.
fn is_lock_of(lock: &File, dir: &Path) -> bool {
    let ids = |found: io::Result<fs::Metadata>| found.ok().map(|file| (file.dev(), file.ino()));
    let named = ids(fs::metadata(dir.join("lock")));
    named.is_some() && named == ids(lock.metadata())
}

/// Removes the folder of a snapshot, unless it is mounted. Returns whether it was removed.
fn remove(dir: &Path) -> bool {
    let Ok(lock) = open_lock(dir) else {
        return false;
    };
    // The lock file goes last, so that no other process uses the folder in the meantime.
    let removed = lock.try_lock().is_ok() && {
        let names = fs::read_dir(dir).into_iter().flatten().flatten();
        for name in names.filter(|name| name.file_name() != "lock") {
            fs::remove_file(name.path()).ok();
        }
        fs::remove_file(dir.join("lock")).is_ok()
    };
    removed && fs::remove_dir(dir).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;
    use std::time::Duration;

    use super::*;

    /// Fills the folder of a snapshot with a NAR of this length.
    fn fill(dir: &Path, len: usize) -> anyhow::Result<()> {
        fs::write(dir.join("nar"), vec![1; len])?;
        fs::write(dir.join("marks"), "")?;
        Ok(())
    }

    #[test]
    fn a_folder_is_prepared_while_no_other_process_uses_it() {
        let dir = tempfile::tempdir().unwrap();
        let cache = CacheDir::at(dir.path().join("a/b"), 1 << 20).unwrap();
        let mut count = 0;
        let mut open = || {
            cache.snapshot("x", |dir| {
                count += 1;
                fill(dir, 1)
            })
        };
        let first = open().unwrap();
        let second = open().unwrap();
        assert_eq!(first.0, second.0);
        drop((first, second));
        open().unwrap();
        assert_eq!(count, 2);
        assert!(cache.snapshot("y", |_| bail!("no")).is_err());
    }

    #[test]
    fn the_least_recently_used_snapshots_are_removed_unless_they_are_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let cache = CacheDir::at(dir.path().to_owned(), 1 << 20).unwrap();
        let third = 300 << 10;
        let now = SystemTime::now();
        let mut mounted = Vec::new();
        for (age, name) in [(30, "mounted"), (20, "old"), (10, "new")] {
            let (_, lock) = cache.snapshot(name, |dir| fill(dir, third)).unwrap();
            lock.set_modified(now - Duration::from_secs(age)).unwrap();
            if name == "mounted" {
                mounted.push(lock);
            }
        }
        let has = |name: &str| dir.path().join("snapshots").join(name).exists();
        cache.make_room(100 << 10, "another").unwrap();
        assert!(has("mounted") && has("old") && has("new"));
        cache.make_room(third as u64, "another").unwrap();
        assert!(has("mounted") && !has("old") && has("new"));
        // Only the mounted one and the named one are left.
        cache.make_room(1 << 20, "new").unwrap();
        assert!(has("mounted") && has("new"));
        let error = cache.make_room((1 << 20) + 1, "new").unwrap_err();
        assert!(error.to_string().contains("--cache-size"), "{error}");
    }

    #[test]
    fn a_removed_folder_is_created_again() {
        let dir = tempfile::tempdir().unwrap();
        let cache = CacheDir::at(dir.path().to_owned(), 1 << 20).unwrap();
        let mut is_first = true;
        let (folder, lock) = cache
            .snapshot("x", |dir| {
                // The folder vanishes while it is prepared.
                if std::mem::take(&mut is_first) {
                    fs::remove_dir_all(dir)?;
                    return Ok(());
                }
                fill(dir, 1)
            })
            .unwrap();
        assert!(folder.join("nar").exists());
        assert!(lock.read_at(&mut [0], 0).is_ok());
    }
}
