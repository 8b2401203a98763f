//! [`FileSystem`]: answers the kernel's requests about a mounted tree, or a directory of trees.
//!
//! Opening files and directories costs no request: after the answer `ENOSYS`, the kernel sends no
//! more requests of this kind. The kernel may cache everything, because a tree never changes. What
//! remains is a request for each directory that is listed, and for each file that is read for the
//! first time.
//!
//! # Inode numbers
//!
//! The upper 32 bits of an inode number are the number of a tree, the lower ones the index of the
//! entry + 1. A mounted tree has the number 0. A [`Store`] numbers its trees from 1, and never uses
//! a number again. So inode numbers never change. Overlays rely on this.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    AccessFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};
use samovar_workspace::{Entry, Kind};

use super::counts::{Counts, count};
use super::store::{Found, Store};
use super::tree::Tree;
use super::view::system_time;

/// Lifetime of names, attributes and absent names in the kernel's cache.
const TTL: Duration = Duration::from_secs(24 * 3600);

/// Read-ahead of the kernel, in bytes.
const READ_AHEAD: u32 = 1 << 20;

/// Maximum number of read-ahead requests that the kernel sends at once.
const BACKGROUND_MAX: u16 = 64;

/// Lifetime of the attributes of a store, whose list of paths grows.
const STORE_TTL: Duration = Duration::from_secs(1);

/// Permissions of a store.
const STORE_MODE: u16 = 0o555;

/// An empty directory that Nix requires in the store below a local-overlay-store.
const LINKS: &[u8] = b".links";
const LINKS_INODE: INodeNo = INodeNo(2);

const GENERATION: Generation = Generation(0);

/// A mounted file system.
pub(super) struct FileSystem {
    root: Root,
    style: Style,
    counts: Arc<Counts>,
    /// Told when the file system is unmounted.
    ended: Sender<End>,
}

/// Why the mount ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// This process got a signal.
    Signal,
    /// Another process has unmounted it.
    Unmounted,
}

/// What is mounted.
pub(super) enum Root {
    /// One tree.
    Tree(Arc<Tree>),
    /// A directory with a tree for each store path.
    Store(Store),
}

/// An entry of a mounted file system.
struct Node {
    tree: Arc<Tree>,
    /// Number of the tree.
    number: u32,
    /// Index of the entry in the tree.
    index: usize,
}

/// How attributes differ from the attributes of the entries.
#[derive(Debug, Clone, Copy)]
struct Style {
    /// Owner of all entries: the user who has mounted the file system.
    owner: (u32, u32),
    /// Permissions that all directories have besides their own.
    directory_mode: u16,
}

impl FileSystem {
    /// `directory_mode`: permissions that all directories have besides their own.
    pub(super) fn new(root: Root, ended: Sender<End>, directory_mode: u16) -> Self {
        let owner = (
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
        );
        let style = Style {
            owner,
            directory_mode,
        };
        Self {
            root,
            style,
            counts: Arc::default(),
            ended,
        }
    }

    pub(super) fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Returns the entry with this inode number. Returns `None` for the root of a store.
    fn node(&self, inode: INodeNo) -> Option<Node> {
        let number = u32::try_from(inode.0 >> 32).ok()?;
        let tree = match (&self.root, number) {
            (Root::Tree(tree), 0) => Arc::clone(tree),
            (Root::Tree(_), _) => return None,
            (Root::Store(store), _) => store.tree(number)?,
        };
        let (index, _) = tree.view().by_inode(inode.0 & u64::from(u32::MAX))?;
        Some(Node {
            tree,
            number,
            index,
        })
    }

    /// Returns the store, if this is the inode number of its root or of [`LINKS`].
    fn store(&self, inode: INodeNo) -> Option<&Store> {
        match &self.root {
            Root::Store(store) if matches!(inode, INodeNo::ROOT | LINKS_INODE) => Some(store),
            _ => None,
        }
    }
}

