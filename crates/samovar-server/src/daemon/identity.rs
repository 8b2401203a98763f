//! Switches user and group. A server does so after the sockets are bound; a command that root runs
//! switches to the owner of the files that the command changes.

use std::ffi::CString;
use std::fmt;
use std::fs::{self, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, chown, fchown, lchown};
use std::path::Path;

use anyhow::{Context as _, anyhow, bail, ensure};
use nix::unistd::{Gid, Group, Uid, User, setegid, seteuid};

use crate::sys;

/// A user and a group to switch to, looked up while the process is still privileged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user to switch to; `None` to keep the current user.
    user: Option<Account>,
    gid: Gid,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Account {
    uid: Uid,
    /// User name, which determines the supplementary groups; `None` for a UID without an account.
    name: Option<CString>,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            write!(f, "user {}, ", user.uid)?;
        }
        write!(f, "group {}", self.gid)
    }
}

impl Identity {
    /// Looks up `user` and `group`, each by name, else by number. Returns `None` if neither is
    /// given.
    ///
    /// The default group is the user's primary group. (starman keeps root's group and supplementary
    /// groups.)
    ///
    /// # Errors
    ///
    /// An unknown user or group, or the user database cannot be read.
    pub fn find(user: Option<&str>, group: Option<&str>) -> anyhow::Result<Option<Self>> {
        let user = user.map(find_user).transpose()?;
        let group = group.map(find_group).transpose()?;
        let Some((account, primary_group)) = user else {
            return Ok(group.map(|gid| Self { user: None, gid }));
        };
        let uid = account.uid;
        let gid = group
            .or(primary_group)
            .with_context(|| format!("user {uid} has no account: name its group with --group"))?;
        Ok(Some(Self {
            user: Some(account),
            gid,
        }))
    }

