//! Servers under test: starting and ending them, and the CPU time they take.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::figures::{Quantity, Values, to_f64};
use crate::http::Client;

/// How long a server may take until it answers.
const START_SECONDS_MAX: u64 = 30;

/// So many steps without work in a row are rest.
const REST_COUNT: u32 = 4;
const REST_STEP: Duration = Duration::from_millis(30);
const REST_MAX: Duration = Duration::from_secs(20);

/// A server that runs until this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    child: Child,
}

/// A port nobody listens on at this moment.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port())
}

impl Server {
    /// Runs a shell command that makes a server listen on `port`, and waits until it answers a
    /// request for `probe` with 200. Its input stays open: some servers end with it.
    pub(crate) fn start_command(name: &str, command: &str, port: u16, probe: &str) -> Result<Self> {
        // A group of its own, so that workers and wrappers end with it.
        let child = Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {command}"))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut server = Self {
            name: name.into(),
            address,
            child,
        };
        server
            .wait_until_it_answers(probe)
            .with_context(|| format!("{name}: {command}"))?;
        Ok(server)
    }

    fn wait_until_it_answers(&mut self, probe: &str) -> Result<()> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                let mut said = String::new();
                if let Some(mut stderr) = self.child.stderr.take() {
                    stderr.read_to_string(&mut said).ok();
                }
                bail!("ended with {status}\n{}", said.trim_end());
            }
            if let Ok(answer) = Client::new(self.address).get(probe, |_| ())
                && answer.status == 200
            {
                return Ok(());
            }
            if started.elapsed() > Duration::from_secs(START_SECONDS_MAX) {
                bail!("no answer on {} in {START_SECONDS_MAX} s", self.address);
            }
            // Short, or it would be measured with the start.
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits until it does nothing any more, or for so long that it never will.
    pub(crate) fn rest(&self) {
        let started = Instant::now();
        let mut quiet_count = 0;
        let mut before = self.cpu();
        while quiet_count < REST_COUNT && started.elapsed() < REST_MAX {
            std::thread::sleep(REST_STEP);
            let now = self.cpu();
            // A timer that looks around now and then is rest.
            let is_quiet = now.saturating_sub(before) < Duration::from_micros(500);
            quiet_count = if is_quiet { quiet_count + 1 } else { 0 };
            before = now;
        }
    }

    /// Memory of all its processes.
    pub(crate) fn memory(&self) -> Values {
        let mut sums = Values::new();
        for process in self.processes() {
            for (file, field, quantity) in [
                ("smaps_rollup", "Pss:", Quantity::PssMib),
                ("status", "VmRSS:", Quantity::RssMib),
                ("status", "VmHWM:", Quantity::PeakMib),
            ] {
                let kib = kib_of(process, file, field).unwrap_or_default();
                *sums.entry(quantity).or_default() += to_f64(kib) / 1024.0;
            }
        }
        sums
    }

    /// CPU time of all its processes so far, ended children included.
    pub(crate) fn cpu(&self) -> Duration {
        self.processes().into_iter().map(cpu_of).sum()
    }

    /// Lets all its threads run on core 0 only, or again on all of `cores`.
    pub(crate) fn pin(&self, cores: &CpuSet) {
        for process in self.processes() {
            for thread in numbers(&format!("/proc/{process}/task")) {
                // A thread that has just ended need not be pinned.
                sched_setaffinity(pid(thread), cores).ok();
            }
        }
    }

    /// Memory of all its processes that no file stands behind, in bytes.
    pub(crate) fn anonymous_len(&self) -> u64 {
        let of_process =
            |process: u32| -> Option<u64> { Some(1024 * kib_of(process, "status", "RssAnon:")?) };
        self.processes().into_iter().filter_map(of_process).sum()
    }

    /// Descriptors that all its processes have open.
    pub(crate) fn descriptor_count(&self) -> usize {
        let of_process = |process: u32| numbers(&format!("/proc/{process}/fd")).len();
        self.processes().into_iter().map(of_process).sum()
    }

    /// Its processes: the one started and all below it.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for process in numbers("/proc") {
            if let Some(parent) = stat_fields(process).and_then(|f| f.get(1)?.parse().ok()) {
                children.entry(parent).or_default().push(process);
            }
        }
        let mut found = vec![self.child.id()];
        let mut next = 0;
        while let Some(process) = found.get(next) {
            let below = children.get(process).cloned().unwrap_or_default();
            found.extend(below);
            next += 1;
        }
        found
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(group) = pid(self.child.id()) {
            kill_process_group(group, Signal::TERM).ok();
            let started = Instant::now();
            while started.elapsed() < Duration::from_secs(2) {
                if matches!(self.child.try_wait(), Ok(Some(_))) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            kill_process_group(group, Signal::KILL).ok();
        }
        self.child.wait().ok();
    }
}

