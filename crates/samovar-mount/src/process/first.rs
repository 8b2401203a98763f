//! The first process of a private PID namespace. If the first process ends, the kernel kills all
//! others in the namespace. The first process is killed when the process that has started it ends.

use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context as _, ensure};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, Signal, WaitOptions, getpid, set_parent_process_death_signal, wait};

use super::namespace::Permission;
use super::signals::Signals;

/// Environment variable with the number of the process that has started this one as the first of a
/// namespace.
const PARENT: &str = "SAMOVAR_RUN_PARENT";

/// Returns whether this process was started by [`start`].
pub fn is_first() -> bool {
    getpid() == Pid::INIT && std::env::var_os(PARENT).is_some()
}

/// Runs this program with the same arguments as the first process of the PID namespace in which
/// children of this process are. Returns how it has ended.
///
/// # Errors
///
/// The process cannot be started.
pub fn start(signals: &Signals) -> anyhow::Result<ExitStatus> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("samovar").args(std::env::args_os().skip(1));
    command.env(PARENT, getpid().to_string());
    let child = signals.start(None, || {
        let _permission = Permission::all()?;
        command.spawn().context("cannot start a process")
    })?;
    wait_for(&child).context("cannot wait for a process")
}

/// Prepares the first process of a PID namespace: the kernel kills it when its parent ends, and
/// `/proc` shows the processes of the namespace. `parent`: the number of the parent outside.
///
/// # Errors
///
/// The parent has ended, or the system refuses the mount.
pub fn settle(parent: Option<Pid>) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot watch a process")?;
    // The parent may have ended before this. Until /proc is mounted here, process numbers are those
    // outside the namespace.
    let expected = std::env::var(PARENT).ok();
    let parent = parent.map(|parent| parent.to_string());
    ensure!(
        parent.is_some() && parent == expected,
        "the process that started this one has ended"
    );
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None).context("cannot mount /proc")?;
    Permission::give_up().context("cannot give up privileges")
}

/// Waits for a child. Reaps other processes that end meanwhile: those whose parents have ended are
/// children of the first process.
///
/// # Errors
///
/// The child was reaped before.
pub fn wait_for(child: &Child) -> io::Result<ExitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == Pid::from_child(child) => {
                return Ok(ExitStatus::from_raw(status.as_raw()));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Returns a command without what only the first process needs.
pub fn without_parent(command: &mut Command) -> &mut Command {
    command.env_remove(PARENT)
}
