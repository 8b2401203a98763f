//! Measures the rows whose rounds are interleaved.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::contender::{Ability, Entrant, Kind};
use super::files::{BIG_LEN, FILE_LEN, Files, ITEM_COUNT};
use super::{attempt, row};
use crate::arguments::Arguments;
use crate::figures::{Quantity, Row, Values, to_f64};
use crate::http::Client;
use crate::load::{Seen, bodies, echo, upload};
use crate::process::{Server, on_one_core};
use crate::wrk::Load;

/// Length of a WebSocket message, in bytes.
const MESSAGE_LEN: u16 = 32;

/// Number of sockets that receive each broadcast. The next constant is the number of broadcast
/// messages per round.
const BROADCAST_SOCKETS: usize = 5000;
const BROADCAST_MESSAGES: u32 = 10;

/// Duration of the requests for each target before the first round of a server in Java.
const WARM_UP_SECONDS: f64 = 3.0;

/// A row that is measured in interleaved rounds.
#[derive(Debug)]
struct Plan {
    name: String,
    what: What,
    /// Whether the server and its client share one core.
    is_pinned: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// wrk requests this target on this number of connections. The server needs this ability.
    Small(&'static str, Ability, u32),
    /// Random rows of the database are requested, as with [`Small`](Self::Small).
    Items(u32),
    /// Bodies of this length are downloaded from this target on this number of connections.
    Download(&'static str, u64, usize),
    /// Bodies of this length are uploaded on this number of connections.
    Upload(u64, usize),
    /// WebSocket messages are echoed on this number of sockets.
    Echo(usize),
    /// WebSocket messages are broadcast to [`BROADCAST_SOCKETS`] sockets.
    Broadcast,
}

impl What {
    fn ability(self) -> Ability {
        match self {
            Self::Small(_, ability, _) => ability,
            Self::Items(_) => Ability::Database,
            Self::Download(..) => Ability::Files,
            Self::Upload(..) => Ability::Uploads,
            Self::Echo(_) => Ability::WebSocket,
            Self::Broadcast => Ability::Broadcast,
        }
    }
}

fn plans() -> Vec<Plan> {
    let mut plans = Vec::new();
    for (is_pinned, place) in [(true, "one core"), (false, "all cores")] {
        let kinds = [
            ("text c1", What::Small("/text", Ability::Text, 1)),
            ("text c64", What::Small("/text", Ability::Text, 64)),
            ("text c256", What::Small("/text", Ability::Text, 256)),
            ("text500 c64", What::Small("/text500", Ability::Text, 64)),
            ("JSON c64", What::Small("/json", Ability::Json, 64)),
            (
                "pooled text c64",
                What::Small("/pooled", Ability::Blocking, 64),
            ),
            ("SQLite c64", What::Items(64)),
            (
                "handler of 10 ms c100",
                What::Small("/sleep10", Ability::Blocking, 100),
            ),
            ("file of 10 MB c1", What::Download("/file", FILE_LEN, 1)),
            ("upload of 10 MB c1", What::Upload(FILE_LEN, 1)),
            ("file of 10 MB c16", What::Download("/file", FILE_LEN, 16)),
            ("upload of 10 MB c16", What::Upload(FILE_LEN, 16)),
            ("file of 100 MB c1", What::Download("/big", BIG_LEN, 1)),
            ("upload of 100 MB c1", What::Upload(BIG_LEN, 1)),
            ("WebSocket echo c1", What::Echo(1)),
            ("WebSocket echo c64", What::Echo(64)),
            ("WebSocket echo c256", What::Echo(256)),
            ("broadcast to 5000", What::Broadcast),
        ];
        plans.extend(kinds.map(|(name, what)| Plan {
            name: format!("{name}, {place}"),
            what,
            is_pinned,
        }));
    }
    plans
}

/// A server in the comparison, with its two running instances; `None` if it cannot run here.
struct Contender<'run> {
    entrant: &'run Entrant,
    /// The instance with one thread, for rows on one core.
    single: Option<Server>,
    /// The instance with one thread per core, for the other rows.
    full: Option<Server>,
}

impl Contender<'_> {
    /// Sends requests to servers that compile themselves while they run.
    fn warm_up(&self, scratch: &Path) -> Result<()> {
        if self.entrant.kind == Kind::Java {
            for server in self.single.iter().chain(&self.full) {
                for target in ["/text", "/json", "/sleep10"] {
                    small(server, &[target.into()], 64, WARM_UP_SECONDS, scratch)?;
                }
            }
        }
        Ok(())
    }
}

