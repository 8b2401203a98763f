//! A disk that loses power on demand: a FUSE file system in memory that records what was synced.
//!
//! After a power cut, POSIX guarantees only the content of a file up to its last `fsync`, and the
//! names in a directory up to the last `fsync` of the directory. Each later write and each later
//! change of a name survives or is lost on its own, except that a rename does not lose both names.
//! A simulated power cut therefore keeps any subset of them.
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

mod changes;
mod held;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    Generation, INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};

use changes::{Change, NameChange};
use held::NewFile;

/// Lifetime of attributes and names in the kernel's cache. Only the kernel changes them.
const TTL: Duration = Duration::from_secs(3600);

/// A power cut may keep a part of any write that is longer than this, in bytes.
const PAGE_LEN: usize = 4096;

const ROOT: u64 = 1;

/// Percentages of the changes since the last `fsync` that a power cut keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    /// Percentage of writes that are kept.
    writes: u64,
    /// Percentage of changes of names that are kept.
    names: u64,
}

impl Kept {
    pub(crate) const fn percent(writes: u64, names: u64) -> Self {
        Self { writes, names }
    }
}

/// A disk that can be mounted repeatedly, each time with the state after the last power cut.
pub(crate) struct VolatileDisk(Arc<Mutex<State>>);

/// A mounted disk. Dropping it unmounts the disk.
pub(crate) struct Mounted(Option<BackgroundSession>);

struct Disk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    nodes: BTreeMap<u64, Node>,
    /// Number of calls so far that change or sync something.
    call_count: u64,
    /// Number of calls after which the power is cut, and the percentages of changes that are kept.
    cut_at: Option<(u64, Kept)>,
    /// State after the power cut. While it is set, all calls fail until the disk is mounted again.
    after_cut: Option<BTreeMap<u64, Node>>,
    next_change: u64,
    random: u64,
    /// Calls of `fsync` that are not answered, while the disk hangs.
    held: Option<Vec<ReplyEmpty>>,
    /// Files that are not created, while the disk is frozen.
    held_files: Option<Vec<NewFile>>,
}

#[derive(Default, Clone)]
struct Node {
    is_dir: bool,
    permissions: u16,
    data: Vec<u8>,
    synced_data: Vec<u8>,
    writes: Vec<Change>,
    /// Inode number of each name in a directory.
    names: BTreeMap<OsString, u64>,
    synced_names: BTreeMap<OsString, u64>,
    renames: Vec<NameChange>,
}

impl Node {
    fn attributes(&self, inode: u64) -> FileAttr {
        FileAttr {
            ino: INodeNo(inode),
            size: self.data.len() as u64,
            blocks: self.data.len().div_ceil(512) as u64,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: self.kind(),
            perm: self.permissions,
            nlink: 1,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn kind(&self) -> FileType {
        match self.is_dir {
            true => FileType::Directory,
            false => FileType::RegularFile,
        }
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.data);
        self.writes.push(change);
    }

    fn sync(&mut self) {
        self.synced_data.clone_from(&self.data);
        self.synced_names.clone_from(&self.names);
        self.writes.clear();
        self.renames.clear();
    }
}

impl VolatileDisk {
    /// Creates an empty disk. `seed` determines the changes that power cuts keep.
    pub(crate) fn new(seed: u64) -> Self {
        let root = Node {
            is_dir: true,
            permissions: 0o755,
            ..Node::default()
        };
        Self(Arc::new(Mutex::new(State {
            nodes: BTreeMap::from([(ROOT, root)]),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            ..State::default()
        })))
    }

    /// Mounts the disk in the state after the last power cut. Prints a message and returns `None`
    /// if FUSE is missing or mounting is not permitted.
    pub(crate) fn mount(&self, at: &Path) -> Option<Mounted> {
        let mut state = self.state();
        state.cut_at = None;
        if let Some(nodes) = state.after_cut.take() {
            state.nodes = nodes;
        }
        drop(state);
        match fuser::spawn_mount(Disk(Arc::clone(&self.0)), at, &Config::default()) {
            Ok(session) => Some(Mounted(Some(session))),
            Err(error) => {
                // CI has FUSE, so a skipped test is an error there.
                assert!(std::env::var_os("CI").is_none(), "no FUSE: {error}");
                println!("NOT TESTED: power cuts. There is no FUSE here: {error}");
                None
            }
        }
    }

