//! Goal `full`: opens more connections than the server allows. The server must go on serving the
//! open connections, refuse further ones, and accept new ones after some were closed.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use swarm::{Kettles, Plan, Tally, connections_both, connections_max};

use crate::arguments::Arguments;
use crate::say;

/// A new connection on which nothing arrives for this long counts as accepted.
const SILENCE: Duration = Duration::from_millis(200);
/// Wait after all connections were closed, so that the server can notice it.
const NOTICE: Duration = Duration::from_secs(1);
/// Duration of a run that is ended by its stop flag.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// Number of refused connections after which the goal opens no further ones.
const TURNED_AWAY: usize = 20;

/// Runs the goal; returns a line for each requirement that the server missed. Fails if the load
/// cannot be run.
pub(crate) fn run(arguments: &Arguments, address: SocketAddr) -> Result<Vec<String>> {
    let mut missed = Vec::new();
    let connections = if arguments.is_connections_given {
        arguments.connections()
    } else {
        connections_both()
    };
    let stop = AtomicBool::new(false);
    let (tally, newcomers) = std::thread::scope(|scope| {
        let served = scope.spawn(|| serve(arguments, address, connections, FOREVER, &stop));
        std::thread::sleep(arguments.duration / 2);
        let newcomers = come(address, connections_max().saturating_sub(connections));
        std::thread::sleep(arguments.duration / 2);
        stop.store(true, Ordering::Relaxed);
        let tally = served
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok::<_, anyhow::Error>((tally?, newcomers))
    })?;
    let (let_in, turned_away) = (newcomers.0.len(), newcomers.1);
    // A request that was due at the moment of the stop counts as unsent, which is no failure of the
    // server.
    let failures = tally.failures.sum() - tally.failures.unsent;
    drop(newcomers);
    std::thread::sleep(NOTICE);
    say(&format!(
        "{} connections served, {} responses, {} failures; of further connections, {let_in} were \
         accepted and {turned_away} refused",
        tally.connections,
        tally.answered(),
        failures
    ));
    if failures > 0 {
        missed.push(format!(
            "{:?} on the connections that were open first",
            tally.failures
        ));
    }
    if turned_away == 0 {
        missed.push(
            "the server was never full: its connection limit exceeds that of this process".into(),
        );
    }
    stop.store(false, Ordering::Relaxed);
    let again = serve(arguments, address, connections, arguments.duration, &stop)?;
    say(&format!(
        "after all connections were closed: {} connections, {} responses, {} failures",
        again.connections,
        again.answered(),
        again.failures.sum()
    ));
    if again.failures.sum() > 0 {
        missed.push(format!(
            "{:?} after all connections were closed",
            again.failures
        ));
    }
    Ok(missed)
}

fn serve(
    arguments: &Arguments,
    address: SocketAddr,
    connections: usize,
    duration: Duration,
    stop: &AtomicBool,
) -> Result<Tally> {
    let (host, period) = (address.to_string(), arguments.period);
    let fleet = Kettles::new(&host, connections, period, period, arguments.seed);
    let plan = Plan {
        connections,
        timeout: arguments.timeout,
        ..Plan::new(address, connections, duration)
    };
    swarm::run(&plan, fleet, stop, &mut |_, _| {}).context("no swarm")
}

/// Opens up to `count` connections; returns the accepted ones and the number of refused ones.
fn come(address: SocketAddr, count: usize) -> (Vec<TcpStream>, usize) {
    let (mut let_in, mut turned_away) = (Vec::new(), 0);
    while let_in.len() + turned_away < count && turned_away < TURNED_AWAY {
        match TcpStream::connect_timeout(&address, Duration::from_secs(1)) {
            Ok(stream) if is_let_in(&stream) => let_in.push(stream),
            _ => turned_away += 1,
        }
    }
    (let_in, turned_away)
}

/// Returns whether the server has accepted a connection. On a refused connection, a response or the
/// end of the connection arrives at once.
fn is_let_in(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(SILENCE)).unwrap_or_default();
    let read = stream.read(&mut [0; 512]);
    read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}
