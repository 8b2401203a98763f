//! System calls of Linux.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::unistd::{Gid, Uid, getresgid, getresuid};
pub(crate) use nix::unistd::{initgroups, setgroups, setresgid, setresuid};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_keep_capabilities,
};

/// The rights over files that a command keeps when it becomes the owner of a file. It reads keys
/// that only root may read, and directories below those of root, such as `/var/lib/private`.
const KEPT: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH);

/// Returns whether the real, effective and saved user IDs are all this one.
pub(crate) fn has_user(uid: Uid) -> bool {
    getresuid().is_ok_and(|ids| [ids.real, ids.effective, ids.saved] == [uid; 3])
}

/// Returns whether the real, effective and saved group IDs are all this one.
pub(crate) fn has_group(gid: Gid) -> bool {
    getresgid().is_ok_and(|ids| [ids.real, ids.effective, ids.saved] == [gid; 3])
}

/// Makes the calling thread keep the rights of root when it becomes another user.
pub(crate) fn keep_rights() -> io::Result<()> {
    Ok(set_keep_capabilities(true)?)
}

/// Reduces the rights that were kept to those over files.
pub(crate) fn reduce_rights() -> io::Result<()> {
    let kept = capabilities(None)?.permitted & KEPT;
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, sets)?)
}

/// Creates a file without a name on the file system of a directory. Fails with `OPNOTSUPP` or
/// `ISDIR` if the file system, such as NFS or FUSE, has none.
pub(crate) fn unnamed_file(directory: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::TMPFILE;
    rustix::fs::open(directory, flags, Mode::RUSR)
}
