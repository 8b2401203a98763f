//! The private namespaces of `samovar ws run`: mounts that no process outside can see.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{
    Pid, PidfdFlags, Signal, getegid, geteuid, getpid, pidfd_open, pidfd_send_signal,
};
use rustix::thread::{
    CapabilitySet, UnshareFlags, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, set_capabilities,
};
use samovar_workspace::mounts::mounts;

use crate::refusal::{Step, refusal};

/// Time that processes have to end after TERM.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time that processes have to end after KILL. A process that waits for a device takes longer.
const PATIENCE_KILL: Duration = Duration::from_secs(10);

/// Time between two checks whether processes have ended.
const POLL: Duration = Duration::from_millis(10);

/// Name of the mount namespace of this process.
const NAMESPACE: &str = "/proc/self/ns/mnt";
/// Name of the mount namespace of this thread.
const THREAD_NAMESPACE: &str = "/proc/thread-self/ns/mnt";

/// A mount in `/proc` that hides nothing.
const BINFMT: &str = "/proc/sys/fs/binfmt_misc";

/// The kind of namespaces that the process is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespace {
    /// Whether the process has no privileges outside its user namespace. Overlays then store their
    /// metadata in attributes of the user.
    pub is_unprivileged: bool,
}

impl Namespace {
    /// Moves the process into a new mount namespace, and into a new user namespace if it may not
    /// mount otherwise. The user remains the same. Mounts made here are invisible outside, and
    /// vanish with the last process of the namespace.
    ///
    /// The process must have one thread.
    ///
    /// # Errors
    ///
    /// The kernel or its configuration forbids it; the error names the reason and the remedy.
    pub fn enter() -> anyhow::Result<Self> {
        let outside = fs::read_link(THREAD_NAMESPACE)?;
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        match unshare(UnshareFlags::NEWNS) {
            Ok(()) => {}
            Err(Errno::PERM) => {
                unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
                    .map_err(|errno| refusal(Step::Namespace, errno))?;
                // A group map is permitted only without setgroups.
                for (file, text) in [
                    ("setgroups", "deny".to_owned()),
                    ("uid_map", format!("{user} {user} 1")),
                    ("gid_map", format!("{group} {group} 1")),
                ] {
                    fs::write(format!("/proc/self/{file}"), text)
                        .map_err(|error| refusal(Step::Map, errno_of(&error)))?;
                }
            }
            Err(errno) => return Err(refusal(Step::Namespace, errno)),
        }
        // Without a namespace of its own, the process would now change the mounts of the machine.
        ensure!(
            fs::read_link(THREAD_NAMESPACE)? != outside,
            "the kernel has not created a mount namespace"
        );
        // Mounts of the machine still arrive here; mounts made here do not get out.
        let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        mount_change("/", propagation).map_err(|errno| refusal(Step::Propagation, errno))?;
        Self::current()
    }

    /// Returns the kind of the namespaces that the process is in.
    ///
    /// # Errors
    ///
    /// `/proc` is not mounted.
    pub fn current() -> anyhow::Result<Self> {
        Ok(Self {
            is_unprivileged: !is_initial_user_namespace()?,
        })
    }
}

/// Puts the next process that this thread starts, and all that follow, into a new PID namespace.
/// Then the thread cannot start threads. Returns whether it has done so. Some containers hide parts
/// of `/proc`; there, the kernel does not permit that a user mounts the `/proc` that programs in
/// the namespace need.
///
/// # Errors
///
/// `/proc` is not mounted.
pub fn unshare_processes(namespace: Namespace) -> io::Result<bool> {
    if namespace.is_unprivileged {
        let shown = [Path::new("/proc"), Path::new(BINFMT)];
        let hides = |point: &Path| point.starts_with("/proc") && !shown.contains(&point);
        if mounts()?.iter().any(|mount| hides(&mount.point)) {
            return Ok(false);
        }
    }
    Ok(unshare(UnshareFlags::NEWPID).is_ok())
}

/// Returns whether this process may mount file systems in its mount namespace.
pub fn may_mount() -> bool {
    let sets = capabilities(None);
    sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Moves the process into new namespaces.
#[expect(
    deprecated,
    reason = "unsafe only with FILES, which would separate the descriptor tables of threads"
)]
fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    rustix::thread::unshare(flags)
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn is_initial_user_namespace() -> anyhow::Result<bool> {
    let map = fs::read_to_string("/proc/self/uid_map").context("cannot read /proc/self/uid_map")?;
    Ok(is_initial(&map))
}

