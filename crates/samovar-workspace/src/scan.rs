//! [`Scanned`]: the entries of a local directory, and the metadata with which changes are detected.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;
use samovar_store::{EntryType, Metadata, Scan, TreeError as WalkError, Visit};

use crate::entries::{Builder, Entries, Kind, Mtime};
use crate::mounts::points_below;
use crate::read_error::ReadError;
use crate::root::{Root, is_temporary};
use crate::sys;

/// Name of the directory with the states of workspaces. Earlier versions kept the state of a
/// workspace in its root under this name. No snapshot contains this name, at any depth: a state in
/// a snapshot could name the server of an attacker.
pub const STATE_DIRECTORY: &str = ".samovar";

/// File in the root of a workspace, if the file system has no unnamed files. Its time stamp shows
/// the clock of the file system. It has the name of a [temporary](is_temporary) entry.
pub const CLOCK: &str = ".samovar-tmp-000000000000c10c";

/// Permission bits of a file that everybody may read.
const READABLE: u16 = 0o444;

/// Maximum difference between the stamps of two changes at the same time: Linux takes them from a
/// clock that advances every 1 to 10 ms.
const GRANULARITY: Mtime = Mtime {
    seconds: 0,
    nanoseconds: 20_000_000,
};

/// The maximum difference if the clock of the file system is not known: two seconds is the coarsest
/// granularity of a file system, FAT's.
const GRANULARITY_UNKNOWN: Mtime = Mtime {
    seconds: 2,
    nanoseconds: 0,
};

/// Types of file systems (`f_type` of `statfs(2)`) that take the times of their files from the
/// clock of this machine.
///
/// # Source
///
/// Linux, `include/uapi/linux/magic.h`; of ZFS and bcachefs their own sources.
const LOCAL: [u64; 8] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0xf2f5_2010, // F2FS
    0x0102_1994, // tmpfs
    0x794c_7630, // overlayfs
    0x2fc1_2fc1, // ZFS
    0xca45_1a4e, // bcachefs
];

/// The first entries of [`LOCAL`], as many as this number, give a file new times whenever a program
/// stores to a mapped page of the file that was written to the disk before. Other file systems,
/// such as tmpfs, do not.
const NOTIFIED_COUNT: usize = 4;

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
    /// If the stamps (mtime and ctime) of a file are before this time, any change since the scan
    /// has given the file a later stamp. Other files may have changed without a visible sign.
    /// Stores to mapped files count only if the scan has [written](Options::writes) the files.
    pub settled: Mtime,
    /// Whether entries of an earlier tree were [added](Self::carry), whose files cannot be read.
    pub is_carrying: bool,
    /// Whether stores to files that are mapped change their times on this file system.
    pub is_notified: bool,
}

/// What a scan does besides reading metadata.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Writes the file system of the tree to stable storage first (`syncfs`), because the kernel
    /// gives a file new times only with the first store to a page that is mapped and unchanged:
    /// further stores are not visible until the page was written.
    pub writes: bool,
    /// Leaves out what the user may not read; otherwise, an entry that the user may not read is an
    /// error.
    pub skips_unreadable: bool,
}

/// Metadata of a file that changes whenever its contents change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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

impl Options {
    /// Writes the file system before the scan.
    pub const WRITING: Self = Self {
        writes: true,
        skips_unreadable: false,
    };
}

