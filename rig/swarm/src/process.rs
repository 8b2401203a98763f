//! CPU time, memory and open descriptors of a server and its descendants.

use std::iter::Sum;
use std::time::Duration;

use testkit::procfs;

/// A process, and its CPU time when this value was created.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pid: u32,
    before: Duration,
}

impl Process {
    /// Returns the process with this PID; `None` if there is none.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let before = sum(pid, procfs::cpu_time)?;
        Some(Self { pid, before })
    }

    /// Returns the CPU time used since this value was created.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        let now = sum(self.pid, procfs::cpu_time)?;
        Some(now.saturating_sub(self.before))
    }

    /// Returns the sum of the peaks of resident memory over all processes, in bytes.
    pub(crate) fn memory_peak(&self) -> Option<u64> {
        sum(self.pid, |pid| procfs::memory(pid, "status", "VmHWM"))
    }

    /// Returns the number of open descriptors, if it is readable.
    pub(crate) fn descriptors(&self) -> Option<usize> {
        sum(self.pid, procfs::descriptor_count)
    }
}

/// Sums a value over a process and its descendants; `None` if none of them exists. Skips processes
/// that end meanwhile.
fn sum<T: Sum>(pid: u32, of: impl Fn(u32) -> Option<T>) -> Option<T> {
    let all: Vec<T> = procfs::family(pid).into_iter().filter_map(of).collect();
    (!all.is_empty()).then(|| all.into_iter().sum())
}

/// Returns the CPU time of this process, without its child processes.
pub(crate) fn own_cpu() -> Option<Duration> {
    procfs::cpu_time(std::process::id())
}
