//! Rows with long-lived connections: idle connections, slow readers, sleeping handlers. Each uses a
//! fresh server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Options;
use super::contender::{Ability, BLOCKING_THREADS, Files, Kind};
use super::table::{Cell, Table, Unit};
use crate::load::{echo, idle, slow};
use crate::process::Server;
use crate::wrk::Load;

/// Number of idle connections.
const IDLE_COUNT: usize = 10_000;

/// Number of slow readers of `/big`, and how long they are observed.
const SLOW_COUNT: usize = 500;
const SLOW_SECONDS: u64 = 8;

/// Connections for ordinary requests beside them.
const GOOD_COUNT: u32 = 16;

/// Connections that request `/sleep`, and threads for sleeping handlers.
const SLEEP_CONNECTIONS: u32 = 100;
const SLEEP_THREADS: usize = 50;

type Measure = fn(Kind, &Files, &Load, &Options) -> Result<Vec<Cell>>;

/// Names and units of the rows, required ability, and measurement.
type Subject = (&'static [(&'static str, Unit)], Ability, Measure);

/// Measures all subjects, each of which fills one or more rows.
// Long: a table of subjects.
pub(crate) fn measure(options: &Options, files: &Files) -> Result<Vec<Table>> {
    let subjects: [Subject; 4] = [
        (
            &[
                ("10,000 idle connections", Unit::KibibytesPerConnection),
                ("good requests beside them", Unit::MicrosPerRequest),
            ],
            Ability::Json,
            idle_connections,
        ),
        (
            &[
                ("10,000 idle WebSockets", Unit::KibibytesPerConnection),
                (
                    "good requests beside the WebSockets",
                    Unit::MicrosPerRequest,
                ),
            ],
            Ability::WebSocket,
            idle_websockets,
        ),
        (
            &[
                ("500 slow readers of 1 GiB, growth", Unit::Mebibytes),
                ("good requests beside the readers", Unit::MicrosPerRequest),
            ],
            Ability::Bodies,
            slow_readers,
        ),
        (
            &[
                ("handler of 10 ms, 50 threads c100", Unit::PartOfLimit),
                ("its CPU", Unit::MicrosPerRequest),
            ],
            Ability::Sleep,
            sleeping,
        ),
    ];
    let scratch = tempfile::Builder::new()
        .prefix("samovar-bench-")
        .tempdir()?;
    let text = Load::new(scratch.path(), "text", &["/text".into()], true)?;
    let naps = tempfile::Builder::new()
        .prefix("samovar-bench-")
        .tempdir()?;
    let naps = (
        Load::new(naps.path(), "sleep", &["/sleep".into()], true)?,
        naps,
    );
    let mut tables = Vec::new();
    for (rows, ability, measure) in subjects {
        if !rows.iter().any(|(name, _)| name.contains(&options.rows)) {
            continue;
        }
        let names: Vec<_> = rows
            .iter()
            .map(|&(name, unit)| (name.to_owned(), unit))
            .collect();
        let mut table = Table::new(&names);
        let wanted = |kind: &Kind| {
            let is_asked = options.only.is_empty() || options.only.iter().any(|n| n == kind.name());
            is_asked && kind.can(ability)
        };
        for kind in Kind::ALL.into_iter().filter(wanted) {
            let load = if ability == Ability::Sleep {
                &naps.0
            } else {
                &text
            };
            for _ in 0..options.rounds {
                let name = rows.first().map_or("", |row| row.0);
                crate::progress(&format!("{name}: {}", kind.name()));
                let cells = measure(kind, files, load, options);
                if let Err(error) = &cells {
                    crate::progress(&format!("{}: {error:#}", kind.name()));
                }
                for index in 0..rows.len() {
                    let cell = cells.as_ref().ok().and_then(|cells| cells.get(index));
                    table.add(index, kind, cell.copied());
                }
            }
        }
        tables.push(table);
    }
    Ok(tables)
}

fn start(kind: Kind, files: &Files, blocking: usize) -> Result<Server> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    kind.start(files, cores, blocking)
}

