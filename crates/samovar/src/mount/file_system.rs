//! [`FileSystem`]: answers the kernel's requests about a mounted snapshot.
//!
//! Opening files and directories costs no request, because `ENOSYS` turns these requests off in the
//! kernel, and the kernel may cache everything, because a snapshot never changes.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    AccessFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};
use samovar_workspace::{Entry, Kind};

use super::End;
use super::fetch::{Arrived, Fetcher};
use super::local::{Local, Read};
use super::view::system_time;
use crate::notice::notice;

/// Lifetime of names, attributes and absent names in the kernel's cache.
const TTL: Duration = Duration::from_secs(24 * 3600);

/// Read-ahead of the kernel, in bytes.
const READ_AHEAD: u32 = 1 << 20;

/// Maximum number of read-ahead requests that the kernel sends at once.
const BACKGROUND_MAX: u16 = 64;

const GENERATION: Generation = Generation(0);

/// A mounted snapshot.
pub(super) struct FileSystem {
    shared: Arc<Shared>,
    /// Told when the file system is unmounted.
    ended: Sender<End>,
}

struct Shared {
    local: Arc<Local>,
    fetcher: Fetcher,
    /// Owner of all entries: the user who has mounted the snapshot.
    owner: (u32, u32),
    /// Permissions that all directories have besides those of the snapshot.
    directory_mode: u16,
    /// Entries whose errors were logged.
    logged: Mutex<HashSet<usize>>,
}

impl FileSystem {
    /// `directory_mode`: permissions that all directories have besides those of the snapshot.
    pub(super) fn new(
        local: Arc<Local>,
        fetcher: Fetcher,
        ended: Sender<End>,
        directory_mode: u16,
    ) -> Self {
        let owner = (
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
        );
        Self {
            shared: Arc::new(Shared {
                local,
                fetcher,
                owner,
                directory_mode,
                logged: Mutex::default(),
            }),
            ended,
        }
    }

    fn entry(&self, inode: INodeNo) -> Option<(usize, &Entry)> {
        self.shared.local.view().by_inode(inode.0)
    }

    fn attributes(&self, index: usize, entry: &Entry) -> FileAttr {
        let (kind, size) = match &entry.kind {
            Kind::Directory { .. } => (FileType::Directory, 0),
            Kind::File { size, .. } => (FileType::RegularFile, *size),
            Kind::Symlink { target } => (FileType::Symlink, target.len() as u64),
        };
        let time = system_time(entry.mtime);
        let (uid, gid) = self.shared.owner;
        FileAttr {
            ino: inode(index),
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm: match kind {
                FileType::Directory => entry.mode | self.shared.directory_mode,
                _ => entry.mode,
            },
            nlink: self.shared.local.view().link_count(index),
            uid,
            gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// Calls `add` with the entries of a directory after `offset`, until it returns true. Returns
    /// `None` if there is no such directory.
    fn list(
        &self,
        directory: INodeNo,
        offset: u64,
        mut add: impl FnMut(u64, &[u8], usize, &Entry) -> bool,
    ) -> Option<()> {
        let view = self.shared.local.view();
        let (index, entry) = self.entry(directory)?;
        let Kind::Directory { .. } = entry.kind else {
            return None;
        };
        let dots = [(&b"."[..], index), (b"..", entry.parent)].into_iter();
        let children = view.children(index).iter().map(|child| *child as usize);
        let named = children.map(|child| {
            let name = view.entries().get(child).map(|child| &*child.name);
            (name.unwrap_or_default(), child)
        });
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, (name, index)) in dots.chain(named).enumerate().skip(skipped) {
            let entry = view.entries().get(index)?;
            if add(at as u64 + 1, name, index, entry) {
                break;
            }
        }
        Some(())
    }
}

fn inode(index: usize) -> INodeNo {
    INodeNo(index as u64 + 1)
}

fn kind(entry: &Entry) -> FileType {
    match entry.kind {
        Kind::Directory { .. } => FileType::Directory,
        Kind::File { .. } => FileType::RegularFile,
        Kind::Symlink { .. } => FileType::Symlink,
    }
}

impl Shared {
    /// Answers a read. If blocks are missing, the answer comes later from another thread.
    fn read(self: &Arc<Self>, entry: usize, at: u64, len: usize, reply: ReplyData) {
        match self.local.read(entry, at, len) {
            Ok(Read::Data(data)) => reply.data(&data),
            Ok(Read::Missing(blocks)) => {
                let shared = Arc::clone(self);
                let answer = move |arrived| match arrived {
                    Arrived::Here => shared.read_again(entry, at, len, reply),
                    Arrived::Damaged => shared.fail(entry, reply, "is damaged on the server"),
                    // The outage itself was logged.
                    Arrived::Unreachable => reply.error(Errno::EIO),
                };
                self.fetcher.wait(blocks, Box::new(answer));
            }
            Ok(Read::Damaged) => self.repair(entry, at, len, reply),
            Err(error) => self.fail(entry, reply, &error.to_string()),
        }
    }

