//! System calls of macOS.
//!
//! A process does not switch its user: the groups of a process cannot be set without unsafe code.
//! launchd starts a server as the user that its configuration names.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::unistd::{Gid, Uid};
use rustix::io::Errno;

/// Fails with `ENOTSUP`.
pub(crate) fn initgroups(_user: &CStr, _group: Gid) -> nix::Result<()> {
    Err(nix::Error::ENOTSUP)
}

/// Fails with `ENOTSUP`.
pub(crate) fn setgroups(_groups: &[Gid]) -> nix::Result<()> {
    Err(nix::Error::ENOTSUP)
}

/// Fails with `ENOTSUP`.
pub(crate) fn setresgid(_real: Gid, _effective: Gid, _saved: Gid) -> nix::Result<()> {
    Err(nix::Error::ENOTSUP)
}

/// Fails with `ENOTSUP`.
pub(crate) fn setresuid(_real: Uid, _effective: Uid, _saved: Uid) -> nix::Result<()> {
    Err(nix::Error::ENOTSUP)
}

/// Returns whether the real and effective user IDs are both this one. The saved one is not known.
pub(crate) fn has_user(uid: Uid) -> bool {
    [Uid::current(), Uid::effective()] == [uid; 2]
}

/// Returns whether the real and effective group IDs are both this one. The saved one is not known.
pub(crate) fn has_group(gid: Gid) -> bool {
    [Gid::current(), Gid::effective()] == [gid; 2]
}

/// Fails: the rights of root cannot be divided.
pub(crate) fn keep_rights() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Fails: the rights of root cannot be divided.
pub(crate) fn reduce_rights() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Fails with `OPNOTSUPP`: there are no files without a name.
pub(crate) fn unnamed_file(_directory: &Path) -> Result<OwnedFd, Errno> {
    Err(Errno::OPNOTSUPP)
}
