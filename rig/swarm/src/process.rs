//! What a process takes.

use std::fs;
use std::time::Duration;

/// Ticks of a processor's clock in a second, as Linux counts them for programs.
const TICKS: u64 = 100;

/// A process, and what it had taken when it was first looked at.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    id: u32,
    before: Duration,
}

impl Process {
    /// `None` if there is no such process.
    pub(crate) fn of(id: u32) -> Option<Self> {
        let before = cpu(id)?;
        Some(Self { id, before })
    }

    /// Processor time since then, of all its threads.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        Some(cpu(self.id)?.saturating_sub(self.before))
    }

    /// The most memory it ever had, in bytes.
    pub(crate) fn memory_peak(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id)).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    }

    /// Its open files, if we may see them.
    pub(crate) fn descriptors(&self) -> Option<usize> {
        Some(fs::read_dir(format!("/proc/{}/fd", self.id)).ok()?.count())
    }
}

fn cpu(id: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name, in parentheses, may have spaces in it.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * 1000 / TICKS))
}
