//! The server: its process, and everything that is done to it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::world::{Cause, World, lock};

/// How long a start, or an end with nothing under way, may take on a machine with much to do.
const START_TIME: Duration = Duration::from_secs(40);
/// TERM lets answers go on for ten seconds; two for the rest.
const STOP_TIME: Duration = Duration::from_secs(14);

/// Why a server may refuse to start.
const STARTLESS: [Cause; 2] = [Cause::Unreadable, Cause::Replaced];

/// Where the present server listens.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Addresses {
    pub(crate) plain: Option<SocketAddr>,
    pub(crate) tls: Option<SocketAddr>,
}

/// How servers are started.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) program: PathBuf,
    /// What it runs under, if anything.
    pub(crate) wrapper: Vec<String>,
    pub(crate) store: PathBuf,
    /// Key, certificate and its key, logs.
    pub(crate) folder: PathBuf,
    /// Where NARs are kept.
    pub(crate) kept: PathBuf,
}

/// A running server; killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    lines: Receiver<String>,
    pub(crate) addresses: Addresses,
}

/// What a process holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holdings {
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
        let mut command = match self.wrapper.split_first() {
            None => Command::new(&self.program),
            Some((wrapper, words)) => {
                let mut command = Command::new(wrapper);
                command.args(words).arg(&self.program);
                command
            }
        };
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("NIX_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            // The same address twice would be bound once.
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
            .arg(&self.kept)
            .env("NIX_SECRET_KEY_FILE", self.key())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the server")?;
        let said = BufReader::new(child.stderr.take().context("stderr is piped")?);
        let mut log = File::options().append(true).create(true).open(self.log())?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                // What cannot be written to the log is still looked at.
                writeln!(log, "{line}").ok();
                sender.send(line).ok();
            }
        });
        let mut server = Server {
            child,
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

    /// Waits for a line that it says after now.
    pub(crate) fn wait_for(&self, part: &str) -> Result<()> {
        let started = Instant::now();
        loop {
            let left = START_TIME.saturating_sub(started.elapsed());
            let line = self.lines.recv_timeout(left);
            if line
                .with_context(|| format!("no line with {part:?}"))?
                .contains(part)
            {
                return Ok(());
            }
        }
    }

    /// Forgets what it said so far.
    pub(crate) fn skip_lines(&self) {
        while self.lines.try_recv().is_ok() {}
    }

    pub(crate) fn pid(&self) -> Result<Pid> {
        Pid::from_raw(i32::try_from(self.child.id())?).context("a process has a number")
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.pid()?, signal).context("the server is gone")
    }

    /// How it ended by itself, if it did.
    pub(crate) fn ending(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for the end after TERM.
    pub(crate) fn wait(&mut self) -> Result<()> {
        self.wait_for_end(STOP_TIME)
    }

    /// The same under something that takes its own time.
    pub(crate) fn wait_long(&mut self) -> Result<()> {
        self.wait_for_end(10 * STOP_TIME)
    }

    /// CPU time that it took so far, children included.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, fields) = text.rsplit_once(") ").context("a name in parentheses")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
        // USER_HZ, which Linux promises to programs.
        let ticks = ticks(11).unwrap_or(0) + ticks(12).unwrap_or(0);
        Ok(Duration::from_millis(10 * ticks))
    }

    fn wait_for_end(&mut self, time: Duration) -> Result<()> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                if !status.success() {
                    bail!("the server ended with {status}");
                }
                return Ok(());
            }
            if started.elapsed() > time {
                bail!("the server does not end {time:?} after TERM");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    pub(crate) fn holdings(&self) -> Result<Holdings> {
        holdings(self.child.id())
    }
}

pub(crate) fn holdings(pid: u32) -> Result<Holdings> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let count = |name: &str| -> Result<usize> { Ok(fs::read_dir(folder.join(name))?.count()) };
    let status = fs::read_to_string(folder.join("status"))?;
    let anonymous = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .context("no RssAnon")?;
    Ok(Holdings {
        descriptors: count("fd")?,
        threads: count("task")?,
        anonymous_kib: anonymous.trim().trim_end_matches(" kB").parse()?,
    })
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The server as actors share it.
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

    /// TERM, its end, and the next one.
    pub(crate) fn restart(&self, world: &World) -> Result<()> {
        let mut server = lock(&self.server);
        world.begin(Cause::Stopping);
        server.signal(Signal::TERM)?;
        server.wait()?;
        self.replace(&mut server, world)?;
        world.end(Cause::Stopping);
        Ok(())
    }

    /// KILL, and the next one.
    pub(crate) fn kill(&self, world: &World) -> Result<()> {
        let mut server = lock(&self.server);
        world.begin(Cause::Down);
        server.kill()?;
        self.replace(&mut server, world)?;
        world.end(Cause::Down);
        Ok(())
    }

    fn replace(&self, server: &mut Server, world: &World) -> Result<()> {
        *server = loop {
            let began = world.now();
            match self.setup.start() {
                Ok(started) => break started,
                // It says so in one line and does not start, as it should.
                Err(_) if world.had(&STARTLESS, began, world.now()) => {
                    world.count("not started");
                    world.pause(50);
                }
                Err(error) => return Err(error),
            }
        };
        *lock(&world.addresses) = server.addresses;
        Ok(())
    }

    /// A signal, and the line by which the server says that it has done what it means.
    pub(crate) fn told(&self, signal: Signal, line: &str) -> Result<()> {
        let server = lock(&self.server);
        server.skip_lines();
        server.signal(signal)?;
        server.wait_for(line)
    }
}

/// Writes a file that others read at any time.
pub(crate) fn put(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let aside = path.with_extension("new");
    fs::write(&aside, bytes)?;
    fs::set_permissions(&aside, fs::Permissions::from_mode(mode))?;
    fs::rename(aside, path)?;
    Ok(())
}
