//! nix-serve under callgrind, and its client.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use testkit::http1::Connection;
use testkit::process::{Process, address_in};

use crate::command::{find, output, progress, repository};

/// Maximum number of instructions that all threads together execute in [`REST`] if the server is
/// idle. Periodic wake-ups cause some.
const RESTING_INSTRUCTIONS_MAX: u64 = 200_000;
const REST: Duration = Duration::from_millis(500);
const REST_WAIT_MAX: Duration = Duration::from_secs(60);

/// Work of the I/O thread: its instructions and system calls.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) instructions: u64,
    /// Number of calls of each system call, by name.
    pub(super) calls: BTreeMap<String, u64>,
}

/// The start of a measurement, as the length of the log of system calls at that time.
#[derive(Debug)]
pub(super) struct Mark(u64);

/// Number of calls by thread and system call. Valgrind numbers threads from one.
type Calls = BTreeMap<(u64, String), u64>;

/// nix-serve under callgrind, killed on drop.
#[derive(Debug)]
pub(super) struct Server {
    process: Process,
    address: SocketAddr,
    /// Folder into which callgrind writes its output.
    folder: PathBuf,
}

impl Server {
    /// Starts the server. `more` are arguments besides the fixed ones.
    pub(super) fn start(program: &Path, store: &Path, more: &[&str]) -> Result<Self> {
        if find("valgrind").is_none() {
            bail!("valgrind is missing: `make setup-test` installs it");
        }
        progress("counting instructions with valgrind");
        let folder = repository().join(".samovar/instructions");
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(&folder)?;
        let into = |name: &str| folder.join(name).display().to_string();
        let mut command = Command::new("taskset");
        command
            .args(["-c", &first_core()?, "valgrind", "--tool=callgrind"])
            .arg(format!("--callgrind-out-file={}", into("counts")))
            .arg(format!("--log-file={}", into("log")))
            .args(["--trace-syscalls=yes", "--separate-threads=yes"])
            .arg(program)
            .args(["--listen", "127.0.0.1:0", "--nar-cache-size", "0"])
            .arg("--store")
            .arg(format!("local?root={}", store.display()))
            .args(more)
            .env_remove("NIX_SECRET_KEY_FILE")
            .stdin(Stdio::null());
        let process =
            Process::try_spawn(&mut command).context("cannot start valgrind under taskset")?;
        let lines = process.try_lines_to("http://");
        let lines = lines.context("nix-serve does not start under valgrind")?;
        Ok(Self {
            address: address_in(lines.last().context("a line with the address")?),
            process,
            folder,
        })
    }

    pub(super) fn connect(&self) -> Result<Client> {
        Ok(Client(Connection::try_connect(self.address)?))
    }

    /// Waits until all threads are idle; returns the instructions that all of them have executed
    /// since the previous call. Fails if they do not become idle, or there is more than one I/O
    /// thread.
    pub(super) fn settle(&self) -> Result<u64> {
        let mut names = Vec::new();
        for task in fs::read_dir(format!("/proc/{}/task", self.process.pid()))? {
            names.push(fs::read_to_string(task?.path().join("comm"))?);
        }
        let io_count = names.iter().filter(|name| name.starts_with("io-")).count();
        if io_count != 1 {
            bail!("{io_count} I/O threads on one core, not one: {names:?}");
        }
        let started = Instant::now();
        let mut sum: u64 = self.take()?.values().sum();
        loop {
            std::thread::sleep(REST);
            let instructions: u64 = self.take()?.values().sum();
            sum += instructions;
            if instructions <= RESTING_INSTRUCTIONS_MAX {
                return Ok(sum);
            }
            if started.elapsed() > REST_WAIT_MAX {
                bail!("the server does not become idle: {instructions} instructions in {REST:?}");
            }
        }
    }

    pub(super) fn mark(&self) -> Result<Mark> {
        self.take()?;
        Ok(Mark(fs::metadata(self.log())?.len()))
    }