    /// Cuts the power at the call that follows `count` more calls that change or sync something.
    pub(crate) fn cut_after(&self, count: u64, kept: Kept) {
        let mut state = self.state();
        state.cut_at = Some((state.call_count + count, kept));
    }

    /// Cuts the power now, unless it has already been cut.
    pub(crate) fn cut(&self, kept: Kept) {
        let mut state = self.state();
        if state.after_cut.is_none() {
            state.cut(kept);
        }
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.state().after_cut.is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            drop(session.umount_and_join());
        }
    }
}

impl State {
    /// Returns true with a probability of `percent`.
    fn is_kept(&mut self, percent: u64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % 100 < percent
    }

    fn cut(&mut self, kept: Kept) {
        let mut nodes = self.nodes.clone();
        let renames = nodes.values().flat_map(|node| &node.renames);
        let pending: BTreeSet<u64> = renames.map(|change| change.id).collect();
        let mut kept_names = pending.clone();
        kept_names.retain(|_| self.is_kept(kept.names));
        let is_kept = |id: u64| kept_names.contains(&id) || !pending.contains(&id);
        for node in nodes.values_mut() {
            for change in std::mem::take(&mut node.writes) {
                if self.is_kept(kept.writes) {
                    change.apply(&mut node.synced_data);
                }
            }
            for change in std::mem::take(&mut node.renames) {
                if is_kept(change.id) && change.needs.is_none_or(is_kept) {
                    change.apply(&mut node.synced_names);
                }
            }
            node.data.clone_from(&node.synced_data);
            node.names.clone_from(&node.synced_names);
        }
        self.after_cut = Some(nodes);
    }

    /// Counts a call that changes or syncs something. Cuts the power if its number is reached.
    fn count(&mut self) -> Result<(), Errno> {
        self.call_count += 1;
        if let Some((at, kept)) = self.cut_at
            && self.call_count > at
            && self.after_cut.is_none()
        {
            self.cut(kept);
        }
        self.check()
    }

    fn check(&self) -> Result<(), Errno> {
        match self.after_cut {
            Some(_) => Err(Errno::EIO),
            None => Ok(()),
        }
    }

    fn node(&mut self, inode: INodeNo) -> Result<&mut Node, Errno> {
        self.check()?;
        self.nodes.get_mut(&inode.0).ok_or(Errno::ENOENT)
    }

    fn look_up(&mut self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let inode = *self.node(parent)?.names.get(name).ok_or(Errno::ENOENT)?;
        Ok(self.node(INodeNo(inode))?.attributes(inode))
    }

    /// Changes a name. Returns the identifier of the change.
    fn set_name(
        &mut self,
        parent: INodeNo,
        name: &OsStr,
        inode: Option<u64>,
        needs: Option<u64>,
    ) -> Result<u64, Errno> {
        self.next_change += 1;
        let change = NameChange {
            id: self.next_change,
            name: name.to_owned(),
            inode,
            needs,
        };
        let node = self.node(parent)?;
        change.apply(&mut node.names);
        node.renames.push(change);
        Ok(self.next_change)
    }

    fn create(
        &mut self,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        is_dir: bool,
    ) -> Result<FileAttr, Errno> {
        self.count()?;
        let inode = self.nodes.keys().last().unwrap() + 1;
        let node = Node {
            is_dir,
            permissions: u16::try_from(mode & 0o7777).unwrap(),
            ..Node::default()
        };
        let attributes = node.attributes(inode);
        self.nodes.insert(inode, node);
        self.set_name(parent, name, Some(inode), None)?;
        Ok(attributes)
    }

