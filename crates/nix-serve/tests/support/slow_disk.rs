//! A disk that hangs, fails or is slow on demand: a FUSE file system that mirrors a directory.
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it has not tested"
)]

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, Request,
};

/// Lifetime of attributes and names in the kernel's cache: the kernel caches none.
const TTL: Duration = Duration::ZERO;

const EIO: i32 = 5;

/// State of the simulated disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Well,
    /// Every operation takes this long.
    Slow(Duration),
    /// No operation completes.
    Hung,
    /// Every operation fails.
    Broken,
}

/// A fault of the disk. Dropping it ends the fault, so that a failing test does not hang.
#[must_use]
pub(crate) struct Fault<'a>(&'a SlowDisk);

impl Drop for Fault<'_> {
    fn drop(&mut self) {
        self.0.recover();
    }
}

/// The mounted file system. Dropping it unmounts the file system.
pub(crate) struct SlowDisk {
    disk: Disk,
    session: Option<BackgroundSession>,
}

#[derive(Clone)]
struct Disk(Arc<State>);

struct State {
    paths: Mutex<HashMap<u64, PathBuf>>,
    health: Mutex<(Health, Vec<Operation>)>,
}

/// Performs an operation and replies to the kernel.
type Operation = Box<dyn FnOnce() + Send>;

impl SlowDisk {
    /// Mirrors `shown` at `at`. Prints a message and returns `None` if FUSE is missing or mounting
    /// is not permitted.
    pub(crate) fn mount(shown: &Path, at: &Path) -> Option<Self> {
        let root = (1, shown.to_path_buf());
        let disk = Disk(Arc::new(State {
            paths: Mutex::new(HashMap::from([root])),
            health: Mutex::new((Health::Well, Vec::new())),
        }));
        let mut config = Config::default();
        config.mount_options = vec![MountOption::RO, MountOption::FSName("slow-disk".into())];
        match fuser::spawn_mount(disk.clone(), at, &config) {
            Ok(session) => Some(Self {
                disk,
                session: Some(session),
            }),
            Err(error) => {
                // In CI everything is installed, so a skipped test would be an error.
                assert!(std::env::var_os("CI").is_none(), "no FUSE: {error}");
                eprintln!("NOT TESTED: a slow disk. There is no FUSE here: {error}");
                None
            }
        }
    }

    /// Makes every operation hang from now on.
    pub(crate) fn hang(&self) -> Fault<'_> {
        self.set_health(Health::Hung)
    }

    /// Makes every operation fail from now on, as on a worn-out disk.
    pub(crate) fn fail(&self) -> Fault<'_> {
        self.set_health(Health::Broken)
    }

    /// Makes every operation take `time` from now on.
    pub(crate) fn slow_down(&self, time: Duration) -> Fault<'_> {
        self.set_health(Health::Slow(time))
    }

    fn set_health(&self, health: Health) -> Fault<'_> {
        self.disk.0.health.lock().unwrap().0 = health;
        Fault(self)
    }

    /// Returns the number of hanging operations.
    pub(crate) fn hung_count(&self) -> usize {
        self.disk.0.health.lock().unwrap().1.len()
    }

    /// Completes the hanging operations. From now on the disk works normally.
    fn recover(&self) {
        let mut health = self.disk.0.health.lock().unwrap();
        health.0 = Health::Well;
        let hung = std::mem::take(&mut health.1);
        drop(health);
        hung.into_iter().for_each(|operation| operation());
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        self.recover();
        if let Some(session) = self.session.take() {
            drop(session.umount_and_join());
        }
    }
}

impl Disk {
    fn run(&self, operation: impl FnOnce() + Send + 'static) {
        let mut health = self.0.health.lock().unwrap();
        match health.0 {
            Health::Hung => return health.1.push(Box::new(operation)),
            Health::Slow(time) => {
                std::thread::spawn(move || {
                    std::thread::sleep(time);
                    operation();
                });
                return;
            }
            Health::Well | Health::Broken => {}
        }
        drop(health);
        operation();
    }

    fn path(&self, inode: INodeNo) -> io::Result<PathBuf> {
        if self.0.health.lock().unwrap().0 == Health::Broken {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let paths = self.0.paths.lock().unwrap();
        let path = paths.get(&u64::from(inode)).cloned();
        path.ok_or(io::Error::from_raw_os_error(2))
    }

    fn look_up(&self, parent: INodeNo, name: &OsStr) -> io::Result<FileAttr> {
        let path = self.path(parent)?.join(name);
        let metadata = fs::symlink_metadata(&path)?;
        self.0.paths.lock().unwrap().insert(metadata.ino(), path);
        Ok(attributes(&metadata, INodeNo(metadata.ino())))
    }

    fn attributes(&self, inode: INodeNo) -> io::Result<FileAttr> {
        Ok(attributes(&fs::symlink_metadata(self.path(inode)?)?, inode))
    }

    fn read(&self, inode: INodeNo, offset: u64, len: u32) -> io::Result<Vec<u8>> {
        let file = File::open(self.path(inode)?)?;
        let mut bytes = vec![0; usize::try_from(len).unwrap()];
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], offset + filled as u64)? {
                0 => break,
                len => filled += len,
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// Returns name, inode and type of all directory entries, in a stable order.
    fn entries(&self, inode: INodeNo) -> io::Result<BTreeMap<Vec<u8>, (u64, FileType)>> {
        let path = self.path(inode)?;
        let own = (u64::from(inode), FileType::Directory);
        let mut entries = BTreeMap::from([(b".".to_vec(), own), (b"..".to_vec(), own)]);
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            let name = entry.file_name().as_bytes().to_vec();
            entries.insert(name, (metadata.ino(), file_type(&metadata)));
        }
        Ok(entries)
    }
}

impl Filesystem for Disk {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (disk, name) = (self.clone(), name.to_owned());
        self.run(move || match disk.look_up(parent, &name) {
            Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            Err(error) => reply.error(error.into()),
        });
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let disk = self.clone();
        self.run(move || match disk.attributes(inode) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(error.into()),
        });
    }

    fn readlink(&self, _: &Request, inode: INodeNo, reply: ReplyData) {
        let disk = self.clone();
        self.run(move || match disk.path(inode).and_then(fs::read_link) {
            Ok(target) => reply.data(target.as_os_str().as_bytes()),
            Err(error) => reply.error(error.into()),
        });
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let disk = self.clone();
        self.run(move || match disk.read(inode, offset, len) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error.into()),
        });
    }

    /// Called by `close`, which waits for the reply.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.run(move || reply.ok());
    }

    fn readdir(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let disk = self.clone();
        self.run(move || {
            let entries = match disk.entries(inode) {
                Ok(entries) => entries,
                Err(error) => return reply.error(error.into()),
            };
            let seen = usize::try_from(offset).unwrap();
            for ((name, (inode, kind)), next) in entries.into_iter().zip(1..).skip(seen) {
                if reply.add(INodeNo(inode), next, kind, OsStr::from_bytes(&name)) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn access(&self, _: &Request, _: INodeNo, _: fuser::AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
}

fn file_type(metadata: &Metadata) -> FileType {
    let kind = metadata.file_type();
    if kind.is_dir() {
        FileType::Directory
    } else if kind.is_symlink() {
        FileType::Symlink
    } else {
        FileType::RegularFile
    }
}

fn attributes(metadata: &Metadata, inode: INodeNo) -> FileAttr {
    FileAttr {
        ino: inode,
        size: metadata.len(),
        blocks: metadata.blocks(),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: file_type(metadata),
        perm: u16::try_from(metadata.permissions().mode() & 0o7777).unwrap(),
        nlink: 1,
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
