//! [`Scanned`]: the entries of a local directory, and the metadata with which changes are detected.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;
use samovar_store::{EntryType, Metadata, Scan, TreeError as WalkError, Visit};

use crate::entries::{Builder, Entries, Kind, Mtime};
use crate::read_error::ReadError;
use crate::root::is_temporary;

/// Name of the directory with the states of workspaces. Earlier versions kept the state of a
/// workspace in its root under this name. No snapshot contains this name, at any depth: the state
/// in it could name the server of an attacker.
pub const STATE_DIRECTORY: &str = ".samovar";

/// File in the root of a workspace whose time stamp is the clock of the file system, where that has
/// no unnamed files. Its name is that of a [temporary](is_temporary) entry.
pub const CLOCK: &str = ".samovar-tmp-000000000000c10c";

/// Maximum difference between the stamps of two changes at the same time: Linux takes them from a
/// clock that advances every 1 to 10 ms.
const GRANULARITY: Mtime = Mtime {
    seconds: 0,
    nanoseconds: 20_000_000,
};

/// The same if the clock of the file system is not known: two seconds is the coarsest granularity
/// of a file system, FAT's.
const GRANULARITY_UNKNOWN: Mtime = Mtime {
    seconds: 2,
    nanoseconds: 0,
};

/// Maximum length of [`Skipped::paths`].
const SKIPPED_PATHS_MAX: usize = 5;

/// The entries of a local directory, as a scan found them.
#[derive(Debug, Clone)]
pub struct Scanned {
    /// The directory, without symbolic links.
    pub root: PathBuf,
    /// The entries. The scan itself finds no digests.
    pub entries: Entries,
    /// Metadata of each entry, by index.
    pub states: Vec<FileState>,
    /// What the snapshot leaves out.
    pub skipped: Skipped,
    /// Files with a stamp (mtime or ctime) before this time have got a later stamp with any change
    /// since the scan. Files with another stamp may have changed without a visible sign.
    pub settled: Mtime,
}

/// Metadata of a file that changes whenever its contents change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileState {
    /// Length of the contents, in bytes.
    pub size: u64,
    /// Time of the last modification of the contents.
    pub mtime: Mtime,
    /// Time of the last change of contents or metadata. Programs cannot set it.
    pub ctime: Mtime,
    /// Inode number.
    pub inode: u64,
    /// Device number. It may change on reboot, so it says nothing about changes.
    pub device: u64,
}

/// Entries that a snapshot leaves out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Skipped {
    /// Number of sockets, FIFOs and devices.
    pub special: u64,
    /// Number of mount points, bind mounts included.
    pub mounts: u64,
    /// The first few paths, relative to the root.
    pub paths: Vec<PathBuf>,
}

impl FileState {
    /// Returns the state of a file with this metadata.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Self {
        let time = |(seconds, nanoseconds)| Mtime {
            seconds,
            nanoseconds,
        };
        let (device, inode) = metadata.file_id();
        Self {
            size: metadata.size(),
            mtime: time(metadata.mtime()),
            ctime: time(metadata.ctime()),
            inode,
            device,
        }
    }

    /// Returns whether the file is the same, with unchanged contents.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let key = |state: &Self| (state.size, state.mtime, state.ctime, state.inode);
        key(self) == key(other)
    }
}

