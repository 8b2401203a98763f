//! The server process, and operations on it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use testkit::process::without_variables;
use testkit::procfs;

use crate::daemon::LEASE_SECONDS;
use crate::world::{Addresses, Cause, World, lock};

/// Maximum time for a start, or for the exit of an idle server, on a loaded machine.
const START_TIME: Duration = Duration::from_secs(40);
/// Maximum time for an exit after TERM: responses may go on for ten seconds; the rest is margin.
pub(crate) const STOP_TIME: Duration = Duration::from_secs(14);

/// Maximum time for the exit of a predecessor process, whose clients have all finished by then.
const DRAIN_TIME: Duration = Duration::from_secs(60);

/// Causes that excuse a server that refuses to start.
const STARTLESS: [Cause; 3] = [Cause::Unreadable, Cause::Replaced, Cause::FewDescriptors];

/// Arguments and files with which a server is started.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) program: PathBuf,
    /// Command that runs the server, such as valgrind with its options; usually empty.
    pub(crate) wrapper: Vec<String>,
    pub(crate) store: PathBuf,
    /// Folder with the signing key, the certificate and its key, and the logs.
    pub(crate) folder: PathBuf,
    /// Folder in which the server has its NAR cache.
    pub(crate) nar_cache: PathBuf,
}

/// A running server; killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pid: Pid,
    /// Whether the process was reaped; from then on, another process may have its PID.
    is_over: bool,
    /// PIDs of predecessors after upgrades, which still finish their responses.
    before: Vec<Pid>,
    lines: Receiver<String>,
    pub(crate) addresses: Addresses,
}

/// Resources that a process uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    pub(crate) anonymous_kib: u64,
}

impl Setup {
    pub(crate) fn key(&self) -> PathBuf {
        self.folder.join("key")
    }

    pub(crate) fn certificate(&self) -> (PathBuf, PathBuf) {
        (
            self.folder.join("certificate"),
            self.folder.join("certificate-key"),
        )
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    pub(crate) fn start(&self) -> Result<Server> {
        let (certificate, key) = self.certificate();
        let program = self.program.display().to_string();
        let mut words = self.wrapper.iter().chain([&program]);
        let first = words.next().context("a command has a program")?;
        let mut command = without_variables(first, &["NIX_"]);
        let mut child = command
            .args(words)
            // The two addresses must differ: the server would bind the same address only once.
            .args(["--listen", "127.0.0.2:0", "--listen", "127.0.0.1:0:ssl"])
            .arg("--ssl-cert")
            .arg(certificate)
            .arg("--ssl-key")
            .arg(key)
            .arg("--store")
            .arg(format!("local?root={}", self.store.display()))
            .arg("--access-log")
            .arg(self.folder.join("access"))
            .arg("--nar-cache")
            .arg(&self.nar_cache)
            .args(["--gc-lease", LEASE_SECONDS])
            .env("NIX_SECRET_KEY_FILE", self.key())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the server")?;
        let said = BufReader::new(child.stderr.take().context("stderr is piped")?);
        let mut log = File::options().append(true).create(true).open(self.log())?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                // Pass the line on even if it cannot be written to the log file.
                writeln!(log, "{line}").ok();
                sender.send(line).ok();
            }
        });
        let mut server = Server {
            pid: Pid::from_child(&child),
            is_over: false,
            before: Vec::new(),
            lines,
            addresses: Addresses::default(),
        };
        server.learn_addresses()?;
        Ok(server)
    }
}

impl Server {
    fn learn_addresses(&mut self) -> Result<()> {
        let started = Instant::now();
        while self.addresses.plain.is_none() || self.addresses.tls.is_none() {
            let left = START_TIME.saturating_sub(started.elapsed());
            let line = self.lines.recv_timeout(left).context("it does not start")?;
            let address = |scheme: &str| -> Option<SocketAddr> {
                let (_, rest) = line.split_once(scheme)?;
                rest.split('/').next()?.parse().ok()
            };
            self.addresses.plain = self.addresses.plain.or(address(" on http://"));
            self.addresses.tls = self.addresses.tls.or(address(" on https://"));
        }
        Ok(())
    }

    /// Waits for a log line that contains `part`.
    pub(crate) fn wait_for(&self, part: &str) -> Result<()> {
        self.wait_for_one_of(&[part]).map(drop)
    }

    /// Waits for a log line that contains one of `parts`.
    fn wait_for_one_of(&self, parts: &[&str]) -> Result<String> {
        let started = Instant::now();
        loop {
            let left = START_TIME.saturating_sub(started.elapsed());
            let line = self.lines.recv_timeout(left);
            let line = line.with_context(|| format!("no line with {parts:?}"))?;
            if parts.iter().any(|part| line.contains(part)) {
                return Ok(line);
            }
        }
    }

    /// Discards the log lines received so far.
    pub(crate) fn skip_lines(&self) {
        while self.lines.try_recv().is_ok() {}
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.pid, signal).context("the server is gone")
    }

    /// Returns the exit status if the process has ended by itself, and `None` while it runs.
    pub(crate) fn ending(&self) -> Result<Option<ExitStatus>> {
        ending(self.pid)
    }

    /// Waits until all predecessors have finished their responses and exited.
    pub(crate) fn wait_for_those_before(&mut self) -> Result<()> {
        for pid in std::mem::take(&mut self.before) {
            wait_for_end(pid, DRAIN_TIME)?;
        }
        Ok(())
    }

    /// Waits at most `time` for the exit after TERM.
    pub(crate) fn wait(&mut self, time: Duration) -> Result<()> {
        wait_for_end(self.pid, time)?;
        self.is_over = true;
        Ok(())
    }

    /// Returns the CPU time that the server has used so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        procfs::cpu_time(number(self.pid)).context("the server is gone")
    }

    pub(crate) fn kill(&mut self) -> Result<()> {
        self.signal(Signal::KILL)?;
        while self.ending()?.is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.is_over = true;
        Ok(())
    }

    pub(crate) fn usage(&self) -> Result<Usage> {
        usage(self.pid)
    }
}