    /// Answers a read whose blocks have arrived.
    fn read_again(self: &Arc<Self>, entry: usize, at: u64, len: usize, reply: ReplyData) {
        match self.local.read(entry, at, len) {
            Ok(Read::Data(data)) => reply.data(&data),
            Ok(Read::Damaged) => self.repair(entry, at, len, reply),
            Ok(Read::Missing(_)) => self.fail(entry, reply, "is incomplete"),
            Err(error) => self.fail(entry, reply, &error.to_string()),
        }
    }

    /// Answers a read from a file whose contents on this machine are damaged.
    fn repair(self: &Arc<Self>, entry: usize, at: u64, len: usize, reply: ReplyData) {
        let shared = Arc::clone(self);
        let answer = move |arrived| match (arrived, shared.local.read(entry, at, len)) {
            (Arrived::Here, Ok(Read::Data(data))) => reply.data(&data),
            _ => shared.fail(entry, reply, "does not match its digest in the manifest"),
        };
        self.fetcher.repair(entry, Box::new(answer));
    }

    /// Answers a read with an error, and logs the first one of each file.
    fn fail(&self, entry: usize, reply: ReplyData, reason: &str) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.insert(entry) {
            let path = self.local.view().entries().path(entry);
            let path = String::from_utf8_lossy(&path);
            notice(&format!("{path:?} {reason}: reading it gives an I/O error"));
        }
        reply.error(Errno::EIO);
    }
}

impl Filesystem for FileSystem {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_NO_OPEN_SUPPORT,
            InitFlags::FUSE_NO_OPENDIR_SUPPORT,
            InitFlags::FUSE_PARALLEL_DIROPS,
        ];
        for capability in wanted {
            // Old kernels lack some: the mount is slower then.
            config.add_capabilities(capability).ok();
        }
        if let Err(nearest) = config.set_max_readahead(READ_AHEAD) {
            config.set_max_readahead(nearest).ok();
        }
        config.set_max_background(BACKGROUND_MAX).ok();
        Ok(())
    }

    fn destroy(&mut self) {
        // The receiver is gone if a signal has ended the mount.
        self.ended.send(End::Unmounted).ok();
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let view = self.shared.local.view();
        let found = self
            .entry(parent)
            .and_then(|(parent, _)| view.lookup(parent, name.as_bytes()));
        let found = found.and_then(|index| Some((index, view.entries().get(index)?)));
        let attributes = match found {
            Some((index, entry)) => self.attributes(index, entry),
            None => absent(),
        };
        reply.entry(&TTL, &attributes, GENERATION);
    }

    fn getattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        match self.entry(inode) {
            Some((index, entry)) => reply.attr(&TTL, &self.attributes(index, entry)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        match self.entry(inode).map(|(_, entry)| &entry.kind) {
            Some(Kind::Symlink { target }) => reply.data(target),
            Some(_) => reply.error(Errno::EINVAL),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.entry(inode) {
            Some((index, entry)) if matches!(entry.kind, Kind::File { .. }) => {
                self.shared.read(index, offset, size as usize, reply);
            }
            _ => reply.error(Errno::EINVAL),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.list(inode, offset, |next, name, index, entry| {
            reply.add(
                self::inode(index),
                next,
                kind(entry),
                OsStr::from_bytes(name),
            )
        });
        match listed {
            Some(()) => reply.ok(),
            None => reply.error(Errno::ENOTDIR),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self.list(inode, offset, |next, name, index, entry| {
            let attributes = self.attributes(index, entry);
            let name = OsStr::from_bytes(name);
            reply.add(attributes.ino, next, name, &TTL, &attributes, GENERATION)
        });
        match listed {
            Some(()) => reply.ok(),
            None => reply.error(Errno::ENOTDIR),
        }
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        let view = self.shared.local.view();
        let blocks = self.shared.local.nar_size().div_ceil(4096);
        let entries = view.entries().list().len() as u64;
        reply.statfs(blocks, 0, 0, entries, 0, 4096, 255, 4096);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
}

/// Returns the attributes of an absent name: inode number 0 makes the kernel remember its absence.
fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}
