//! CPU time, memory, threads and descriptors of a process, from `/proc`.

use std::fs;
use std::time::Duration;

/// Length of a tick in `/proc/PID/stat`: `USER_HZ` is 100 for programs on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// Returns the fields of `/proc/PID/stat` from the third on: state, parent PID, and so on.
///
/// The name in the second field may contain spaces and parentheses.
pub fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    Some(fields.trim_end().split(' ').map(str::to_owned).collect())
}

fn ticks(pid: u32, fields: [usize; 2]) -> Option<Duration> {
    let stat = stat_fields(pid)?;
    let sum = fields
        .iter()
        .map(|&at| stat.get(at)?.parse::<u32>().ok())
        .sum::<Option<u32>>();
    Some(TICK * sum?)
}

/// Returns the user and system time of all threads of a process, with a resolution of 10 ms; `None`
/// if there is no such process.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    ticks(pid, [11, 12])
}

/// Returns the CPU time of the children that a process has waited for, with a resolution of 10 ms;
/// `None` if there is no such process.
pub fn children_cpu_time(pid: u32) -> Option<Duration> {
    ticks(pid, [13, 14])
}

/// Returns the CPU time of the living threads of a process, with a resolution of nanoseconds.
pub fn living_threads_cpu_time(pid: u32) -> Duration {
    let of_thread = |thread: u32| -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    Duration::from_nanos(threads(pid).into_iter().filter_map(of_thread).sum())
}

/// Returns the value of the line `NAME: VALUE` in `/proc/PID/FILE`, for example in `status`; `None`
/// if there is no such line.
pub fn field(pid: u32, file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Some(value?.trim().to_owned())
}

/// Returns the value of the line `NAME: N kB` in `/proc/PID/FILE`, converted to bytes. In `status`,
/// `VmHWM` is the peak resident memory, and `RssAnon` the anonymous resident memory.
pub fn memory(pid: u32, file: &str, name: &str) -> Option<u64> {
    let text = field(pid, file, name)?;
    let kib: u64 = text.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Returns the number of open descriptors of a process; `None` if this user may not read it.
pub fn descriptor_count(pid: u32) -> Option<usize> {
    Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
}

/// Returns the thread IDs of a process; empty if it has ended.
pub fn threads(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"));
    entries
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// Returns the PIDs of the children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let of_thread = |thread| fs::read_to_string(format!("/proc/{pid}/task/{thread}/children"));
    let lists = threads(pid).into_iter().filter_map(|id| of_thread(id).ok());
    let lists: Vec<String> = lists.collect();
    let pids = lists.iter().flat_map(|list| list.split_whitespace());
    pids.filter_map(|pid| pid.parse().ok()).collect()
}

/// Returns the PIDs of a process and all its descendants, parents before children.
pub fn family(pid: u32) -> Vec<u32> {
    let mut pids = vec![pid];
    let mut index = 0;
    while let Some(&parent) = pids.get(index) {
        pids.extend(children(parent));
        index += 1;
    }
    pids
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;
    use crate::eventually;

    #[test]
    fn a_family_is_a_process_and_its_descendants() {
        // The shell waits for `cat`, which waits for the end of its input.
        let mut command = Command::new("sh");
        let command = command.args(["-c", "cat; true"]).stdin(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        let pid = shell.id();
        eventually("the shell has a child", || family(pid).len() == 2);
        assert!(memory(pid, "status", "VmHWM").is_some());
        assert!(descriptor_count(pid).unwrap() >= 3);
        drop(shell.stdin.take());
        assert!(shell.wait().unwrap().success());
        assert_eq!(family(pid), [pid]);
        assert_eq!(cpu_time(pid), None);
    }

    #[test]
    fn cpu_time_grows_with_work() {
        let pid = std::process::id();
        let before = living_threads_cpu_time(pid);
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        let used = living_threads_cpu_time(pid).saturating_sub(before);
        assert!(used > Duration::from_millis(2), "{used:?}");
        assert!(cpu_time(pid).is_some() && children_cpu_time(pid).is_some());
    }
}
