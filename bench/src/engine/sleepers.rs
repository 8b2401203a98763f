//! Measures handlers that sleep for a second, ten thousand at once. Each measurement uses a fresh
//! server.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::contender::{Ability, Entrant, Kind};
use super::files::Files;
use super::{attempt, row};
use crate::arguments::Arguments;
use crate::figures::{Quantity, Row, Values, to_f64};
use crate::load::{idle, sleepers};

const NAME: &str = "10,000 handlers of 1 s";
const COUNT: usize = 10_000;

/// Time after which requests count as unanswered.
const TIME_MAX: Duration = Duration::from_secs(30);

/// Measures the row, once.
pub(crate) fn measure(options: &Arguments, entrants: &[Entrant], files: &Files) -> Vec<Row> {
    if !NAME.contains(&options.rows) {
        return Vec::new();
    }
    let mut row = row(NAME, entrants.len());
    for (entrant, cell) in entrants.iter().zip(&mut row.cells) {
        crate::progress(&format!("{NAME}: {}", entrant.kind.name()));
        let outcome = attempt(entrant, Ability::Blocking, || sleep(entrant.kind, files));
        cell.add(outcome);
    }
    vec![row]
}

fn sleep(kind: Kind, files: &Files) -> Result<Values> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let server = kind.start(files, cores)?;
    let connections = idle::open(server.address, "/text", COUNT)?;
    let before = server.cpu();
    let started = Instant::now();
    let seen = sleepers::ask(connections, server.address, "/sleep1000", TIME_MAX)?;
    let duration = started.elapsed();
    ensure!(seen.answered_count > 0, "no answer in {TIME_MAX:?}");
    let cpu = server.cpu().saturating_sub(before);
    let answered = to_f64(seen.answered_count);
    let mut values = server.memory();
    values.extend([
        (Quantity::Rate, answered / duration.as_secs_f64()),
        (Quantity::ServerCpuUs, cpu.as_secs_f64() * 1e6 / answered),
        (Quantity::Refused, to_f64(seen.refused_count)),
        (Quantity::Unanswered, to_f64(seen.unanswered_count)),
    ]);
    Ok(values)
}