impl Style {
    fn attributes(self, node: &Node) -> Option<FileAttr> {
        let entry = node.entry()?;
        let (kind, size) = match &entry.kind {
            Kind::Directory { .. } => (FileType::Directory, 0),
            Kind::File { size, .. } => (FileType::RegularFile, *size),
            Kind::Symlink { target } => (FileType::Symlink, target.len() as u64),
        };
        let perm = match kind {
            FileType::Directory => entry.mode | self.directory_mode,
            _ => entry.mode,
        };
        Some(FileAttr {
            ino: node.inode(),
            size,
            blocks: size.div_ceil(512),
            nlink: node.tree.view().link_count(node.index),
            perm,
            ..self.empty(kind, system_time(entry.mtime))
        })
    }

    /// Returns the attributes of the root of a store, or of [`LINKS`].
    fn of_store(self, store: &Store, ino: INodeNo) -> FileAttr {
        FileAttr {
            ino,
            perm: STORE_MODE | self.directory_mode,
            // The number of directories is not known.
            nlink: 1,
            ..self.empty(FileType::Directory, store.modified())
        }
    }

    fn empty(self, kind: FileType, time: SystemTime) -> FileAttr {
        let (uid, gid) = self.owner;
        FileAttr {
            ino: INodeNo::ROOT,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm: 0,
            nlink: 2,
            uid,
            gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Node {
    fn entry(&self) -> Option<&Entry> {
        self.tree.view().entries().get(self.index)
    }

    fn inode(&self) -> INodeNo {
        INodeNo((u64::from(self.number) << 32) + self.index as u64 + 1)
    }

    /// Returns another entry of the tree.
    fn at(&self, index: usize) -> Self {
        Self {
            tree: Arc::clone(&self.tree),
            number: self.number,
            index,
        }
    }

    /// Calls `add` with the entries of a directory after `offset`, until it returns true. Returns
    /// `None` for other entries.
    fn list(&self, offset: u64, mut add: impl FnMut(u64, &[u8], &Self) -> bool) -> Option<()> {
        let view = self.tree.view();
        let entry = self.entry()?;
        let Kind::Directory { .. } = entry.kind else {
            return None;
        };
        let dots = [(&b"."[..], self.index), (b"..", entry.parent)].into_iter();
        let children = view.children(self.index).iter();
        let named = children.map(|child| {
            let child = *child as usize;
            let name = view.entries().get(child).map(|child| &*child.name);
            (name.unwrap_or_default(), child)
        });
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, (name, index)) in dots.chain(named).enumerate().skip(skipped) {
            if add(at as u64 + 1, name, &self.at(index)) {
                break;
            }
        }
        Some(())
    }
}

impl FileSystem {
    /// Calls `add` with the attributes of the entries of a directory after `offset`, until it
    /// returns true. Returns `None` if there is no such directory.
    fn list(
        &self,
        directory: INodeNo,
        offset: u64,
        mut add: impl FnMut(u64, &[u8], &FileAttr, Option<&Tree>) -> bool,
    ) -> Option<()> {
        let style = self.style;
        let Some(store) = self.store(directory) else {
            let node = self.node(directory)?;
            return node.list(offset, |next, name, node| {
                // The kernel counts no reference to `.` and `..`.
                let tree = (!matches!(name, b"." | b"..")).then_some(&*node.tree);
                let attributes = style.attributes(node);
                attributes.is_some_and(|attributes| add(next, name, &attributes, tree))
            });
        };
        let own = style.of_store(store, directory);
        for (at, name) in [(0, &b"."[..]), (1, b"..")] {
            if at >= offset && add(at + 1, name, &own, None) {
                return Some(());
            }
        }
        if directory == LINKS_INODE {
            return Some(());
        }
        store.list(offset.saturating_sub(2), |number, path, tree| {
            let node = Node {
                tree: Arc::clone(tree),
                number,
                index: 0,
            };
            let name = path.base_name().as_bytes();
            let attributes = style.attributes(&node);
            let next = u64::from(number) + 2;
            attributes.is_some_and(|attributes| add(next, name, &attributes, Some(tree)))
        });
        Some(())
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
        let of_store = match self.root {
            Root::Tree(_) => None,
            // The kernel notices that a store has more paths than it has listed.
            Root::Store(_) => Some(InitFlags::FUSE_AUTO_INVAL_DATA),
        };
        for capability in wanted.into_iter().chain(of_store) {
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
        count(&self.counts.lookups);
        let style = self.style;
        if let Some(store) = self.store(parent) {
            if parent == LINKS_INODE {
                return reply.entry(&TTL, &absent(), GENERATION);
            }
            if name.as_bytes() == LINKS {
                let attributes = style.of_store(store, LINKS_INODE);
                return reply.entry(&TTL, &attributes, GENERATION);
            }
            let answer = move |found| match found {
                Found::Tree(number, tree) => {
                    let index = 0;
                    let node = Node {
                        tree,
                        number,
                        index,
                    };
                    let attributes = style.attributes(&node).unwrap_or_else(absent);
                    reply.entry(&TTL, &attributes, GENERATION);
                }
                Found::Absent(time) => reply.entry(&time, &absent(), GENERATION),
                Found::Failed => reply.error(Errno::EIO),
            };
            return store.look_up(name.as_bytes(), Box::new(answer));
        }
        let found = self.node(parent).and_then(|parent| {
            let index = parent.tree.view().lookup(parent.index, name.as_bytes())?;
            let attributes = style.attributes(&parent.at(index))?;
            parent.tree.refer();
            Some(attributes)
        });
        reply.entry(&TTL, &found.unwrap_or_else(absent), GENERATION);
    }

    fn forget(&self, _request: &Request, inode: INodeNo, count: u64) {
        if let Root::Store(store) = &self.root
            && let Some(node) = self.node(inode)
        {
            let is_unused = node.tree.forget(count);
            let number = node.number;
            drop(node);
            if is_unused {
                store.close(number);
            }
        }
    }

    fn getattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        count(&self.counts.attributes);
        if let Some(store) = self.store(inode) {
            return reply.attr(&STORE_TTL, &self.style.of_store(store, inode));
        }
        let node = self.node(inode);
        match node.and_then(|node| self.style.attributes(&node)) {
            Some(attributes) => reply.attr(&TTL, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        let node = self.node(inode);
        match node.as_ref().and_then(|node| Some(&node.entry()?.kind)) {
            Some(Kind::Symlink { target }) => reply.data(target),
            Some(_) => reply.error(Errno::EINVAL),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        count(&self.counts.others);
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        count(&self.counts.others);
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
        count(&self.counts.reads);
        let Some(node) = self.node(inode) else {
            return reply.error(Errno::EINVAL);
        };
        match node.entry().map(|entry| &entry.kind) {
            Some(Kind::File { .. }) => node.tree.read(node.index, offset, size as usize, reply),
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
        count(&self.counts.listings);
        let listed = self.list(inode, offset, |next, name, attributes, _tree| {
            let name = OsStr::from_bytes(name);
            reply.add(attributes.ino, next, attributes.kind, name)
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
        count(&self.counts.listings);
        let listed = self.list(inode, offset, |next, name, attributes, tree| {
            let name = OsStr::from_bytes(name);
            let is_full = reply.add(attributes.ino, next, name, &TTL, attributes, GENERATION);
            if let Some(tree) = tree.filter(|_| !is_full) {
                tree.refer();
            }
            is_full
        });
        match listed {
            Some(()) => reply.ok(),
            None => reply.error(Errno::ENOTDIR),
        }
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        let (size, entries) = match &self.root {
            Root::Tree(tree) => (tree.nar_size(), tree.view().entries().list().len()),
            Root::Store(_) => (0, 0),
        };
        let (blocks, entries) = (size.div_ceil(4096), entries as u64);
        reply.statfs(blocks, 0, 0, entries, 0, 4096, 255, 4096);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        count(&self.counts.others);
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        count(&self.counts.others);
        reply.error(Errno::ENOSYS);
    }

    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        count(&self.counts.others);
        reply.error(Errno::ENOSYS);
    }

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        count(&self.counts.others);
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
