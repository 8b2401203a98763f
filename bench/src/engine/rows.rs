//! Measures the rows whose rounds are interleaved.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::contender::{Ability, FILE_LEN, Files, Kind, check};
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
    /// Bodies of 10 MB are downloaded on this number of connections.
    Download(usize),
    /// Bodies of 10 MB are uploaded on this number of connections.
    Upload(usize),
    /// WebSocket messages are echoed on this number of sockets.
    Echo(usize),
    /// WebSocket messages are broadcast to [`BROADCAST_SOCKETS`] sockets.
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
            ("file of 10 MB c1", What::Download(1)),
            ("upload of 10 MB c1", What::Upload(1)),
            ("file of 10 MB c16", What::Download(16)),
            ("upload of 10 MB c16", What::Upload(16)),
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

/// A server in the comparison, with its two running instances.
struct Contender {
    kind: Kind,
    /// The instance with one thread, for rows on one core.
    single: Server,
    /// The instance with one thread per core, for the other rows.
    full: Server,
}

/// Measures all rows.
pub(crate) fn measure(options: &Arguments, files: &Files, scratch: &Path) -> Result<Vec<Row>> {
    let mut plans = plans();
    plans.retain(|plan| plan.name.contains(&options.rows));
    if plans.is_empty() {
        return Ok(Vec::new());
    }
    let mut contenders = Vec::new();
    for kind in Kind::ALL {
        crate::progress(&format!("starting {}", kind.name()));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let single = kind.start(files, 1)?;
        let full = kind.start(files, cores)?;
        check(kind, &single)?;
        check(kind, &full)?;
        contenders.push(Contender { kind, single, full });
    }
    let names = plans.iter().map(|plan| &*plan.name);
    let mut rows: Vec<Row> = names.map(|name| row(name, contenders.len())).collect();
    for round in 1..=options.rounds {
        for (plan, row) in plans.iter().zip(&mut rows) {
            crate::progress(&format!("round {round}: {}", plan.name));
            for (contender, cell) in contenders.iter().zip(&mut row.cells) {
                let measure = || plan.measure(contender, options.seconds, scratch);
                cell.add(attempt(contender.kind, plan.what.ability(), measure));
            }
        }
    }
    Ok(rows)
}

impl Plan {
    fn measure(&self, contender: &Contender, seconds: f64, scratch: &Path) -> Result<Values> {
        if self.is_pinned {
            let server = &contender.single;
            on_one_core(server, || self.what.measure(server, seconds, scratch))
        } else {
            self.what.measure(&contender.full, seconds, scratch)
        }
    }
}

impl What {
    fn measure(self, server: &Server, seconds: f64, scratch: &Path) -> Result<Values> {
        let mut before = server.cpu();
        let address = server.address;
        let (cost, scale, seen) = match self {
            Self::Small(target, _, count) => {
                let load = Load {
                    scratch,
                    targets: &[target.into()],
                    is_found: true,
                    takes_zstd: false,
                };
                return load.measure(server, count, seconds);
            }
            Self::Download(count) => {
                let seen = bodies(count, seconds, || {
                    let mut client = Client::new(address);
                    Ok(move || {
                        let len = client.get("/file", |_| ())?.body_len;
                        ensure!(len == FILE_LEN, "a file of {len} bytes");
                        Ok(())
                    })
                })?;
                (Quantity::ServerCpuPerGb, 1e9 / to_f64(FILE_LEN), seen)
            }
            Self::Upload(count) => {
                let body_len = usize::try_from(FILE_LEN)?;
                let seen = bodies(count, seconds, || upload::start(address, body_len))?;
                (Quantity::ServerCpuPerGb, 1e9 / to_f64(FILE_LEN), seen)
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
