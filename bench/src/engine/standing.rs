//! Measures the memory of idle connections. Each measurement uses a fresh server.

use std::io;
use std::net::{SocketAddr, TcpStream};

use anyhow::Result;

use super::contender::{Ability, Entrant, Kind};
use super::files::Files;
use super::{attempt, row};
use crate::arguments::Arguments;
use crate::figures::{Quantity, Row, Values, to_f64};
use crate::load::{echo, idle};

/// Number of idle connections that are opened to a server.
const IDLE_COUNT: usize = 10_000;

/// Opens this number of connections to the server at the address, and leaves them idle.
type Open = fn(SocketAddr, usize) -> io::Result<Vec<TcpStream>>;

const ROWS: [(&str, Ability, Open); 2] = [
    (
        "10,000 idle connections",
        Ability::Json,
        |address, count| idle::open(address, "/text", count),
    ),
    (
        "10,000 idle WebSockets",
        Ability::WebSocket,
        |address, count| echo::open(address, "/ws", count),
    ),
];

/// Measures all rows.
pub(crate) fn measure(options: &Arguments, entrants: &[Entrant], files: &Files) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, ability, open) in ROWS {
        if !name.contains(&options.rows) {
            continue;
        }
        let mut row = row(name, entrants.len());
        for (entrant, cell) in entrants.iter().zip(&mut row.cells) {
            for _ in 0..options.rounds {
                crate::progress(&format!("{name}: {}", entrant.kind.name()));
                let measure = || memory(entrant.kind, files, open);
                cell.add(attempt(entrant, ability, measure));
            }
        }
        rows.push(row);
    }
    rows
}

fn memory(kind: Kind, files: &Files, open: Open) -> Result<Values> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let server = kind.start(files, cores)?;
    // Open and close some connections first, to exclude memory that the server allocates only once.
    drop(open(server.address, 100)?);
    let before = server.anonymous_len();
    let connections = open(server.address, IDLE_COUNT)?;
    let grown = server.anonymous_len().saturating_sub(before);
    let each = to_f64(grown) / 1024.0 / to_f64(connections.len() as u64);
    Ok(Values::from([(Quantity::KibPerConnection, each)]))
}
