//! Several processes that share a port and a database.
//!
//! One process may have so many descriptors and no more, and each kettle that is connected takes
//! one. So this process starts others, which listen on one port (the kernel spreads connections
//! over them), and starts again those that end. Each has a writer and a row of totals of its own.
//!
//! What holds across them: an acknowledged measurement is counted once, whichever of them took it,
//! and `GET /statistics` adds up what all have committed. A command is known to the others within a
//! second or so. What a kettle was told is known where it was told: one that asks here and measures
//! there, on another connection, is told again. `GET /metrics`, and the live page, are of one
//! process: each has an address of its own on the loopback for it.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use samovar_http::Listener;

use crate::log;
use crate::serve::{Serve, say_addr};
use crate::store;

/// How often it is looked whether one has ended.
const LOOK_TIME: Duration = Duration::from_millis(50);
/// Before one that did not start is tried again.
const RETRY_TIME: Duration = Duration::from_secs(1);

/// Starts the processes, and others for those that end, until `is_ended` says so.
///
/// # Errors
///
/// If the store is not one for several, or one of them does not start the first time.
pub fn run(options: &Serve, is_ended: &AtomicBool) -> Result<()> {
    if !store::is_shared(&options.database) {
        bail!(
            "{} processes need a PostgreSQL: of SQLite there is one that writes",
            options.processes
        );
    }
    let addr = free_addr(options)?;
    let mut members = Vec::new();
    for _ in 0..options.processes {
        members.push(Some(Member::start(addr.port())?));
    }
    say_addr(addr);
    members.iter().flatten().for_each(Member::announce);
    let mut not_before = Instant::now();
    while !is_ended.load(Ordering::Acquire) {
        for member in &mut members {
            if let Some(running) = member {
                let Some(status) = running.child.try_wait()? else {
                    continue;
                };
                let id = running.child.id();
                log::say(&format!("kettles: process {id} has ended, {status}"));
                *member = None;
            }
            if Instant::now() >= not_before {
                *member = restarted(addr.port(), &mut not_before);
            }
        }
        std::thread::park_timeout(LOOK_TIME);
    }
    // All are told before one is waited for.
    for member in members.iter_mut().flatten() {
        drop(member.child.stdin.take());
    }
    for member in members.iter_mut().flatten() {
        let status = member.child.wait()?;
        if !status.success() {
            bail!("process {} has ended, {status}", member.child.id());
        }
    }
    Ok(())
}

/// The address, with its port; an error if anybody is there: a second server that shared it would
/// silently take a part of the connections.
fn free_addr(options: &Serve) -> Result<SocketAddr> {
    let addrs = options.addrs()?;
    let addr = *addrs.first().context("no address")?;
    let probe = Listener::tcp(addr, 1).with_context(|| format!("cannot listen on {addr}"))?;
    probe.local_addr().context("no address")
}

fn restarted(port: u16, not_before: &mut Instant) -> Option<Member> {
    match Member::start(port) {
        Ok(member) => {
            member.announce();
            Some(member)
        }
        Err(error) => {
            log::say(&format!("kettles: {error:#}; tried again"));
            *not_before = Instant::now() + RETRY_TIME;
            None
        }
    }
}

/// One of the processes.
struct Member {
    /// Ends when its standard input does, so it does not outlive this process.
    child: Child,
    own_addr: String,
}

impl Member {
    fn start(port: u16) -> Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command
            .args(std::env::args_os().skip(1))
            .args(["--member", "--port", &port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What a terminal says to all of a group is told them by us.
            .process_group(0);
        let mut child = command.spawn().context("no further process")?;
        let output = child.stdout.take().context("nothing to hear it by")?;
        // Where all are, and where it is alone.
        let mut lines = BufReader::new(output).lines();
        let said = lines.next().and_then(|_| lines.next());
        let Some(Ok(own_addr)) = said else {
            child.kill().unwrap_or_default();
            bail!("process {} has not started, {}", child.id(), child.wait()?);
        };
        Ok(Self { child, own_addr })
    }

    fn announce(&self) {
        let (id, addr) = (self.child.id(), &self.own_addr);
        let line = format!("kettles: process {id} alone: http://{addr}/metrics");
        // Whoever started it may have closed its end.
        drop(writeln!(io::stdout().lock(), "{line}"));
    }
}

/// Sets `is_ended` when the process that started this one ends, or says so.
pub fn end_with_parent(is_ended: &Arc<AtomicBool>) {
    let is_ended = Arc::clone(is_ended);
    std::thread::spawn(move || {
        // Nothing is ever said: what is waited for is the end.
        drop(io::stdin().lock().read(&mut [0]));
        is_ended.store(true, Ordering::Release);
    });
}
