//! What a process takes, and those that it has started: some servers are several.

use std::fs;
use std::iter::Sum;
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

    /// The most memory that each ever had, in bytes and in sum.
    pub(crate) fn memory_peak(&self) -> Option<u64> {
        sum(self.id, memory_peak)
    }

    /// Their open files, if we may see them.
    pub(crate) fn descriptors(&self) -> Option<usize> {
        let count = |id| Some(fs::read_dir(format!("/proc/{id}/fd")).ok()?.count());
        sum(self.id, count)
    }
}

/// Of a process and its family; `None` if there is none. One that ends meanwhile is missed.
fn sum<T: Sum>(id: u32, of: impl Fn(u32) -> Option<T>) -> Option<T> {
    let all: Vec<T> = family(id).into_iter().filter_map(of).collect();
    (!all.is_empty()).then(|| all.into_iter().sum())
}

/// A process and all that it has started, or those have.
fn family(id: u32) -> Vec<u32> {
    let mut ids = vec![id];
    let mut index = 0;
    while let Some(id) = ids.get(index) {
        let threads = fs::read_dir(format!("/proc/{id}/task"))
            .into_iter()
            .flatten();
        let lists = threads
            .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
        let lists: Vec<_> = lists.collect();
        let children = lists.iter().flat_map(|list| list.split_whitespace());
        ids.extend(children.filter_map(|id| id.parse::<u32>().ok()));
        index += 1;
    }
    ids
}

fn memory_peak(id: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn cpu(id: u32) -> Option<Duration> {
    sum(id, cpu_of_one)
}

/// Processor time of this process alone: the server may be its child.
pub(crate) fn own_cpu() -> Option<Duration> {
    cpu_of_one(std::process::id())
}

fn cpu_of_one(id: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name, in parentheses, may have spaces in it.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * 1000 / TICKS))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_a_process_has_started_counts() {
        // The shell waits for a child, and that for the end of its input.
        let mut command = Command::new("sh");
        let command = command.args(["-c", "cat; true"]).stdin(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        let started = Instant::now();
        while family(shell.id()).len() < 2 {
            assert!(started.elapsed() < Duration::from_secs(20), "no child");
        }
        let both = Process::of(shell.id()).unwrap();
        assert!(both.memory_peak() > memory_peak(shell.id()));
        assert!(both.descriptors() >= Some(6));
        assert!(both.cpu().is_some());
        drop(shell.stdin.take());
        assert!(shell.wait().unwrap().success());
        assert_eq!(family(shell.id()), [shell.id()]);
        assert!(Process::of(shell.id()).is_none());
    }
}
