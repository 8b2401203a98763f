//! Rows that are measured in interleaved rounds.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Options;
use super::contender::{Ability, BLOCKING_THREADS, FILE_LEN, Files, Kind, check};
use super::table::{Cell, Table, Unit};
use crate::http::Client;
use crate::load::{Seen, echo, upload};
use crate::process::{self, Server};
use crate::wrk::Load;

/// Length of a WebSocket message, in bytes.
const MESSAGE_LEN: u16 = 32;

/// Sockets of a broadcast, and messages per round.
const BROADCAST_SOCKETS: usize = 5000;
const BROADCAST_MESSAGES: u32 = 10;

/// Row of a table.
#[derive(Debug)]
struct Row {
    name: String,
    what: What,
    /// Whether server and client share a core.
    is_pinned: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// Requests by wrk: target, required ability, connections.
    Small(&'static str, Ability, u32),
    /// Downloads of 10 MB; connections.
    Download(usize),
    /// Uploads of 10 MB; connections.
    Upload(usize),
    /// WebSocket echo; sockets.
    Echo(usize),
    /// WebSocket broadcast.
    Broadcast,
}

impl What {
    fn ability(self) -> Ability {
        match self {
            Self::Small(_, ability, _) => ability,
            Self::Download(_) | Self::Upload(_) => Ability::Bodies,
            Self::Echo(_) | Self::Broadcast => Ability::WebSocket,
        }
    }

    fn unit(self) -> Unit {
        match self {
            Self::Small(..) => Unit::MicrosPerRequest,
            Self::Download(_) | Self::Upload(_) => Unit::SecondsPerGigabyte,
            Self::Echo(_) => Unit::MicrosPerMessage,
            Self::Broadcast => Unit::MicrosPerDelivery,
        }
    }
}

fn all() -> Vec<Row> {
    let mut rows = Vec::new();
    for is_pinned in [true, false] {
        let place = if is_pinned { "one core" } else { "all cores" };
        let mut add = |name: String, what| {
            let name = format!("{name}, {place}");
            rows.push(Row {
                name,
                what,
                is_pinned,
            });
        };
        for count in [1, 64, 256] {
            add(
                format!("text c{count}"),
                What::Small("/text", Ability::Text, count),
            );
        }
        add(
            "text500 c64".into(),
            What::Small("/text500", Ability::Text, 64),
        );
        add("JSON c64".into(), What::Small("/json", Ability::Json, 64));
        for count in [1, 16] {
            add(format!("file of 10 MB c{count}"), What::Download(count));
            add(format!("upload of 10 MB c{count}"), What::Upload(count));
        }
        for count in [1, 64, 256] {
            add(format!("WebSocket echo c{count}"), What::Echo(count));
        }
        add(format!("broadcast to {BROADCAST_SOCKETS}"), What::Broadcast);
    }
    rows
}

/// Server in the comparison.
struct Contender {
    kind: Kind,
    /// Instance with one thread, for rows on one core.
    single: Server,
    /// Instance with one thread per core.
    full: Server,
}

/// Measures all rows.
pub(crate) fn measure(options: &Options, files: &Files) -> Result<Vec<Table>> {
    let rows: Vec<Row> = all()
        .into_iter()
        .filter(|row| row.name.contains(&options.rows))
        .collect();
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let mut contenders = Vec::new();
    for kind in Kind::ALL {
        if !options.only.is_empty() && !options.only.iter().any(|name| name == kind.name()) {
            continue;
        }
        crate::progress(&format!("starting {}", kind.name()));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let single = kind.start(files, 1, BLOCKING_THREADS)?;
        let full = kind.start(files, cores, BLOCKING_THREADS)?;
        check(kind, &single)?;
        check(kind, &full)?;
        contenders.push(Contender { kind, single, full });
    }
    let scratch = tempfile::Builder::new()
        .prefix("samovar-bench-")
        .tempdir()?;
    let bench = Bench {
        seconds: options.seconds,
        texts: Load::new(scratch.path(), "text", &["/text".into()], true)?,
        texts_500: Load::new(scratch.path(), "text500", &["/text500".into()], true)?,
        jsons: Load::new(scratch.path(), "json", &["/json".into()], true)?,
    };
    let mut table = Table::new(
        &rows
            .iter()
            .map(|row| (row.name.clone(), row.what.unit()))
            .collect::<Vec<_>>(),
    );
    for round in 1..=options.rounds {
        for (index, row) in rows.iter().enumerate() {
            crate::progress(&format!("round {round}: {}", row.name));
            for contender in contenders.iter().filter(|c| c.kind.can(row.what.ability())) {
                let cell = bench.cell(row, contender);
                if let Err(error) = &cell {
                    crate::progress(&format!("{}: {error:#}", contender.kind.name()));
                }
                table.add(index, contender.kind, cell.ok());
            }
        }
    }
    Ok(vec![table])
}

struct Bench {
    seconds: f64,
    texts: Load,
    texts_500: Load,
    jsons: Load,
}

impl Bench {
    fn cell(&self, row: &Row, contender: &Contender) -> Result<Cell> {
        if !row.is_pinned {
            return self.cell_anywhere(row, &contender.full);
        }
        let (all, first) = process::cores()?;
        contender.single.pin(&first);
        process::pin_own_thread(&first);
        let cell = self.cell_anywhere(row, &contender.single);
        process::pin_own_thread(&all);
        contender.single.pin(&all);
        cell
    }

