//! Switches user and group after the sockets are bound.

use std::ffi::CString;
use std::fmt;

use nix::errno::Errno;
use nix::unistd::{
    Gid, Group, Uid, User, getresgid, getresuid, initgroups, setegid, seteuid, setgroups,
    setresgid, setresuid,
};

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

/// Why the user could not be switched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// No user has this name or number.
    #[error("there is no user {0:?}")]
    NoUser(String),
    /// No group has this name or number.
    #[error("there is no group {0:?}")]
    NoGroup(String),
    /// The UID has no account, so its group is unknown.
    #[error("user {0} has no account: name its group with --group")]
    GroupNeeded(Uid),
    /// The user database cannot be read.
    #[error("cannot look up users and groups")]
    Lookup(#[source] Errno),
    /// Only root can switch to another user.
    #[error("only root can become {0}")]
    NotRoot(Identity),
    /// A system call failed.
    #[error("cannot become {identity} ({call})")]
    Call {
        /// The user and group to switch to.
        identity: Identity,
        /// Name of the system call.
        call: &'static str,
        /// The error of the call.
        #[source]
        source: Errno,
    },
    /// All calls succeeded, but the process could become root again.
    #[error("root's rights are not gone after becoming {0}")]
    Reversible(Identity),
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
    /// [`IdentityError`] for an unknown user or group.
    pub fn find(user: Option<&str>, group: Option<&str>) -> Result<Option<Self>, IdentityError> {
        let user = user.map(find_user).transpose()?;
        let group = group.map(find_group).transpose()?;
        let Some((account, primary_group)) = user else {
            return Ok(group.map(|gid| Self { user: None, gid }));
        };
        let gid = group.or(primary_group);
        Ok(Some(Self {
            gid: gid.ok_or(IdentityError::GroupNeeded(account.uid))?,
            user: Some(account),
        }))
    }

    /// Switches all threads to this user and group permanently, with the user's supplementary
    /// groups.
    ///
    /// Does nothing if the process already runs as this user. Open files and sockets stay open.
    ///
    /// # Errors
    ///
    /// [`IdentityError`]. The process may then be partly switched, and must exit.
    pub fn assume(&self) -> Result<(), IdentityError> {
        if !Uid::effective().is_root() {
            return if self.is_current() {
                Ok(())
            } else {
                Err(IdentityError::NotRoot(self.clone()))
            };
        }
        let call = |call, result: nix::Result<()>| {
            result.map_err(|source| IdentityError::Call {
                identity: self.clone(),
                call,
                source,
            })
        };
        // Switch groups first: only root may change them, and root is given up next.
        match self.user.as_ref().and_then(|user| user.name.as_ref()) {
            Some(name) => call("initgroups", initgroups(name, self.gid))?,
            None => call("setgroups", setgroups(&[self.gid]))?,
        }
        call("setresgid", setresgid(self.gid, self.gid, self.gid))?;
        if let Some(user) = &self.user {
            call("setresuid", setresuid(user.uid, user.uid, user.uid))?;
        }
        if self.is_current() && !self.is_reversible() {
            Ok(())
        } else {
            Err(IdentityError::Reversible(self.clone()))
        }
    }

    /// Returns whether the real, effective and saved IDs are all those of this identity.
    fn is_current(&self) -> bool {
        let user_is = self.user.as_ref().is_none_or(|user| {
            getresuid().is_ok_and(|ids| [ids.real, ids.effective, ids.saved] == [user.uid; 3])
        });
        user_is
            && getresgid().is_ok_and(|ids| [ids.real, ids.effective, ids.saved] == [self.gid; 3])
    }

    /// Returns whether the process can become root again; tries to.
    fn is_reversible(&self) -> bool {
        let root_user = Uid::from_raw(0);
        let stays_root = self.user.as_ref().is_none_or(|user| user.uid == root_user);
        !stays_root
            && (seteuid(root_user).is_ok()
                || (self.gid.as_raw() != 0 && setegid(Gid::from_raw(0)).is_ok()))
    }
}

/// Looks up a user, and the primary group if the user has an account.
fn find_user(text: &str) -> Result<(Account, Option<Gid>), IdentityError> {
    let by_name = User::from_name(text).map_err(IdentityError::Lookup)?;
    let number = text.parse().ok().map(Uid::from_raw);
    let by_number = || {
        number
            .map_or(Ok(None), User::from_uid)
            .map_err(IdentityError::Lookup)
    };
    match by_name.map_or_else(by_number, |user| Ok(Some(user)))? {
        Some(user) => {
            let (uid, name) = (user.uid, CString::new(user.name).ok());
            Ok((Account { uid, name }, Some(user.gid)))
        }
        None => match number.filter(|uid| uid.as_raw() != u32::MAX) {
            Some(uid) => Ok((Account { uid, name: None }, None)),
            None => Err(IdentityError::NoUser(text.to_owned())),
        },
    }
}

fn find_group(text: &str) -> Result<Gid, IdentityError> {
    if let Some(group) = Group::from_name(text).map_err(IdentityError::Lookup)? {
        return Ok(group.gid);
    }
    // The system calls interpret the maximum as "leave unchanged".
    let number = text.parse().ok().filter(|number| *number != u32::MAX);
    number
        .map(Gid::from_raw)
        .ok_or_else(|| IdentityError::NoGroup(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(user: Option<&str>, group: Option<&str>) -> Result<String, IdentityError> {
        Identity::find(user, group).map(|found| found.map_or_else(String::new, |id| id.to_string()))
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
    fn who_is_not_there() {
        let nobody = "no-such-account";
        assert_eq!(
            find(Some(nobody), None),
            Err(IdentityError::NoUser(nobody.to_owned()))
        );
        assert_eq!(
            find(None, Some(nobody)),
            Err(IdentityError::NoGroup(nobody.to_owned()))
        );
        assert_eq!(
            find(Some("4294967295"), None),
            Err(IdentityError::NoUser("4294967295".to_owned()))
        );
        let number = Uid::from_raw(4_000_000_000);
        assert_eq!(
            find(Some("4000000000"), None),
            Err(IdentityError::GroupNeeded(number))
        );
    }
}