/// CPU time of this program so far: the client's side of a transfer.
pub(crate) fn own_cpu() -> Duration {
    cpu_of(std::process::id())
}

/// Whether another process watches all threads of this one.
pub(crate) fn is_traced(process: u32) -> bool {
    numbers(&format!("/proc/{process}/task"))
        .into_iter()
        .all(|thread| {
            let path = format!("/proc/{process}/task/{thread}/status");
            // A thread that has just ended makes no calls.
            let status = fs::read_to_string(path).unwrap_or_default();
            !status.lines().any(|line| line == "TracerPid:\t0")
        })
}

/// CPU time so far of programs that this one has started and waited for, in steps of 10 ms.
pub(crate) fn ended_children_cpu() -> Duration {
    let fields = stat_fields(std::process::id()).unwrap_or_default();
    let ticks = |at: usize| -> u64 {
        fields
            .get(at)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    };
    Duration::from_millis(10 * (ticks(13) + ticks(14)))
}

/// Lets this thread, and those it starts, run on these cores only.
pub(crate) fn pin_own_thread(cores: &CpuSet) {
    sched_setaffinity(None, cores).ok();
}

/// All cores this program may use, and the first of them alone.
pub(crate) fn cores() -> Result<(CpuSet, CpuSet)> {
    let all = sched_getaffinity(None).context("cannot see the cores")?;
    let mut first = CpuSet::new();
    first.set(
        (0..CpuSet::MAX_CPU)
            .find(|&core| all.is_set(core))
            .unwrap_or(0),
    );
    Ok((all, first))
}

/// CPU time of one process. The scheduler counts living threads in nanoseconds; those that have
/// ended are in the other count, which has steps of 10 ms. So: whichever is more.
fn cpu_of(process: u32) -> Duration {
    let threads = numbers(&format!("/proc/{process}/task"));
    let of_thread = |thread: u32| -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    let living = Duration::from_nanos(threads.into_iter().filter_map(of_thread).sum());
    // USER_HZ, which Linux promises to programs whatever the kernel's own tick is.
    let ticks = |at: usize| -> Duration {
        let fields = stat_fields(process).unwrap_or_default();
        let ticks = fields
            .get(at)
            .and_then(|ticks| ticks.parse().ok())
            .unwrap_or(0);
        Duration::from_millis(10 * ticks)
    };
    living.max(ticks(11) + ticks(12)) + ticks(13) + ticks(14)
}

/// A field in KiB of a file in a process's folder.
fn kib_of(process: u32, file: &str, field: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/{file}")).ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The fields of `/proc/PID/stat` behind the name, which may itself hold spaces: state, parent, …
fn stat_fields(process: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    Some(fields.split(' ').map(str::to_owned).collect())
}

/// The entries of a folder that are numbers.
fn numbers(folder: &str) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// A number as the id of a process.
pub(crate) fn pid(number: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(number).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_cpu_grows_with_work() {
        let before = own_cpu();
        let started = Instant::now();
        let mut sum = 0_u64;
        while started.elapsed() < Duration::from_millis(50) {
            sum = std::hint::black_box(sum + 1);
        }
        let used = own_cpu() - before;
        assert!(used > Duration::from_millis(5), "{used:?}");
    }

    #[test]
    fn a_server_that_ends_at_once_says_why() {
        let error = Server::start_command("none", "echo no >&2; exit 3", 1, "/").unwrap_err();
        assert!(format!("{error:#}").contains("no"), "{error:#}");
    }
}