    fn cell_anywhere(&self, row: &Row, server: &Server) -> Result<Cell> {
        let mut before = server.cpu();
        let address = server.address;
        let seen = match row.what {
            What::Small(target, _, count) => {
                let load = match target {
                    "/text" => &self.texts,
                    "/text500" => &self.texts_500,
                    _ => &self.jsons,
                };
                let seen = load.run(address, count, self.seconds)?;
                let cpu = server.cpu().saturating_sub(before);
                return Ok(Cell {
                    cost: micros(cpu) / to_f64(seen.requests),
                    rate: to_f64(seen.requests) / seen.duration.as_secs_f64(),
                    p50_us: micros(seen.p50),
                    p99_us: micros(seen.p99),
                });
            }
            What::Download(count) => download(server, count, self.seconds)?,
            What::Upload(count) => {
                let len = usize::try_from(FILE_LEN)?;
                upload::run(address, count, len, self.seconds)?
            }
            What::Echo(count) => echo::echo(address, count, MESSAGE_LEN, self.seconds)?,
            What::Broadcast => {
                let begin = || before = server.cpu();
                echo::broadcast(
                    address,
                    BROADCAST_SOCKETS,
                    MESSAGE_LEN,
                    BROADCAST_MESSAGES,
                    begin,
                )?
            }
        };
        let cpu = server.cpu().saturating_sub(before);
        let count = to_f64(seen.count);
        let cost = match row.what {
            What::Download(_) | What::Upload(_) => {
                cpu.as_secs_f64() / (count * to_f64(FILE_LEN)) * 1e9
            }
            What::Broadcast => micros(cpu) / count / to_f64(BROADCAST_SOCKETS as u64),
            What::Small(..) | What::Echo(_) => micros(cpu) / count,
        };
        Ok(Cell {
            cost,
            rate: count / seen.duration.as_secs_f64(),
            p50_us: seen.percentile_us(50),
            p99_us: seen.percentile_us(99),
        })
    }
}

fn download(server: &Server, count: usize, seconds: f64) -> Result<Seen> {
    let started = Instant::now();
    let one = || -> Result<u64> {
        let mut client = Client::new(server.address);
        let mut count = 0;
        while count < 2 || started.elapsed().as_secs_f64() < seconds {
            let answer = client.get("/file", |_| ())?;
            if answer.body_len != FILE_LEN {
                anyhow::bail!("a file of {} bytes", answer.body_len);
            }
            count += 1;
        }
        Ok(count)
    };
    let counts: Vec<Result<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(one)).collect();
        let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined
            .map(|count| count.ok().context("a client panicked").flatten())
            .collect()
    });
    Ok(Seen {
        count: counts.into_iter().sum::<Result<u64>>()?,
        duration: started.elapsed(),
        latencies_us: Vec::new(),
    })
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn to_f64(count: u64) -> f64 {
    count as f64
}
