//! Servers under test: starting and ending them, and the CPU time they take.

use std::fs;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use testkit::procfs;

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
                ("smaps_rollup", "Pss", Quantity::PssMib),
                ("status", "VmRSS", Quantity::RssMib),
                ("status", "VmHWM", Quantity::PeakMib),
            ] {
                let len = procfs::memory(process, file, field).unwrap_or_default();
                *sums.entry(quantity).or_default() += to_f64(len) / f64::from(1 << 20);
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
            for thread in procfs::threads(process) {
                // A thread that has just ended need not be pinned.
                sched_setaffinity(pid(thread), cores).ok();
            }
        }
    }

    /// Returns the memory of all processes that no file backs, in bytes.
    pub(crate) fn anonymous_len(&self) -> u64 {
        let of_process = |pid| procfs::memory(pid, "status", "RssAnon");
        self.processes().into_iter().filter_map(of_process).sum()
    }

    /// Returns how many descriptors all processes have open.
    pub(crate) fn descriptor_count(&self) -> usize {
        let pids = self.processes().into_iter();
        pids.filter_map(procfs::descriptor_count).sum()
    }

    /// Returns the PIDs of the process that was started and of its descendants.
    pub(crate) fn processes(&self) -> Vec<u32> {
        procfs::family(self.child.id())
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
    procfs::threads(process).into_iter().all(|thread| {
        let path = format!("/proc/{process}/task/{thread}/status");
        // A thread that has just ended makes no calls.
        let status = fs::read_to_string(path).unwrap_or_default();
        !status.lines().any(|line| line == "TracerPid:\t0")
    })
}

/// Returns the CPU time of child processes that have ended and been waited for, in steps of 10 ms.
pub(crate) fn ended_children_cpu() -> Duration {
    procfs::children_cpu_time(std::process::id()).unwrap_or_default()
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

/// Returns the CPU time of one process with that of its ended children. The scheduler counts
/// living threads in nanoseconds; the count with ended threads has steps of 10 ms. The larger one
/// is right.
fn cpu_of(pid: u32) -> Duration {
    let all = procfs::cpu_time(pid).unwrap_or_default();
    let children = procfs::children_cpu_time(pid).unwrap_or_default();
    procfs::living_threads_cpu_time(pid).max(all) + children
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