impl Scanned {
    /// Reads the names and metadata of all entries below the directory `root`. Opens no files.
    ///
    /// Leaves out each [`STATE_DIRECTORY`]; [temporary](is_temporary) entries; sockets,
    /// FIFOs and devices; and mount points, bind mounts included. To learn the clock of the file
    /// system, the scan creates an unnamed file, or writes the one of [`prepare_clock`].
    ///
    /// # Errors
    ///
    /// [`ReadError::Io`] if an entry is unreadable; [`ReadError::Entry`] if a NAR cannot contain an
    /// entry; [`ReadError::Changed`].
    pub fn scan(root: &Path) -> Result<Self, ReadError> {
        let io_error = |reason| ReadError::Io {
            path: root.to_owned(),
            reason,
        };
        let root = root.canonicalize().map_err(io_error)?;
        if !root.is_dir() {
            return Err(io_error(std::io::ErrorKind::NotADirectory.into()));
        }
        let settled = settled(&root);
        let scan = Scan::open(&root, false).map_err(|error| walk_error(root.clone(), error))?;
        let top = FileState::of(scan.root());
        let mut scanner = Scanner {
            builder: Builder::new(scan.root().permissions(), top.mtime),
            root,
            path: Vec::new(),
            lens: Vec::new(),
            states: vec![top],
            skipped: Skipped::default(),
        };
        scanner.run(scan)?;
        let Scanner {
            builder,
            root,
            states,
            skipped,
            ..
        } = scanner;
        match builder.finish() {
            Ok(entries) => Ok(Self {
                root,
                entries,
                states,
                skipped,
                settled,
            }),
            Err(reason) => Err(ReadError::Entry { path: root, reason }),
        }
    }

    /// Returns the full path of an entry.
    #[must_use]
    pub fn path(&self, index: usize) -> PathBuf {
        match index {
            0 => self.root.clone(),
            _ => self.root.join(OsStr::from_bytes(&self.entries.path(index))),
        }
    }

    /// Returns the indices of the files without a digest.
    pub fn files_without_digest(&self) -> impl Iterator<Item = usize> + '_ {
        let list = self.entries.list().iter().enumerate();
        list.filter(|(_, entry)| matches!(entry.kind, Kind::File { digest: None, .. }))
            .map(|(index, _)| index)
    }
}

struct Scanner {
    root: PathBuf,
    builder: Builder,
    /// Path of the current directory, relative to the root.
    path: Vec<u8>,
    /// Length of the path of each open directory below the root.
    lens: Vec<usize>,
    states: Vec<FileState>,
    skipped: Skipped,
}

impl Scanner {
    fn run(&mut self, mut scan: Scan) -> Result<(), ReadError> {
        // Number of open directories of the state directory, which is left out.
        let mut ignored_depth = 0_usize;
        loop {
            // Copied, because reading the target of a link needs the scan.
            let (name, metadata, is_entered) = match scan.step() {
                Err(error) => return Err(self.walk_error(b"", error)),
                Ok(None) => return Ok(()),
                Ok(Some(Visit::Leave)) if ignored_depth > 0 => {
                    ignored_depth -= 1;
                    continue;
                }
                Ok(Some(Visit::Leave)) => {
                    self.leave()?;
                    continue;
                }
                Ok(Some(Visit::Unreadable { name, error })) => {
                    if ignored_depth > 0 || Self::is_left_out(name) {
                        continue;
                    }
                    return Err(self.walk_error(name, error));
                }
                Ok(Some(Visit::Entry { name, metadata })) => (name, metadata, false),
                Ok(Some(Visit::Enter { name, metadata })) => (name, metadata, true),
            };
            if ignored_depth > 0 || Self::is_left_out(name) {
                ignored_depth += usize::from(is_entered);
                continue;
            }
            let state = FileState::of(&metadata);
            let mode = metadata.permissions();
            let added = match metadata.entry_type() {
                EntryType::Directory if is_entered => {
                    let entered = self.builder.enter(name, mode, state.mtime);
                    entered.map_err(|source| self.entry_error(name, source))?;
                    self.enter(name);
                    true
                }
                EntryType::Directory => {
                    self.skipped.mounts += 1;
                    false
                }
                EntryType::Special => {
                    self.skipped.special += 1;
                    false
                }
                EntryType::File => {
                    let size = state.size;
                    let added = self.builder.file(name, mode, state.mtime, size, None);
                    added.map_err(|source| self.entry_error(name, source))?;
                    true
                }
                EntryType::Symlink => {
                    let name = name.to_vec();
                    let target = scan.link_last();
                    let target = target.map_err(|error| self.walk_error(&name, error))?;
                    let added = self.builder.symlink(&name, state.mtime, &target);
                    added.map_err(|source| self.entry_error(&name, source))?;
                    self.states.push(state);
                    continue;
                }
            };
            if added {
                self.states.push(state);
            } else if self.skipped.paths.len() < SKIPPED_PATHS_MAX {
                let path = PathBuf::from(OsStr::from_bytes(&self.path));
                self.skipped.paths.push(path.join(OsStr::from_bytes(name)));
            }
        }
    }