/// Returns whether a map of users belongs to the initial user namespace.
fn is_initial(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Passes privileges on to programs that this process starts, until the value is dropped.
#[derive(Debug)]
pub struct Permission(());

impl Permission {
    /// Passes on the right to mount.
    ///
    /// # Errors
    ///
    /// The process may not mount itself.
    pub fn mount() -> anyhow::Result<Self> {
        pass_on(CapabilitySet::SYS_ADMIN).context("cannot pass on the right to mount")?;
        Ok(Self(()))
    }

    /// Passes all privileges of this process on to the programs that it starts.
    ///
    /// # Errors
    ///
    /// The kernel refuses to pass on a privilege.
    pub fn all() -> anyhow::Result<Self> {
        let permitted = capabilities(None).map(|sets| sets.permitted);
        permitted
            .and_then(pass_on)
            .context("cannot pass on privileges")?;
        Ok(Self(()))
    }

    /// Passes nothing on.
    ///
    /// # Errors
    ///
    /// The system refuses it.
    pub fn give_up() -> Result<(), Errno> {
        clear_ambient_capability_set()?;
        let mut sets = capabilities(None)?;
        sets.inheritable = CapabilitySet::empty();
        set_capabilities(None, sets)
    }
}

impl Drop for Permission {
    fn drop(&mut self) {
        // Cannot fail: rights are only given up. If it did, the command would have a right in its
        // own namespace only.
        Self::give_up().ok();
    }
}

fn pass_on(passed: CapabilitySet) -> Result<(), Errno> {
    let mut sets = capabilities(None)?;
    sets.inheritable |= passed;
    set_capabilities(None, sets)?;
    for capability in passed.iter() {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

/// Returns the name of the mount namespace of this process.
///
/// # Errors
///
/// `/proc` is not mounted.
pub fn mount_namespace() -> anyhow::Result<String> {
    let name = fs::read_link(NAMESPACE).context("cannot read /proc")?;
    name.into_os_string()
        .into_string()
        .map_err(|_name| anyhow::anyhow!("/proc is not mounted"))
}

/// Returns the processes in the mount namespace of this process, except itself and `others`.
fn members(others: &[Pid]) -> io::Result<Vec<Pid>> {
    let own = fs::read_link(NAMESPACE)?;
    let mut found = Vec::new();
    for process in fs::read_dir("/proc")? {
        let name = process?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        let Some(pid) = number.and_then(Pid::from_raw) else {
            continue;
        };
        if pid == getpid() || others.contains(&pid) {
            continue;
        }
        // Fails for processes of other users, which are in other namespaces, and for zombies.
        let namespace = fs::read_link(format!("/proc/{}/ns/mnt", pid.as_raw_nonzero()));
        if namespace.is_ok_and(|namespace| namespace == own) {
            found.push(pid);
        }
    }
    Ok(found)
}

fn signal(pid: Pid, signal: Signal) -> io::Result<()> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    // Check again: the number may have been reused before the descriptor was open.
    let namespace = fs::read_link(format!("/proc/{}/ns/mnt", pid.as_raw_nonzero()))?;
    if namespace == fs::read_link(NAMESPACE)? {
        pidfd_send_signal(process, signal)?;
    }
    Ok(())
}

/// Ends all processes in the mount namespace of this process, except itself and `others`: by TERM,
/// and by KILL if that is not enough. Returns their number.
///
/// # Errors
///
/// A process does not end.
pub fn end_members(others: &[Pid]) -> anyhow::Result<usize> {
    let mut terminated = HashSet::new();
    let started_at = Instant::now();
    loop {
        let members = members(others).context("cannot list the processes of the command")?;
        if members.is_empty() {
            return Ok(terminated.len());
        }
        for pid in &members {
            // Errors: the process has just ended.
            if started_at.elapsed() >= PATIENCE {
                signal(*pid, Signal::KILL).ok();
                terminated.insert(*pid);
            } else if terminated.insert(*pid) {
                signal(*pid, Signal::TERM).ok();
            }
        }
        ensure!(
            started_at.elapsed() < PATIENCE + PATIENCE_KILL,
            "process {} does not end",
            members[0].as_raw_nonzero()
        );
        std::thread::sleep(POLL);
    }
}

/// Kills all processes in the mount namespace of this process, except itself.
///
/// # Errors
///
/// The processes cannot be listed.
pub fn kill_members() -> io::Result<()> {
    let started_at = Instant::now();
    loop {
        let members = members(&[])?;
        if members.is_empty() || started_at.elapsed() >= PATIENCE_KILL {
            return Ok(());
        }
        for pid in members {
            // Errors: the process has just ended.
            signal(pid, Signal::KILL).ok();
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_of_the_initial_user_namespace() {
        assert!(is_initial("         0          0 4294967295\n"));
        for other in ["", "1000 1000 1\n", "0 0 1\n", "0 100000 65536\n"] {
            assert!(!is_initial(other), "{other:?}");
        }
    }
}