/// Entries that a snapshot leaves out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Skipped {
    /// Paths of sockets, FIFOs and devices, relative to the root.
    pub special: Vec<PathBuf>,
    /// Paths of mount points, bind mounts of directories and files included.
    pub mounts: Vec<PathBuf>,
    /// Paths of files and directories that the user may not read.
    pub unreadable: Vec<PathBuf>,
    /// Paths of entries with the name [`STATE_DIRECTORY`].
    pub reserved: Vec<PathBuf>,
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

    /// Returns whether any change after a scan gives the file other times.
    #[must_use]
    pub fn is_settled(&self, scanned: &Scanned) -> bool {
        self.mtime < scanned.settled && self.ctime < scanned.settled
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
    /// system, the scan creates an unnamed file, or writes the file of [`prepare_clock`].
    ///
    /// # Errors
    ///
    /// [`ReadError::Io`] if an entry is unreadable; [`ReadError::Entry`] if a NAR cannot contain an
    /// entry; [`ReadError::Changed`].
    pub fn scan(root: &Path) -> Result<Self, ReadError> {
        Self::scan_with(root, Options::default())
    }

    /// Like [`scan`](Self::scan), with options.
    ///
    /// # Errors
    ///
    /// Those of [`scan`](Self::scan); [`ReadError::Io`] if the file system cannot be written.
    pub fn scan_with(root: &Path, options: Options) -> Result<Self, ReadError> {
        let io_error = |reason| ReadError::Io {
            path: root.to_owned(),
            reason,
        };
        let root = root.canonicalize().map_err(io_error)?;
        if !root.is_dir() {
            return Err(io_error(std::io::ErrorKind::NotADirectory.into()));
        }
        let kind = file_system(&root);
        let settled = settled(&root, kind);
        if options.writes {
            // Write after the clock was read: a program that stores to a page later gives the file
            // new times.
            let written = Root::open(&root).and_then(|root| root.sync());
            written.map_err(io_error)?;
        }
        let scan = Scan::open(&root, false).map_err(|error| walk_error(root.clone(), error))?;
        let top = FileState::of(scan.root());
        let mut scanner = Scanner {
            mounted: points_below(&root),
            builder: Builder::new(scan.root().permissions(), top.mtime),
            root,
            path: Vec::new(),
            lens: Vec::new(),
            states: vec![top],
            skipped: Skipped::default(),
            skips_unreadable: options.skips_unreadable,
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
                is_carrying: false,
                is_notified: LOCAL[..NOTIFIED_COUNT].contains(&kind),
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

    /// Returns the path of an entry that differs from that of another scan of the same directory in
    /// anything but its contents. Returns `None` if all are the same.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<PathBuf> {
        let (list, others) = (self.entries.list(), other.entries.list());
        let is_same = |index: usize| {
            let (Some(a), Some(b)) = (list.get(index), others.get(index)) else {
                return false;
            };
            let has_same_kind = match (&a.kind, &b.kind) {
                (Kind::Directory { end }, Kind::Directory { end: other }) => end == other,
                (Kind::File { .. }, Kind::File { .. }) => true,
                (Kind::Symlink { target }, Kind::Symlink { target: other }) => target == other,
                _ => false,
            };
            has_same_kind
                && (&a.name, a.mode) == (&b.name, b.mode)
                && self.states.get(index) == other.states.get(index)
        };
        match (0..list.len().max(others.len())).find(|index| !is_same(*index)) {
            Some(index) if index < list.len() => Some(self.path(index)),
            Some(index) => Some(other.path(index)),
            None => (self.skipped != other.skipped).then(|| self.root.clone()),
        }
    }

    /// Returns how long to wait before a further scan, so that any change after that scan is
    /// visible: until the clock of the file system is past the last change. Zero: any change after
    /// this scan is visible. Entries whose last change is in the future do not count, because no
    /// change gets such a time now.
    #[must_use]
    pub fn unsettled_time(&self) -> Duration {
        let now = self.settled.plus(GRANULARITY_UNKNOWN).plus(GRANULARITY);
        let ctimes = self.states.iter().map(|state| state.ctime);
        // File systems without times report 1970: there, waiting would never end.
        let last = ctimes
            .filter(|ctime| *ctime < now && ctime.seconds != 0)
            .max();
        let Some(last) = last.filter(|last| *last >= self.settled) else {
            return Duration::ZERO;
        };
        let granularity = match last.nanoseconds {
            0 => GRANULARITY_UNKNOWN,
            _ => GRANULARITY,
        };
        last.plus(granularity).duration_since(self.settled)
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
    /// Paths of mount points, relative to the root.
    mounted: HashSet<Vec<u8>>,
    builder: Builder,
    /// Path of the current directory, relative to the root.
    path: Vec<u8>,
    /// Length of the path of each open directory below the root.
    lens: Vec<usize>,
    states: Vec<FileState>,
    skipped: Skipped,
    skips_unreadable: bool,
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
                    if ignored_depth > 0 || self.leaves_out(name) {
                        continue;
                    }
                    self.unreadable(name, error)?;
                    continue;
                }
                Ok(Some(Visit::Entry { name, metadata })) => (name, metadata, false),
                Ok(Some(Visit::Enter { name, metadata })) => (name, metadata, true),
            };
            if ignored_depth > 0 || self.leaves_out(name) {
                ignored_depth += usize::from(is_entered);
                continue;
            }
            if !is_entered && self.is_mounted(name) {
                self.skipped.mounts.push(self.relative_path(name));
                continue;
            }
            let state = FileState::of(&metadata);
            let mode = metadata.permissions();
            match metadata.entry_type() {
                EntryType::Directory if is_entered => {
                    let entered = self.builder.enter(name, mode, state.mtime);
                    entered.map_err(|source| self.entry_error(name, source))?;
                    self.enter(name);
                }
                EntryType::Directory => {
                    self.skipped.mounts.push(self.relative_path(name));
                    continue;
                }
                EntryType::Special => {
                    self.skipped.special.push(self.relative_path(name));
                    continue;
                }
                EntryType::File if self.skips_unreadable && mode & READABLE != READABLE => {
                    let name = name.to_vec();
                    if let Err(error) = scan.open_last() {
                        self.unreadable(&name, error)?;
                        continue;
                    }
                    self.file(&name, mode, &state)?;
                }
                EntryType::File => self.file(name, mode, &state)?,
                EntryType::Symlink => {
                    let name = name.to_vec();
                    let target = scan.link_last();
                    let target = target.map_err(|error| self.walk_error(&name, error))?;
                    let added = self.builder.symlink(&name, state.mtime, &target);
                    added.map_err(|source| self.entry_error(&name, source))?;
                }
            }
            self.states.push(state);
        }
    }

    fn file(&mut self, name: &[u8], mode: u16, state: &FileState) -> Result<(), ReadError> {
        let added = self.builder.file(name, mode, state.mtime, state.size, None);
        added.map_err(|source| self.entry_error(name, source))
    }

    /// Leaves out an entry that the user may not read, if that is permitted.
    fn unreadable(&mut self, name: &[u8], error: WalkError) -> Result<(), ReadError> {
        if self.skips_unreadable && is_denied(&error) && !name.is_empty() {
            self.skipped.unreadable.push(self.relative_path(name));
            return Ok(());
        }
        Err(self.walk_error(name, error))
    }

    /// Returns whether an entry is left out because Samovar itself has written it.
    fn leaves_out(&mut self, name: &[u8]) -> bool {
        let is_reserved = name == STATE_DIRECTORY.as_bytes();
        if is_reserved {
            self.skipped.reserved.push(self.relative_path(name));
        }
        is_reserved || is_temporary(name)
    }

    /// Returns whether something is mounted on an entry of the current directory.
    fn is_mounted(&self, name: &[u8]) -> bool {
        let path = || self.relative_path(name);
        !self.mounted.is_empty() && self.mounted.contains(path().as_os_str().as_bytes())
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

    /// Returns the path of an entry of the current directory, relative to the root.
    fn relative_path(&self, name: &[u8]) -> PathBuf {
        let path = PathBuf::from(OsStr::from_bytes(&self.path));
        path.join(OsStr::from_bytes(name))
    }

    /// Returns the full path of an entry of the current directory; the path of the directory itself
    /// for an empty name.
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

/// Returns whether the user may not read an entry.
fn is_denied(error: &WalkError) -> bool {
    matches!(error, WalkError::Io(reason) if reason.kind() == std::io::ErrorKind::PermissionDenied)
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

/// Returns the type of the file system of a directory; 0 if it is not known.
fn file_system(root: &Path) -> u64 {
    sys::file_system(root).map_or(0, u64::from)
}

/// Returns the value of [`Scanned::settled`] for a scan that begins now.
fn settled(root: &Path, file_system: u64) -> Mtime {
    match file_system_clock(root) {
        Ok(time) => time.minus(GRANULARITY),
        Err(_) if LOCAL.contains(&file_system) && has_fine_times(root) => {
            local_clock().minus(GRANULARITY)
        }
        Err(_) => local_clock().minus(GRANULARITY_UNKNOWN),
    }
}

/// Returns whether the times of a directory are finer than seconds. Old ext4 file systems, for
/// example, store seconds only.
fn has_fine_times(directory: &Path) -> bool {
    let metadata = directory.metadata();
    metadata.is_ok_and(|metadata| metadata.ctime_nsec() != 0)
}

/// Returns the time of the clock that stamps the files: the server's clock on a network file
/// system, which may differ from the local clock.
fn file_system_clock(root: &Path) -> Result<Mtime, WalkError> {
    let clock = match sys::unnamed_file(root) {
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
    match sys::unnamed_file(root) {
        Ok(_) => Ok(()),
        Err(_) => Ok(clock_file(root, OFlags::CREATE).map(drop)?),
    }
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
    /// Returns the time that has passed since an earlier time.
    fn duration_since(self, earlier: Self) -> Duration {
        let passed = self.minus(earlier);
        let seconds = u64::try_from(passed.seconds).unwrap_or_default();
        Duration::new(seconds, passed.nanoseconds)
    }

    fn plus(self, other: Self) -> Self {
        let nanoseconds = self.nanoseconds + other.nanoseconds;
        Self {
            seconds: self
                .seconds
                .saturating_add(other.seconds)
                .saturating_add((nanoseconds / 1_000_000_000).into()),
            nanoseconds: nanoseconds % 1_000_000_000,
        }
    }

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