    fn remove(&mut self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        self.count()?;
        let inode = self.look_up(parent, name)?.ino;
        if !self.node(inode)?.names.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.set_name(parent, name, None, None).map(drop)
    }

    fn rename(
        &mut self,
        (parent, name): (INodeNo, &OsStr),
        (new_parent, new_name): (INodeNo, &OsStr),
    ) -> Result<(), Errno> {
        self.count()?;
        let inode = self.look_up(parent, name)?.ino;
        let id = self.set_name(new_parent, new_name, Some(inode.0), None)?;
        self.set_name(parent, name, None, Some(id)).map(drop)
    }

    fn write(&mut self, inode: INodeNo, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.count()?;
        let node = self.node(inode)?;
        let mut at = usize::try_from(offset).unwrap();
        let mut left = bytes;
        while !left.is_empty() {
            let len = left.len().min(PAGE_LEN - at % PAGE_LEN);
            let (page, rest) = left.split_at(len);
            node.change(Change::Write(at, page.to_vec()));
            (at, left) = (at + len, rest);
        }
        Ok(())
    }

    fn set_attributes(
        &mut self,
        inode: INodeNo,
        mode: Option<u32>,
        size: Option<u64>,
    ) -> Result<FileAttr, Errno> {
        self.count()?;
        let node = self.node(inode)?;
        if let Some(mode) = mode {
            node.permissions = u16::try_from(mode & 0o7777).unwrap();
        }
        if let Some(size) = size {
            node.change(Change::Truncate(usize::try_from(size).unwrap()));
        }
        Ok(node.attributes(inode.0))
    }

    fn sync(&mut self, inode: INodeNo) -> Result<(), Errno> {
        self.count()?;
        self.node(inode)?.sync();
        Ok(())
    }
}

impl Disk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

fn reply_empty(outcome: Result<(), Errno>, reply: ReplyEmpty) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn reply_entry(outcome: Result<FileAttr, Errno>, reply: ReplyEntry) {
    match outcome {
        Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
        Err(error) => reply.error(error),
    }
}

fn reply_attributes(outcome: Result<FileAttr, Errno>, reply: ReplyAttr) {
    match outcome {
        Ok(attributes) => reply.attr(&TTL, &attributes),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for Disk {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        reply_entry(self.state().look_up(parent, name), reply);
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let mut state = self.state();
        let attributes = state.node(inode).map(|node| node.attributes(inode.0));
        reply_attributes(attributes, reply);
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply_attributes(self.state().set_attributes(inode, mode, size), reply);
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let attributes = self.state().create(parent, name, mode & !umask, true);
        reply_entry(attributes, reply);
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        self.state().create_file(NewFile {
            parent,
            name: name.to_owned(),
            mode: mode & !umask,
            reply,
        });
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(self.state().remove(parent, name), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(self.state().remove(parent, name), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let renamed = self.state().rename((parent, name), (new_parent, new_name));
        reply_empty(renamed, reply);
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
        match self.state().node(inode) {
            Ok(node) => {
                let from = usize::try_from(offset).unwrap().min(node.data.len());
                let to = (from + usize::try_from(len).unwrap()).min(node.data.len());
                reply.data(&node.data[from..to]);
            }
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.state().write(inode, offset, bytes) {
            Ok(()) => reply.written(u32::try_from(bytes.len()).unwrap()),
            Err(error) => reply.error(error),
        }
    }

    /// The kernel calls this at `close`, which syncs nothing.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.state().answer_sync(inode, reply);
    }

    fn fsyncdir(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.state().answer_sync(inode, reply);
    }

    fn readdir(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut state = self.state();
        let names = match state.node(inode) {
            Ok(node) => node.names.clone(),
            Err(error) => return reply.error(error),
        };
        let seen = usize::try_from(offset).unwrap();
        for ((name, inode), next) in names.into_iter().zip(1..).skip(seen) {
            if reply.add(INodeNo(inode), next, state.nodes[&inode].kind(), &name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096);
    }

    fn access(&self, _: &Request, _: INodeNo, _: fuser::AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
}