fn wait_for_end(pid: Pid, time: Duration) -> Result<()> {
    let started = Instant::now();
    loop {
        if let Some(status) = ending(pid)? {
            if !status.success() {
                bail!("the server ended with {status}");
            }
            return Ok(());
        }
        if started.elapsed() > time {
            bail!("the server does not end in {time:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the exit status of a process; `None` if it still runs. After an upgrade, the successor
/// becomes a child of this process only when its predecessor exits. Until then, `/proc` has its
/// status.
fn ending(pid: Pid) -> Result<Option<ExitStatus>> {
    let raw = match waitpid(Some(pid), WaitOptions::NOHANG) {
        Ok(ended) => ended.map(|(_, status)| status.as_raw()),
        Err(Errno::CHILD) => {
            let fields = procfs::stat_fields(number(pid)).context("the server is gone")?;
            let code = fields.last().context("no exit code")?;
            match fields.first().map(String::as_str) {
                Some("Z") => Some(code.parse()?),
                _ => None,
            }
        }
        Err(error) => return Err(error.into()),
    };
    Ok(raw.map(ExitStatus::from_raw))
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}

pub(crate) fn usage(pid: Pid) -> Result<Usage> {
    let id = number(pid);
    let anonymous = procfs::memory(id, "status", "RssAnon").context("no RssAnon")?;
    Ok(Usage {
        descriptors: procfs::descriptor_count(id).context("no descriptors")?,
        threads: procfs::threads(id).len(),
        anonymous_kib: anonymous / 1024,
    })
}

impl Drop for Server {
    fn drop(&mut self) {
        // Only this process kills and reaps these processes, so their PIDs are still theirs.
        let own = (!self.is_over).then_some(&self.pid);
        for pid in self.before.iter().chain(own) {
            kill_process(*pid, Signal::KILL).ok();
            waitpid(Some(*pid), WaitOptions::empty()).ok();
        }
    }
}

/// The server, shared by all actors.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) setup: Setup,
    pub(crate) server: Mutex<Server>,
}

impl Shared {
    pub(crate) fn new(setup: Setup, world: &World) -> Result<Arc<Self>> {
        let server = setup.start()?;
        *lock(&world.addresses) = server.addresses;
        Ok(Arc::new(Self {
            setup,
            server: Mutex::new(server),
        }))
    }

    /// Stops the server with TERM and starts another.
    pub(crate) fn restart(&self, world: &World) -> Result<()> {
        let mut server = lock(&self.server);
        world.begin(Cause::Stopping);
        server.signal(Signal::TERM)?;
        server.wait(STOP_TIME)?;
        self.replace(&mut server, world)?;
        world.end(Cause::Stopping);
        Ok(())
    }

    /// Kills the server and starts another.
    pub(crate) fn kill(&self, world: &World) -> Result<()> {
        let mut server = lock(&self.server);
        world.begin(Cause::Down);
        server.kill()?;
        self.replace(&mut server, world)?;
        world.end(Cause::Down);
        Ok(())
    }

    /// Upgrades the server with USR2. Either a successor takes over without refusing a connection,
    /// or it fails to start and the old process continues.
    pub(crate) fn upgrade(&self, world: &World) -> Result<()> {
        let mut server = lock(&self.server);
        let began = world.now();
        world.begin(Cause::Upgrading);
        server.skip_lines();
        server.signal(Signal::USR2)?;
        let line =
            server.wait_for_one_of(&["has taken over", "this process continues to serve"])?;
        let successor = line
            .strip_suffix(" has taken over; finishing requests in progress")
            .and_then(|line| line.rsplit(' ').next());
        match successor {
            Some(pid) => {
                let pid = Pid::from_raw(pid.parse()?).context("a process has a number")?;
                let before = std::mem::replace(&mut server.pid, pid);
                server.before.push(before);
                world.count("USR2");
            }
            None if world.had(&STARTLESS, began, world.now()) => world.count("USR2 not started"),
            None => bail!("no upgrade: {line}"),
        }
        world.end(Cause::Upgrading);
        Ok(())
    }

    fn replace(&self, server: &mut Server, world: &World) -> Result<()> {
        // Predecessors continue to send their responses.
        let before = std::mem::take(&mut server.before);
        *server = loop {
            let began = world.now();
            match self.setup.start() {
                Ok(started) => break started,
                // A refused start, logged in one line, is correct here.
                Err(_) if world.had(&STARTLESS, began, world.now()) => {
                    world.count("not started");
                    world.pause(50);
                }
                Err(error) => return Err(error),
            }
        };
        server.before = before;
        *lock(&world.addresses) = server.addresses;
        Ok(())
    }

    /// Sends a signal and waits for the log line that confirms its effect.
    pub(crate) fn signal_and_wait(&self, signal: Signal, line: &str) -> Result<()> {
        let server = lock(&self.server);
        server.skip_lines();
        server.signal(signal)?;
        server.wait_for(line)
    }
}

/// Replaces a file atomically.
pub(crate) fn put(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let aside = path.with_extension("new");
    fs::write(&aside, bytes)?;
    fs::set_permissions(&aside, fs::Permissions::from_mode(mode))?;
    fs::rename(aside, path)?;
    Ok(())
}