/// Measures CPU, rate and latencies of ordinary requests.
fn good(server: &Server, load: &Load, options: &Options) -> Result<Cell> {
    let before = server.cpu();
    let seen = load.run(server.address, GOOD_COUNT, options.seconds)?;
    let cpu = server.cpu().saturating_sub(before);
    Ok(Cell {
        cost: cpu.as_secs_f64() * 1e6 / to_f64(seen.requests),
        rate: to_f64(seen.requests) / seen.duration.as_secs_f64(),
        p50_us: seen.p50.as_secs_f64() * 1e6,
        p99_us: seen.p99.as_secs_f64() * 1e6,
    })
}

fn grown(server: &Server, before: u64) -> f64 {
    to_f64(server.anonymous_len().saturating_sub(before))
}

fn cost(cost: f64) -> Cell {
    Cell {
        cost,
        ..Cell::default()
    }
}

fn idle_connections(
    kind: Kind,
    files: &Files,
    load: &Load,
    options: &Options,
) -> Result<Vec<Cell>> {
    let server = start(kind, files, BLOCKING_THREADS)?;
    // Exclude what the server allocates once, on its first connections.
    drop(idle::open(server.address, "/text", 100)?);
    let before = server.anonymous_len();
    let connections = idle::open(server.address, "/text", IDLE_COUNT)?;
    let each = cost(grown(&server, before) / 1024.0 / to_f64(connections.len() as u64));
    Ok(vec![each, good(&server, load, options)?])
}

fn idle_websockets(kind: Kind, files: &Files, load: &Load, options: &Options) -> Result<Vec<Cell>> {
    let server = start(kind, files, BLOCKING_THREADS)?;
    drop(echo::open(server.address, "/ws", 100)?);
    let before = server.anonymous_len();
    let sockets = echo::open(server.address, "/ws", IDLE_COUNT)?;
    let each = cost(grown(&server, before) / 1024.0 / to_f64(sockets.len() as u64));
    Ok(vec![each, good(&server, load, options)?])
}

fn slow_readers(kind: Kind, files: &Files, load: &Load, options: &Options) -> Result<Vec<Cell>> {
    // With send buffers of 4 MB each, these readers would exhaust the kernel's TCP memory, and
    // ordinary requests would wait for it with any server.
    let _small_buffers = crate::machine::SendBuffers::limit(256 << 10);
    let server = start(kind, files, BLOCKING_THREADS)?;
    let before = server.anonymous_len();
    let mut readers = slow::Readers::open(server.address, "/big", SLOW_COUNT)?;
    let is_done = AtomicBool::new(false);
    let (peak, good, sipped) = std::thread::scope(|scope| {
        let sipping = scope.spawn(|| readers.sip(&is_done));
        let mut peak = 0;
        for _ in 0..SLOW_SECONDS {
            std::thread::sleep(Duration::from_secs(1));
            peak = server.anonymous_len().max(peak);
        }
        let good = good(&server, load, options);
        peak = server.anonymous_len().max(peak);
        is_done.store(true, Ordering::Relaxed);
        (peak, good, sipping.join())
    });
    sipped
        .ok()
        .context("the readers panicked")?
        .context("slow readers")?;
    Ok(vec![
        cost(to_f64(peak.saturating_sub(before)) / 1024.0 / 1024.0),
        good?,
    ])
}

fn sleeping(kind: Kind, files: &Files, load: &Load, options: &Options) -> Result<Vec<Cell>> {
    let server = start(kind, files, SLEEP_THREADS)?;
    let before = server.cpu();
    let seen = load.run(server.address, SLEEP_CONNECTIONS, options.seconds.max(3.0))?;
    let cpu = server.cpu().saturating_sub(before);
    let rate = to_f64(seen.requests) / seen.duration.as_secs_f64();
    let limit = to_f64(SLEEP_THREADS as u64) / nap()?.as_secs_f64();
    let cell = Cell {
        cost: cpu.as_secs_f64() * 1e6 / to_f64(seen.requests),
        rate,
        p50_us: seen.p50.as_secs_f64() * 1e6,
        p99_us: seen.p99.as_secs_f64() * 1e6,
    };
    Ok(vec![cost(100.0 * rate / limit), cell])
}

/// Measures how long a sleep of 10 ms really takes when all threads sleep: the excess is the
/// kernel's, not the server's.
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

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn to_f64(count: u64) -> f64 {
    count as f64
}
