//! Several processes that share a port and a database.
//!
//! A process has a limit of open files, and each connected kettle takes one. So a supervisor
//! process starts several servers that listen on one port, and restarts any server that ends. The
//! kernel distributes connections over them. Each server has its own writer and its own row of
//! totals.
//!
//! Guarantees across processes: an acknowledged measurement is counted once, whichever process
//! received it, and `GET /statistics` adds up the commits of all processes. A command reaches the
//! other processes within about a second. A process does not know which commands the others have
//! sent, so a kettle that reconnects to another process may get a command again. `GET /metrics` and
//! the live page show the values of one process. To make the values of every process available,
//! each process also listens on a loopback address of its own; if the process ends, its replacement
//! listens there. The supervisor reserves all ports with sockets that are bound and do not listen.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use samovar_http::Listener;

use crate::log;
use crate::serve::{Serve, say_addr};
use crate::store;

/// Interval of checks for ended processes.
const LOOK_TIME: Duration = Duration::from_millis(50);
/// Pause before a failed restart is repeated.
const RETRY_TIME: Duration = Duration::from_secs(1);

/// Starts the processes, and restarts those that end, until `is_ended` is set.
///
/// # Errors
///
/// If the store supports only one process, or a process fails its first start.
pub fn run(options: &Serve, is_ended: &AtomicBool) -> Result<()> {
    if !store::is_shared(&options.database) {
        bail!(
            "--processes {} needs PostgreSQL: SQLite supports one writing process",
            options.processes
        );
    }
    let (shared, own) = hold_ports(options)?;
    let mut members = Vec::new();
    for (number, held) in (1..).zip(&own) {
        members.push(Some(Member::start(number, &shared, held)?));
    }
    say_addr(shared.addr);
    members.iter().flatten().for_each(Member::announce);
    let mut not_before = Instant::now();
    while !is_ended.load(Ordering::Acquire) {
        for ((number, held), member) in (1..).zip(&own).zip(&mut members) {
            if let Some(running) = member {
                let Some(status) = running.child.try_wait()? else {
                    continue;
                };
                let id = running.child.id();
                log::say(&format!(
                    "kettles: process {number} ({id}) has ended, {status}"
                ));
                *member = None;
            }
            if Instant::now() >= not_before {
                *member = restarted(number, &shared, held, &mut not_before);
            }
        }
        std::thread::park_timeout(LOOK_TIME);
    }
    // Signals all processes before waiting for the first.
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

/// A reserved address: its socket is bound but not listening. So it receives no connections, no
/// other program can bind the address, and the server processes can share it.
#[derive(Debug)]
struct Held {
    addr: SocketAddr,
    _socket: OwnedFd,
}

impl Held {
    /// Reserves the address of `listener`. The caller then drops the listener, because it would
    /// keep the processes from listening there.
    fn new(listener: &Listener) -> Result<Self> {
        let addr = listener.local_addr().context("no address")?;
        let family = if addr.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let hold = || {
            let flags = SocketFlags::CLOEXEC;
            let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
            sockopt::set_socket_reuseaddr(&socket, true)?;
            sockopt::set_socket_reuseport(&socket, true)?;
            rustix::net::bind(&socket, &addr)?;
            // SO_REUSEADDR was needed to bind despite old connections in TIME_WAIT. It is turned
            // off now, so that other programs cannot bind the address.
            sockopt::set_socket_reuseaddr(&socket, false)?;
            rustix::io::Result::Ok(socket)
        };
        let socket = hold().with_context(|| format!("cannot hold {addr}"))?;
        Ok(Self {
            addr,
            _socket: socket,
        })
    }
}

/// Reserves the shared address and that of each process. Fails if another program listens there: a
/// second server on the shared port would silently receive a part of the connections.
fn hold_ports(options: &Serve) -> Result<(Held, Vec<Held>)> {
    let listen = |addr: SocketAddr| {
        Listener::tcp(addr, 1).with_context(|| format!("cannot listen on {addr}"))
    };
    let own_port = |index| match options.own_port {
        0 => Ok(0),
        first => u16::try_from(u32::from(first) + index),
    };
    let ports: Result<Vec<_>, _> = (0..options.processes).map(own_port).collect();
    let ports = ports.context("--own-port is too high")?;
    let addrs = options.addrs()?;
    let shared = listen(*addrs.first().context("no address")?)?;
    let own = ports
        .into_iter()
        .map(|port| listen((Ipv4Addr::LOCALHOST, port).into()));
    let own: Vec<_> = own.collect::<Result<_>>()?;
    let held = own.iter().map(Held::new).collect::<Result<_>>()?;
    Ok((Held::new(&shared)?, held))
}

fn restarted(number: u32, shared: &Held, own: &Held, not_before: &mut Instant) -> Option<Member> {
    match Member::start(number, shared, own) {
        Ok(member) => {
            member.announce();
            Some(member)
        }
        Err(error) => {
            log::say(&format!("kettles: {error:#}; retrying"));
            *not_before = Instant::now() + RETRY_TIME;
            None
        }
    }
}

/// A server process.
struct Member {
    /// The child process. It ends when its standard input is closed, so it cannot outlive the
    /// supervisor.
    child: Child,
    number: u32,
    own_addr: SocketAddr,
}

impl Member {
    fn start(number: u32, shared: &Held, own: &Held) -> Result<Self> {
        let (port, own_port) = (shared.addr.port(), own.addr.port());
        let mut command = Command::new("/proc/self/exe");
        command
            .args(std::env::args_os().skip(1))
            .args(["--member", &number.to_string()])
            .args(["--port", &port.to_string()])
            .args(["--own-port", &own_port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The terminal sends signals only to the supervisor, which passes them on.
            .process_group(0);
        let mut child = command.spawn().context("cannot start a process")?;
        let output = child.stdout.take().context("cannot read its output")?;
        // The process prints its address when it is ready.
        let Some(Ok(_)) = BufReader::new(output).lines().next() else {
            child.kill().unwrap_or_default();
            bail!("process {number} has not started, {}", child.wait()?);
        };
        let own_addr = own.addr;
        Ok(Self {
            child,
            number,
            own_addr,
        })
    }

    fn announce(&self) {
        let (number, id, addr) = (self.number, self.child.id(), self.own_addr);
        let line = format!("kettles: process {number} ({id}) alone: http://{addr}/metrics");
        // Standard output may be closed.
        drop(writeln!(io::stdout().lock(), "{line}"));
    }
}

/// Sets `is_ended` when the supervisor exits or closes the pipe.
pub fn end_with_parent(is_ended: &Arc<AtomicBool>) {
    let is_ended = Arc::clone(is_ended);
    std::thread::spawn(move || {
        // The supervisor never writes; the read returns at the end of the pipe.
        drop(io::stdin().lock().read(&mut [0]));
        is_ended.store(true, Ordering::Release);
    });
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_reserved_port_is_available_only_to_sharing_processes() {
        let listener = Listener::tcp((Ipv4Addr::LOCALHOST, 0).into(), 1).unwrap();
        let held = Held::new(&listener).unwrap();
        drop(listener);
        // Tested twice: before the first process binds, and between a process and its replacement.
        for _ in 0..2 {
            let refused = TcpListener::bind(held.addr).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
            assert!(Listener::tcp(held.addr, 1).is_err());
            drop(Listener::tcp_shared(held.addr, 1).unwrap());
        }
        let addr = held.addr;
        drop(held);
        drop(TcpListener::bind(addr).unwrap());
    }
}