    /// Returns whether an entry is left out because Samovar itself has written it.
    fn is_left_out(name: &[u8]) -> bool {
        name == STATE_DIRECTORY.as_bytes() || is_temporary(name)
    }

    fn enter(&mut self, name: &[u8]) {
        self.lens.push(self.path.len());
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
    }

    fn leave(&mut self) -> Result<(), ReadError> {
        self.path.truncate(self.lens.pop().unwrap_or_default());
        let left = self.builder.leave();
        left.map_err(|source| self.entry_error(b"", source))?;
        Ok(())
    }

    /// Returns the full path of an entry of the current directory; that of the directory itself for
    /// an empty name.
    fn full_path(&self, name: &[u8]) -> PathBuf {
        let mut path = self.root.clone();
        for part in [&self.path, name] {
            if !part.is_empty() {
                path.push(OsStr::from_bytes(part));
            }
        }
        path
    }

    fn entry_error(&self, name: &[u8], source: crate::entries::TreeError) -> ReadError {
        let path = self.full_path(name);
        ReadError::Entry {
            path,
            reason: source,
        }
    }

    fn walk_error(&self, name: &[u8], error: WalkError) -> ReadError {
        walk_error(self.full_path(name), error)
    }
}

fn walk_error(path: PathBuf, error: WalkError) -> ReadError {
    match error {
        WalkError::Vanished | WalkError::Changed => ReadError::Changed(path),
        WalkError::Io(reason) => ReadError::Io { path, reason },
        other => ReadError::Io {
            path,
            reason: other.into(),
        },
    }
}

/// Returns the value of [`Scanned::settled`] for a scan that begins now.
fn settled(root: &Path) -> Mtime {
    match file_system_clock(root) {
        Ok(time) => time.minus(GRANULARITY),
        Err(_) => local_clock().minus(GRANULARITY_UNKNOWN),
    }
}

/// Returns the time of the clock that stamps the files: that of the server on a network file
/// system, which may differ from the local clock.
fn file_system_clock(root: &Path) -> Result<Mtime, WalkError> {
    let clock = match unnamed_file(root) {
        Ok(file) => file,
        Err(_) => clock_file(root, OFlags::empty())?,
    };
    let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let now = Timestamps {
        last_access: time(UTIME_OMIT),
        last_modification: time(UTIME_NOW),
    };
    rustix::fs::futimens(&clock, &now)?;
    Ok(FileState::of(&Metadata::of(&clock)?).mtime)
}

/// Creates the file with which a scan learns the clock of the file system, unless that has unnamed
/// files.
///
/// # Errors
///
/// Those of `open(2)`. Without the file, scans are right, but hash recently changed files again.
pub fn prepare_clock(root: &Path) -> std::io::Result<()> {
    match unnamed_file(root) {
        Ok(_) => Ok(()),
        Err(_) => Ok(clock_file(root, OFlags::CREATE).map(drop)?),
    }
}

fn unnamed_file(root: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, root, flags, Mode::RUSR | Mode::WUSR)
}

fn clock_file(root: &Path, more: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | more;
    rustix::fs::openat(CWD, root.join(CLOCK), flags, Mode::RUSR | Mode::WUSR)
}

fn local_clock() -> Mtime {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default();
    Mtime {
        seconds: i64::try_from(now.as_secs()).unwrap_or_default(),
        nanoseconds: now.subsec_nanos(),
    }
}

impl Mtime {
    pub(crate) fn minus(self, other: Self) -> Self {
        let borrow = self.nanoseconds < other.nanoseconds;
        let seconds = self.seconds.saturating_sub(other.seconds);
        let second = if borrow { 1_000_000_000 } else { 0 };
        Self {
            seconds: seconds.saturating_sub(i64::from(borrow)),
            nanoseconds: self.nanoseconds + second - other.nanoseconds,
        }
    }
}
