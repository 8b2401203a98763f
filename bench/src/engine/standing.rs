//! Rows with long-lived connections: idle connections, slow readers, sleeping handlers. Each uses a
//! fresh server.

use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::contender::{Ability, BLOCKING_THREADS, Files, Kind};
use super::{Options, attempt, row};
use crate::figures::{Quantity, Row, Values, to_f64};
use crate::load::{echo, idle, slow};
use crate::process::Server;
use crate::wrk::Load;

/// Number of idle connections.
const IDLE_COUNT: usize = 10_000;

/// Number of slow readers of `/big`, and the time for which they are observed.
const SLOW_COUNT: usize = 500;
const SLOW_SECONDS: u64 = 8;

/// Number of connections for ordinary requests beside the slow readers.
const GOOD_COUNT: u32 = 16;

/// Number of connections that request `/sleep`, and of threads for sleeping handlers.
const SLEEP_CONNECTIONS: u32 = 100;
const SLEEP_THREADS: usize = 50;

/// Measures the values of two rows with a server of this kind.
type Measure = fn(Kind, &Files, &Load, &Options) -> Result<[Values; 2]>;

/// Names of two rows, required ability, target of the ordinary requests, and measurement.
type Subject = ([&'static str; 2], Ability, &'static str, Measure);

const SUBJECTS: [Subject; 4] = [
    (
        ["10,000 idle connections", "good requests beside them"],
        Ability::Json,
        "/text",
        idle_connections,
    ),
    (
        [
            "10,000 idle WebSockets",
            "good requests beside the WebSockets",
        ],
        Ability::WebSocket,
        "/text",
        idle_websockets,
    ),
    (
        [
            "500 slow readers of 1 GiB, growth",
            "good requests beside the readers",
        ],
        Ability::Bodies,
        "/text",
        slow_readers,
    ),
    (
        ["handler of 10 ms, 50 threads c100", "its CPU"],
        Ability::Sleep,
        "/sleep",
        sleeping,
    ),
];

/// Measures all subjects.
pub(crate) fn measure(options: &Options, files: &Files, scratch: &Path) -> Result<Vec<Row>> {
    let kinds = options.kinds();
    let mut all = Vec::new();
    for (names, ability, target, measure) in SUBJECTS {
        if !names.iter().any(|name| name.contains(&options.rows)) {
            continue;
        }
        let load = Load::new(scratch, "standing", &[target.into()], true)?;
        let [mut first, mut second] = names.map(|name| row(name, kinds.len()));
        let cells = first.cells.iter_mut().zip(&mut second.cells);
        for (&kind, (first, second)) in kinds.iter().zip(cells) {
            for _ in 0..options.rounds {
                crate::progress(&format!("{}: {}", names[0], kind.name()));
                match attempt(kind, ability, || measure(kind, files, &load, options)) {
                    Ok([one, other]) => {
                        first.add(Ok(one));
                        second.add(Ok(other));
                    }
                    Err(gap) => {
                        first.add(Err(gap.clone()));
                        second.add(Err(gap));
                    }
                }
            }
        }
        all.extend([first, second]);
    }
    Ok(all)
}

fn start(kind: Kind, files: &Files, blocking: usize) -> Result<Server> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    kind.start(files, cores, blocking)
}

fn idle_connections(
    kind: Kind,
    files: &Files,
    load: &Load,
    options: &Options,
) -> Result<[Values; 2]> {
    let server = start(kind, files, BLOCKING_THREADS)?;
    let open = |count| idle::open(server.address, "/text", count);
    idle(&server, load, options, open)
}

fn idle_websockets(
    kind: Kind,
    files: &Files,
    load: &Load,
    options: &Options,
) -> Result<[Values; 2]> {
    let server = start(kind, files, BLOCKING_THREADS)?;
    let open = |count| echo::open(server.address, "/ws", count);
    idle(&server, load, options, open)
}

fn idle(
    server: &Server,
    load: &Load,
    options: &Options,
    open: impl Fn(usize) -> io::Result<Vec<TcpStream>>,
) -> Result<[Values; 2]> {
    // Memory that the server allocates once, on its first connections, is excluded.
    drop(open(100)?);
    let before = server.anonymous_len();
    let connections = open(IDLE_COUNT)?;
    let grown = server.anonymous_len().saturating_sub(before);
    let each = to_f64(grown) / 1024.0 / to_f64(connections.len() as u64);
    Ok([
        Values::from([(Quantity::KibPerConnection, each)]),
        load.measure(server, GOOD_COUNT, options.seconds)?,
    ])
}

fn slow_readers(kind: Kind, files: &Files, load: &Load, options: &Options) -> Result<[Values; 2]> {
    // With send buffers of 4 MB each, these readers would exhaust the kernel's TCP memory, and
    // ordinary requests would wait for it with any server.
    let _small_buffers = crate::machine::SendBuffers::limit(256 << 10);
    let server = start(kind, files, BLOCKING_THREADS)?;
    let before = server.anonymous_len();
    let mut readers = slow::Readers::open(server.address, "/big", SLOW_COUNT)?;
    let is_done = AtomicBool::new(false);
    let (peak, good, read) = std::thread::scope(|scope| {
        let reading = scope.spawn(|| readers.sip(&is_done));
        let mut peak = 0;
        for _ in 0..SLOW_SECONDS {
            std::thread::sleep(Duration::from_secs(1));
            peak = server.anonymous_len().max(peak);
        }
        let good = load.measure(&server, GOOD_COUNT, options.seconds);
        peak = server.anonymous_len().max(peak);
        is_done.store(true, Ordering::Relaxed);
        (peak, good, reading.join())
    });
    read.ok()
        .context("the readers panicked")?
        .context("slow readers")?;
    let grown = to_f64(peak.saturating_sub(before)) / f64::from(1 << 20);
    Ok([Values::from([(Quantity::GrowthMib, grown)]), good?])
}

fn sleeping(kind: Kind, files: &Files, load: &Load, options: &Options) -> Result<[Values; 2]> {
    let server = start(kind, files, SLEEP_THREADS)?;
    let values = load.measure(&server, SLEEP_CONNECTIONS, options.seconds.max(3.0))?;
    let rate = values.get(&Quantity::Rate).copied().unwrap_or_default();
    let limit = to_f64(SLEEP_THREADS as u64) / nap()?.as_secs_f64();
    let part = Values::from([(Quantity::PercentOfLimit, 100.0 * rate / limit)]);
    Ok([part, values])
}

/// Measures how long a sleep of 10 ms takes when all threads sleep. The excess is caused by the
/// kernel, not by the server.
fn nap() -> Result<Duration> {
    const TIMES: u32 = 100;
    let one = || {
        let started = Instant::now();
        for _ in 0..TIMES {
            std::thread::sleep(Duration::from_millis(10));
        }
        started.elapsed() / TIMES
    };
    let naps: Option<Vec<Duration>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..SLEEP_THREADS).map(|_| scope.spawn(one)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().ok())
            .collect()
    });
    let naps = naps.context("a sleeper panicked")?;
    Ok(naps.iter().sum::<Duration>() / u32::try_from(naps.len())?)
}
