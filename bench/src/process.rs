//! Starts and ends server processes, and measures their CPU time and memory.

use std::fs;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use testkit::procfs;

use crate::figures::{Quantity, Values, to_f64};
use crate::http::Client;

/// Maximum time in seconds until a started server responds.
const START_SECONDS_MAX: u64 = 30;

/// Number of consecutive idle checks after which a server counts as idle.
const REST_COUNT: u32 = 4;
const REST_STEP: Duration = Duration::from_millis(30);
const REST_MAX: Duration = Duration::from_secs(20);

/// A running server; terminated on drop.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    child: Child,
}

impl Server {
    /// Runs a shell command that starts a server on `port`, and waits until it answers a request
    /// for `probe` with 200. Standard input stays open, because some servers exit at its end.
    pub(crate) fn start_command(name: &str, command: &str, port: u16, probe: &str) -> Result<Self> {
        // Use a separate process group, so that workers and wrappers are killed, too.
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
            // The pause is short, because it is part of the measured start time.
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits until the server uses hardly any CPU time, for at most [`REST_MAX`].
    pub(crate) fn rest(&self) {
        let started = Instant::now();
        let mut quiet_count = 0;
        let mut before = self.cpu();
        while quiet_count < REST_COUNT && started.elapsed() < REST_MAX {
            std::thread::sleep(REST_STEP);
            let now = self.cpu();
            // Periodic timers of the server may run meanwhile, so a little CPU time counts as
            // quiet.
            let is_quiet = now.saturating_sub(before) < Duration::from_micros(500);
            quiet_count = if is_quiet { quiet_count + 1 } else { 0 };
            before = now;
        }
    }

    /// Returns the memory of all processes of the server.
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

    /// Returns the CPU time that all processes of the server have used so far, including that of
    /// ended children.
    pub(crate) fn cpu(&self) -> Duration {
        self.processes().into_iter().map(cpu_of).sum()
    }

    /// Restricts all threads of the server to `cores`.
    fn pin(&self, cores: &CpuSet) {
        for process in self.processes() {
            for thread in procfs::threads(process) {
                // This fails if the thread has ended, which does no harm.
                sched_setaffinity(pid(thread), cores).ok();
            }
        }
    }

    /// Returns the anonymous memory of all processes of the server, in bytes.
    pub(crate) fn anonymous_len(&self) -> u64 {
        let of_process = |pid| procfs::memory(pid, "status", "RssAnon");
        self.processes().into_iter().filter_map(of_process).sum()
    }

    /// Returns the PIDs of the started process and of its descendants.
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

/// Returns the CPU time of this process so far, which is that of the clients.
pub(crate) fn own_cpu() -> Duration {
    cpu_of(std::process::id())
}

/// Returns whether a tracer is attached to all threads of a process.
pub(crate) fn is_traced(process: u32) -> bool {
    procfs::threads(process).into_iter().all(|thread| {
        let path = format!("/proc/{process}/task/{thread}/status");
        // A thread that has ended makes no system calls.
        let status = fs::read_to_string(path).unwrap_or_default();
        !status.lines().any(|line| line == "TracerPid:\t0")
    })
}

/// Returns the CPU time of child processes that have ended and been waited for, in steps of 10 ms.
pub(crate) fn ended_children_cpu() -> Duration {
    procfs::children_cpu_time(std::process::id()).unwrap_or_default()
}

/// Runs `measurement` with the server, this thread and its children restricted to one core: the
/// first that this process may use.
pub(crate) fn on_one_core<T>(
    server: &Server,
    measurement: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let all = sched_getaffinity(None).context("cannot read the CPU affinity")?;
    let mut first = CpuSet::new();
    let mut cores = 0..CpuSet::MAX_CPU;
    first.set(cores.find(|&core| all.is_set(core)).unwrap_or(0));
    let pin = |cores: &CpuSet| {
        server.pin(cores);
        sched_setaffinity(None, cores).ok();
    };
    pin(&first);
    let measured = measurement();
    pin(&all);
    measured
}

/// Returns the CPU time of a process and of its ended children. The scheduler's count has
/// nanoseconds but covers living threads only; the process's count includes ended threads in steps
/// of 10 ms. The larger one is closer.
fn cpu_of(pid: u32) -> Duration {
    let all = procfs::cpu_time(pid).unwrap_or_default();
    let children = procfs::children_cpu_time(pid).unwrap_or_default();
    procfs::living_threads_cpu_time(pid).max(all) + children
}

/// Converts a number to a PID; `None` if it cannot be one.
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
    fn the_error_quotes_the_output_of_a_server_that_exits() {
        let error = Server::start_command("none", "echo no >&2; exit 3", 1, "/").unwrap_err();
        assert!(format!("{error:#}").contains("no"), "{error:#}");
    }
}