/// Measures all rows.
pub(crate) fn measure(
    options: &Arguments,
    entrants: &[Entrant],
    files: &Files,
    scratch: &Path,
) -> Result<Vec<Row>> {
    let mut plans = plans();
    plans.retain(|plan| plan.name.contains(&options.rows));
    if plans.is_empty() {
        return Ok(Vec::new());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut contenders = Vec::new();
    for entrant in entrants {
        let start = |threads| {
            let is_present = entrant.is_present();
            is_present
                .then(|| entrant.kind.start(files, threads))
                .transpose()
        };
        contenders.push(Contender {
            entrant,
            single: start(1)?,
            full: start(cores)?,
        });
    }
    contenders
        .iter()
        .try_for_each(|contender| contender.warm_up(scratch))?;
    let names = plans.iter().map(|plan| &*plan.name);
    let mut rows: Vec<Row> = names.map(|name| row(name, contenders.len())).collect();
    for round in 1..=options.rounds {
        for (plan, row) in plans.iter().zip(&mut rows) {
            crate::progress(&format!("round {round}: {}", plan.name));
            for (contender, cell) in contenders.iter().zip(&mut row.cells) {
                let measure = || plan.measure(contender, options.seconds, scratch);
                cell.add(attempt(contender.entrant, plan.what.ability(), measure));
            }
        }
    }
    Ok(rows)
}

impl Plan {
    fn measure(&self, contender: &Contender<'_>, seconds: f64, scratch: &Path) -> Result<Values> {
        let server = if self.is_pinned {
            &contender.single
        } else {
            &contender.full
        };
        let server = server.as_ref().context("not started")?;
        let measure = || self.what.measure(server, seconds, scratch);
        if self.is_pinned {
            on_one_core(server, measure)
        } else {
            measure()
        }
    }
}

impl What {
    fn measure(self, server: &Server, seconds: f64, scratch: &Path) -> Result<Values> {
        let mut before = server.cpu();
        let address = server.address;
        let (cost, scale, seen) = match self {
            Self::Small(target, _, count) => {
                return small(server, &[target.into()], count, seconds, scratch);
            }
            Self::Items(count) => {
                let items = (1..=ITEM_COUNT).map(|id| format!("/item?id={id}"));
                let items: Vec<String> = items.collect();
                return small(server, &items, count, seconds, scratch);
            }
            Self::Download(target, body_len, count) => {
                let seen = bodies(count, seconds, || {
                    let mut client = Client::new(address);
                    Ok(move || {
                        let len = client.get(target, |_| ())?.body_len;
                        ensure!(len == body_len, "a file of {len} bytes");
                        Ok(())
                    })
                })?;
                (Quantity::ServerCpuPerGb, 1e9 / to_f64(body_len), seen)
            }
            Self::Upload(body_len, count) => {
                let len = usize::try_from(body_len)?;
                let seen = bodies(count, seconds, || upload::start(address, len))?;
                (Quantity::ServerCpuPerGb, 1e9 / to_f64(body_len), seen)
            }
            Self::Echo(count) => {
                let seen = echo::echo(address, count, MESSAGE_LEN, seconds)?;
                (Quantity::ServerCpuPerMessage, 1e6, seen)
            }
            Self::Broadcast => {
                let (sockets, messages) = (BROADCAST_SOCKETS, BROADCAST_MESSAGES);
                let begin = || before = server.cpu();
                let seen = echo::broadcast(address, sockets, MESSAGE_LEN, messages, begin)?;
                (
                    Quantity::ServerCpuPerDelivery,
                    1e6 / to_f64(sockets as u64),
                    seen,
                )
            }
        };
        let cpu = server.cpu().saturating_sub(before);
        Ok(values(cost, scale, &seen, cpu))
    }
}

/// Requests random ones of these targets by wrk, on `count` connections.
fn small(
    server: &Server,
    targets: &[String],
    count: u32,
    seconds: f64,
    scratch: &Path,
) -> Result<Values> {
    let load = Load {
        scratch,
        targets,
        is_found: true,
        takes_zstd: false,
        // As in Mummy's benchmark, on which the row with this number of connections is modelled.
        threads: if count == 100 { 10 } else { 2 },
    };
    load.measure(server, count, seconds)
}

/// Returns rate, latencies and cost. `cost` is the quantity of the cost: the CPU time per item in
/// seconds, times `scale`.
fn values(cost: Quantity, scale: f64, seen: &Seen, cpu: Duration) -> Values {
    let count = to_f64(seen.count);
    let mut values = Values::from([
        (cost, cpu.as_secs_f64() / count * scale),
        (Quantity::Rate, count / seen.duration.as_secs_f64()),
    ]);
    if !seen.latencies_us.is_empty() {
        values.insert(Quantity::P50Us, seen.percentile_us(50));
        values.insert(Quantity::P99Us, seen.percentile_us(99));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_converted_to_the_unit_of_each_cost() {
        let seen = Seen {
            count: 100,
            duration: Duration::from_secs(2),
            latencies_us: vec![5.0],
        };
        let of = |cost, scale| values(cost, scale, &seen, Duration::from_secs(1));
        let files = of(Quantity::ServerCpuPerGb, 1e9 / 10e6);
        // A hundred files of 10 MB are a gigabyte.
        assert!((files[&Quantity::ServerCpuPerGb] - 1.0).abs() < 1e-9);
        let messages = of(Quantity::ServerCpuPerMessage, 1e6);
        assert!((messages[&Quantity::ServerCpuPerMessage] - 10_000.0).abs() < 1e-6);
        assert_eq!(messages[&Quantity::Rate], 50.0);
        assert_eq!(messages[&Quantity::P99Us], 5.0);
    }
}