    /// Returns the work of the I/O thread since `mark`. Fails if another thread has sent a
    /// response, because its work is not counted.
    pub(super) fn since(&self, mark: Mark) -> Result<Counts> {
        let instructions = self.take()?;
        let mut log = fs::File::open(self.log())?;
        log.seek(SeekFrom::Start(mark.0))?;
        let mut text = Vec::new();
        log.read_to_end(&mut text)?;
        let calls = calls(&String::from_utf8_lossy(&text));
        let of = |name: &str| -> Vec<u64> {
            let threads = calls.keys().filter(|(_, call)| call == name);
            threads.map(|&(thread, _)| thread).collect()
        };
        // The thread of the metrics server also waits with epoll, but it receives no requests.
        let waiting = of("epoll_pwait");
        let mut sending: Vec<u64> =
            [of("sendto"), of("sendmsg"), of("writev"), of("sendfile")].concat();
        sending.dedup();
        let [io] = *sending else {
            bail!("responses are sent by threads {sending:?} instead of one I/O thread");
        };
        if !waiting.contains(&io) {
            bail!(
                "responses are sent by thread {io}, which is none of the I/O threads {waiting:?}"
            );
        }
        let of_io = calls.into_iter().filter(|((thread, _), _)| *thread == io);
        Ok(Counts {
            instructions: instructions.get(&io).copied().unwrap_or(0),
            calls: of_io.map(|((_, name), count)| (name, count)).collect(),
        })
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Returns the instructions of each thread since the previous call.
    fn take(&self) -> Result<BTreeMap<u64, u64>> {
        output(Command::new("vgdb").args([&format!("--pid={}", self.process.pid()), "dump"]))?;
        let mut taken = BTreeMap::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let Some((_, thread)) = name.rsplit_once('-') else {
                continue;
            };
            let text = fs::read_to_string(&path)?;
            let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
            let total = total.with_context(|| format!("{name} has no total"))?;
            taken.insert(thread.parse()?, total.trim().parse()?);
            fs::remove_file(&path)?;
        }
        if taken.is_empty() {
            bail!("callgrind has written nothing");
        }
        Ok(taken)
    }
}

/// Counts entries such as `SYSCALL[123,4](45) sys_recvfrom ( … )`. Ignores the completion of a
/// blocking call, `SYSCALL[123,4](45) ... [async]`.
fn calls(log: &str) -> Calls {
    let mut calls = Calls::new();
    for entry in log.split("SYSCALL[").skip(1) {
        let call = || {
            let (ids, rest) = entry.split_once(']')?;
            let (_, thread) = ids.split_once(',')?;
            let (_, name) = rest.split_once(") sys_")?;
            let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
            Some((thread.parse().ok()?, name.get(..end)?.to_owned()))
        };
        if let Some(call) = call() {
            *calls.entry(call).or_default() += 1;
        }
    }
    calls
}

/// Returns the first core that this process may use.
fn first_core() -> Result<String> {
    let status = fs::read_to_string("/proc/self/status")?;
    let cores = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let first = cores.and_then(|cores| cores.trim().split([',', '-']).next());
    Ok(first.context("no core in /proc/self/status")?.to_owned())
}

/// A client that sends all its requests on one connection.
#[derive(Debug)]
pub(super) struct Client(Connection);

impl Client {
    /// Sends a GET request and returns the body of a response that starts with `status_line`.
    pub(super) fn ask(&mut self, target: &str, status_line: &str) -> Result<String> {
        let request = format!("GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        self.0.try_send(request)?;
        let response = self.0.try_next(false)?;
        let response = response.context("the server has closed the connection")?;
        if !response.head.starts_with(status_line) {
            bail!("{target}: {:?}, not {status_line:?}", response.head);
        }
        Ok(response.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocking_call_with_two_log_entries_is_counted_once() {
        let log = "SYSCALL[9,13](45) sys_recvfrom ( 15, 0x0 ) --> [async] ... \n\
                   SYSCALL[9,13](45) ... [async] --> Success(0x80) \n\
                   SYSCALL[9,3](228) sys_clock_gettime( 1 )[sync] --> Success(0x0) \
                   SYSCALL[9,13](45) sys_recvfrom ( 15, 0x0 ) --> [async] ... \n";
        let counted = calls(log);
        assert_eq!(counted.get(&(13, "recvfrom".to_owned())), Some(&2));
        assert_eq!(counted.get(&(3, "clock_gettime".to_owned())), Some(&1));
        assert_eq!(counted.len(), 2);
    }
}