    /// Gives a directory of root to this user and group. Does nothing if the process is not root,
    /// or if the directory belongs to another user.
    ///
    /// # Errors
    ///
    /// The owner cannot be read or changed.
    pub fn take(&self, directory: &Path) -> io::Result<()> {
        let is_of_root = fs::metadata(directory)?.uid() == 0;
        match &self.user {
            Some(user) if is_of_root && Uid::effective().is_root() => {
                chown(directory, Some(user.uid.as_raw()), Some(self.gid.as_raw()))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether this is the user with this ID, or any user may be meant.
    #[must_use]
    pub fn is_user(&self, uid: u32) -> bool {
        let user = self.user.as_ref();
        user.is_none_or(|user| user.uid.as_raw() == uid)
    }

    /// Gives a directory of root, and what root owns in it, to this user and group. Does nothing if
    /// the process is not root, or if the directory belongs to another user. A file that has
    /// further names still belongs to root, because it is also a file of another directory.
    ///
    /// # Errors
    ///
    /// The directory cannot be read, or an owner cannot be changed.
    pub fn take_all(&self, directory: &Path) -> io::Result<()> {
        let (Some(user), 0) = (&self.user, fs::metadata(directory)?.uid()) else {
            return Ok(());
        };
        if !Uid::effective().is_root() {
            return Ok(());
        }
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let (path, found) = (entry.path(), entry.metadata()?);
            if found.uid() != 0 || entry.file_name() == "lost+found" {
                continue;
            }
            if found.is_dir() {
                self.take_all(&path)?;
            } else if found.nlink() == 1 {
                lchown(&path, Some(user.uid.as_raw()), Some(self.gid.as_raw()))?;
            }
        }
        // Last: the user could replace the names in it.
        self.take(directory)
    }

    /// Creates a file of this user and group, unless it exists. Does nothing if the process is not
    /// root.
    ///
    /// # Errors
    ///
    /// The file cannot be created, or its owner cannot be changed.
    pub fn create(&self, path: &Path) -> io::Result<()> {
        if !Uid::effective().is_root() {
            return Ok(());
        }
        let user = self.user.as_ref().map(|user| user.uid.as_raw());
        match OpenOptions::new().append(true).create_new(true).open(path) {
            Ok(file) => fchown(&file, user, Some(self.gid.as_raw())),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes root the owner of a file, with the owner's group, so that this user owns all files
    /// that the process creates from now on. The process keeps the right to read and write the
    /// files of all users. Does nothing if the process is not root, or root owns the file. Call it
    /// before a thread is started: the calling thread alone keeps the rights, and gives them to
    /// the threads that it starts.
    ///
    /// # Errors
    ///
    /// A system call failed. The process may then be partly switched, and must exit.
    pub fn assume_owner(file: &Metadata) -> anyhow::Result<()> {
        if !Uid::effective().is_root() || file.uid() == 0 {
            return Ok(());
        }
        let account = Account {
            uid: Uid::from_raw(file.uid()),
            name: None,
        };
        let owner = Self {
            user: Some(account),
            gid: Gid::from_raw(file.gid()),
        };
        sys::keep_rights()?;
        owner.assume()?;
        sys::reduce_rights().with_context(|| format!("cannot become {owner} (capset)"))
    }

    /// Switches all threads to this user and group permanently, with the user's supplementary
    /// groups.
    ///
    /// Does nothing if the process already runs as this user. Open files and sockets stay open.
    ///
    /// # Errors
    ///
    /// Only root can switch to another user, or a system call failed. The process may then be
    /// partly switched, and must exit.
    pub fn assume(&self) -> anyhow::Result<()> {
        if !Uid::effective().is_root() {
            ensure!(self.is_current(), "only root can become {self}");
            return Ok(());
        }
        let call = |call, result: nix::Result<()>| {
            result.with_context(|| format!("cannot become {self} ({call})"))
        };
        // Switch groups first: only root may change them, and root is given up next.
        match self.user.as_ref().and_then(|user| user.name.as_ref()) {
            Some(name) => call("initgroups", sys::initgroups(name, self.gid))?,
            None => call("setgroups", sys::setgroups(&[self.gid]))?,
        }
        call("setresgid", sys::setresgid(self.gid, self.gid, self.gid))?;
        if let Some(user) = &self.user {
            call("setresuid", sys::setresuid(user.uid, user.uid, user.uid))?;
        }
        ensure!(
            self.is_current() && !self.is_reversible(),
            "root's rights are not gone after becoming {self}"
        );
        Ok(())
    }

    /// Returns whether the real, effective and saved IDs are all those of this identity.
    fn is_current(&self) -> bool {
        let user = self.user.as_ref();
        user.is_none_or(|user| sys::has_user(user.uid)) && sys::has_group(self.gid)
    }

    /// Returns whether the process can become root again. Tries to become root for that.
    fn is_reversible(&self) -> bool {
        let root_user = Uid::from_raw(0);
        let stays_root = self.user.as_ref().is_none_or(|user| user.uid == root_user);
        !stays_root
            && (seteuid(root_user).is_ok()
                || (self.gid.as_raw() != 0 && setegid(Gid::from_raw(0)).is_ok()))
    }
}

const CANNOT_LOOK_UP: &str = "cannot look up users and groups";

/// Looks up a user by name, else by number. Also returns the user's primary group; `None` for a
/// number without an account.
fn find_user(text: &str) -> anyhow::Result<(Account, Option<Gid>)> {
    let by_name = User::from_name(text).context(CANNOT_LOOK_UP)?;
    let number = text.parse().ok().map(Uid::from_raw);
    let by_number = || number.map_or(Ok(None), User::from_uid);
    let found = by_name.map_or_else(by_number, |user| Ok(Some(user)));
    match found.context(CANNOT_LOOK_UP)? {
        Some(user) => {
            let (uid, name) = (user.uid, CString::new(user.name).ok());
            Ok((Account { uid, name }, Some(user.gid)))
        }
        None => match number.filter(|uid| uid.as_raw() != u32::MAX) {
            Some(uid) => Ok((Account { uid, name: None }, None)),
            None => bail!("there is no user {text:?}"),
        },
    }
}

fn find_group(text: &str) -> anyhow::Result<Gid> {
    if let Some(group) = Group::from_name(text).context(CANNOT_LOOK_UP)? {
        return Ok(group.gid);
    }
    // The system calls interpret the maximum as "leave unchanged".
    let number = text.parse().ok().filter(|number| *number != u32::MAX);
    number
        .map(Gid::from_raw)
        .ok_or_else(|| anyhow!("there is no group {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(user: Option<&str>, group: Option<&str>) -> Result<String, String> {
        Identity::find(user, group)
            .map(|found| found.map_or_else(String::new, |id| id.to_string()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn users_and_groups_are_found_by_name_and_number() {
        assert_eq!(find(None, None), Ok(String::new()));
        assert_eq!(find(Some("root"), None), Ok("user 0, group 0".to_owned()));
        assert_eq!(find(Some("0"), None), Ok("user 0, group 0".to_owned()));
        assert_eq!(
            find(Some("root"), Some("12345")),
            Ok("user 0, group 12345".to_owned())
        );
        assert_eq!(
            find(Some("4000000000"), Some("root")),
            Ok("user 4000000000, group 0".to_owned())
        );
        assert_eq!(find(None, Some("root")), Ok("group 0".to_owned()));
    }

    #[test]
    fn unknown_users_and_groups_are_errors() {
        let check = |user, group, expected: &str| {
            assert_eq!(find(user, group), Err(expected.to_owned()));
        };
        let unknown = "no-such-account";
        check(Some(unknown), None, "there is no user \"no-such-account\"");
        check(None, Some(unknown), "there is no group \"no-such-account\"");
        check(Some("4294967295"), None, "there is no user \"4294967295\"");
        check(
            Some("4000000000"),
            None,
            "user 4000000000 has no account: name its group with --group",
        );
    }
}
