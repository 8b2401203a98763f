//! The rows of the table, and how each is measured.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::arguments::Arguments;
use crate::check::nar_url;
use crate::http::Client;
use crate::process::{self, Server};
use crate::store::{Store, hash_part};
use crate::wrk::Load;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Narinfo,
    Absent,
    EmptyNar,
    BigNar,
    Tree,
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) name: String,
    target: Target,
    way: Way,
}

/// How it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One connection, one request at a time, client and server on one core.
    Sequential,
    /// wrk on so many connections.
    Wrk(u32),
    /// Large bodies on so many connections, counted byte by byte.
    Bulk(u32),
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figure {
    /// Answers per second.
    pub(crate) rate: f64,
    /// CPU of the server for one answer, in microseconds.
    pub(crate) server_cpu_us: f64,
    /// Latencies in microseconds; 0 where they are not taken.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Bytes per answer, for bulk rows; 0 for others.
    pub(crate) body_len: f64,
    /// CPU of the client for one answer, in microseconds; for bulk rows.
    pub(crate) client_cpu_us: f64,
}

impl Row {
    /// Whether it is about bytes, and not about requests.
    pub(crate) fn is_bulk(&self) -> bool {
        matches!(self.way, Way::Bulk(_))
    }
}

/// A row and the medians of each server, in the order of the servers.
pub(crate) type Results = Vec<(Row, Vec<Figure>)>;

/// Measures all rows on all servers.
pub(crate) fn measure(
    arguments: &Arguments,
    store: &Store,
    servers: &[Server],
    scratch: &Path,
) -> Result<Results> {
    let rows: Vec<Row> = all(arguments.quick)
        .into_iter()
        .filter(|row| row.name.contains(&arguments.rows))
        .collect();
    let bench = Bench::new(arguments, store, servers, scratch)?;
    let mut figures: BTreeMap<(usize, usize), Vec<Figure>> = BTreeMap::new();
    for round in 1..=arguments.rounds {
        for (row_index, row) in rows.iter().enumerate() {
            crate::progress(&format!("round {round}: {}", row.name));
            for (server_index, server) in servers.iter().enumerate() {
                let figure = bench
                    .figure(row, server, server_index)
                    .with_context(|| format!("{}, {}", server.name, row.name))?;
                figures
                    .entry((row_index, server_index))
                    .or_default()
                    .push(figure);
            }
        }
    }
    let median_of = |row: usize, server: usize| median(figures.get(&(row, server)));
    Ok(rows
        .into_iter()
        .enumerate()
        .map(|(row_index, row)| {
            let medians = (0..servers.len())
                .map(|server| median_of(row_index, server))
                .collect();
            (row, medians)
        })
        .collect())
}

fn all(quick: bool) -> Vec<Row> {
    let small = [
        (Target::Narinfo, "narinfo"),
        (Target::Absent, "absent"),
        (Target::EmptyNar, "empty NAR"),
    ];
    let connections: &[u32] = if quick { &[1, 64] } else { &[1, 64, 256] };
    let mut rows = Vec::new();
    for (target, name) in small {
        let name = format!("{name}, one after the other on one core");
        rows.push(Row {
            name,
            target,
            way: Way::Sequential,
        });
    }
    for (target, name) in small {
        for &count in connections {
            rows.push(Row {
                name: format!("{name} c{count}"),
                target,
                way: Way::Wrk(count),
            });
        }
    }
    for (target, name, count) in [
        (Target::BigNar, "10 MB NAR c1", 1),
        (Target::BigNar, "10 MB NAR c16", 16),
        (Target::Tree, "tree of 45,000 files c1", 1),
    ] {
        rows.push(Row {
            name: name.into(),
            target,
            way: Way::Bulk(count),
        });
    }
    rows
}

/// The median of each figure by itself.
fn median(figures: Option<&Vec<Figure>>) -> Figure {
    let of = |figure: fn(&Figure) -> f64| {
        let mut values: Vec<f64> = figures.into_iter().flatten().map(figure).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or_default()
    };
    Figure {
        rate: of(|f| f.rate),
        server_cpu_us: of(|f| f.server_cpu_us),
        p50_us: of(|f| f.p50_us),
        p99_us: of(|f| f.p99_us),
        body_len: of(|f| f.body_len),
        client_cpu_us: of(|f| f.client_cpu_us),
    }
}

/// What the rows ask for: request targets, and scripts for wrk. NARs have a URL for each server.
struct Bench {
    seconds: f64,
    narinfos: Vec<String>,
    absent: Vec<String>,
    narinfo_load: Load,
    absent_load: Load,
    nars: Vec<Nars>,
}

struct Nars {
    empty: String,
    empty_load: Load,
    big: (String, u64),
    tree: (String, u64),
}

impl Bench {
    fn new(arguments: &Arguments, store: &Store, servers: &[Server], dir: &Path) -> Result<Self> {
        let narinfos: Vec<String> = store
            .paths
            .keys()
            .map(|path| format!("/{}.narinfo", hash_part(path)))
            .collect();
        let absent = absent_targets(10_000);
        let mut nars = Vec::new();
        for server in servers {
            let mut client = Client::new(server.address);
            let empty = nar_url(&mut client, &store.empty)?;
            let name = format!("empty-{}", server.name);
            let mut bulk = |path: &str| -> Result<(String, u64)> {
                Ok((nar_url(&mut client, path)?, store.info(path)?.nar_size))
            };
            nars.push(Nars {
                big: bulk(&store.big)?,
                tree: bulk(&store.tree)?,
                empty_load: Load::new(dir, &name, std::slice::from_ref(&empty), true)?,
                empty,
            });
        }
        Ok(Self {
            seconds: arguments.seconds,
            narinfo_load: Load::new(dir, "narinfo", &narinfos, true)?,
            absent_load: Load::new(dir, "absent", &absent, false)?,
            narinfos,
            absent,
            nars,
        })
    }

    fn figure(&self, row: &Row, server: &Server, server_index: usize) -> Result<Figure> {
        let nars = self
            .nars
            .get(server_index)
            .context("every server has its URLs")?;
        match (row.target, row.way) {
            (Target::Narinfo, Way::Wrk(count)) => self.wrk(&self.narinfo_load, server, count),
            (Target::Absent, Way::Wrk(count)) => self.wrk(&self.absent_load, server, count),
            (Target::EmptyNar, Way::Wrk(count)) => self.wrk(&nars.empty_load, server, count),
            (Target::Narinfo, Way::Sequential) => self.sequential(&self.narinfos, 200, server),
            (Target::Absent, Way::Sequential) => self.sequential(&self.absent, 404, server),
            (Target::EmptyNar, Way::Sequential) => {
                self.sequential(std::slice::from_ref(&nars.empty), 200, server)
            }
            (Target::BigNar, Way::Bulk(count)) => self.bulk(&nars.big, server, count),
            (Target::Tree, Way::Bulk(count)) => self.bulk(&nars.tree, server, count),
            (target, way) => bail!("{target:?} is never asked as {way:?}"),
        }
    }

    fn wrk(&self, load: &Load, server: &Server, connections: u32) -> Result<Figure> {
        let before = server.cpu();
        let seen = load.run(server.address, connections, self.seconds)?;
        let cpu = server.cpu().saturating_sub(before);
        Ok(Figure {
            rate: per(seen.requests, seen.duration),
            server_cpu_us: micros(cpu) / to_f64(seen.requests),
            p50_us: micros(seen.p50),
            p99_us: micros(seen.p99),
            body_len: 0.0,
            client_cpu_us: 0.0,
        })
    }

    fn sequential(&self, targets: &[String], status: u16, server: &Server) -> Result<Figure> {
        let (all, first) = process::cores()?;
        server.pin(&first);
        process::pin_own_thread(&first);
        let figure = self.sequential_pinned(targets, status, server);
        process::pin_own_thread(&all);
        server.pin(&all);
        figure
    }

    fn sequential_pinned(
        &self,
        targets: &[String],
        status: u16,
        server: &Server,
    ) -> Result<Figure> {
        let mut client = Client::new(server.address);
        let mut latencies = Vec::new();
        let before = server.cpu();
        let started = Instant::now();
        // A stride without a common factor with the count: all of them in turn, but not in order.
        for target in targets.iter().cycle().step_by(37) {
            let asked = Instant::now();
            let answer = client.get(target, |_| ())?;
            latencies.push(micros(asked.elapsed()));
            if answer.status != status {
                bail!("{target}: status {}", answer.status);
            }
            if started.elapsed().as_secs_f64() >= self.seconds {
                break;
            }
        }
        let (elapsed, cpu) = (started.elapsed(), server.cpu().saturating_sub(before));
        latencies.sort_by(f64::total_cmp);
        let at = |part: usize| latencies.get(latencies.len() * part / 100).copied();
        let count = latencies.len() as u64;
        Ok(Figure {
            rate: per(count, elapsed),
            server_cpu_us: micros(cpu) / to_f64(count),
            p50_us: at(50).unwrap_or_default(),
            p99_us: at(99).unwrap_or_default(),
            body_len: 0.0,
            client_cpu_us: 0.0,
        })
    }

    fn bulk(&self, nar: &(String, u64), server: &Server, connections: u32) -> Result<Figure> {
        let (url, nar_size) = nar;
        // Twice at least: one tree takes longer than a short round.
        let fetch = || -> Result<u64> {
            let mut client = Client::new(server.address);
            let mut count = 0;
            let started = Instant::now();
            while count < 2 || started.elapsed().as_secs_f64() < self.seconds {
                let mut body_len = 0;
                let answer = client.get(url, |piece| body_len += piece.len() as u64)?;
                if answer.status != 200 || body_len != *nar_size {
                    bail!(
                        "{url}: status {}, {body_len} of {nar_size} bytes",
                        answer.status
                    );
                }
                count += 1;
            }
            Ok(count)
        };
        let (server_before, client_before) = (server.cpu(), process::own_cpu());
        let started = Instant::now();
        let counts: Vec<Result<u64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..connections).map(|_| scope.spawn(fetch)).collect();
            let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined
                .map(|count| count.unwrap_or_else(|_| bail!("a client panicked")))
                .collect()
        });
        let elapsed = started.elapsed();
        let count: u64 = counts.into_iter().sum::<Result<u64>>()?;
        let server_cpu = server.cpu().saturating_sub(server_before);
        let client_cpu = process::own_cpu().saturating_sub(client_before);
        Ok(Figure {
            rate: per(count, elapsed),
            server_cpu_us: micros(server_cpu) / to_f64(count),
            p50_us: 0.0,
            p99_us: 0.0,
            body_len: to_f64(*nar_size),
            client_cpu_us: micros(client_cpu) / to_f64(count),
        })
    }
}

/// Narinfos that no store has: well-formed hash parts, different each.
fn absent_targets(count: u64) -> Vec<String> {
    const DIGITS: &[u8; 32] = b"0123456789abcdfghijklmnpqrsvwxyz";
    (0..count)
        .map(|index| {
            let mut state = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let hash: String = (0..32)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let digit = DIGITS.get((state >> 59) as usize).copied().unwrap_or(b'0');
                    char::from(digit)
                })
                .collect();
            format!("/{hash}.narinfo")
        })
        .collect()
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn per(count: u64, duration: Duration) -> f64 {
    to_f64(count) / duration.as_secs_f64()
}

/// Counts and sizes here are far below 2⁵³, so nothing is lost.
#[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
fn to_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_taken_figure_by_figure() {
        let figure = |rate, cpu| Figure {
            rate,
            server_cpu_us: cpu,
            p50_us: 0.0,
            p99_us: 0.0,
            body_len: 0.0,
            client_cpu_us: 0.0,
        };
        let three = vec![figure(1.0, 9.0), figure(3.0, 7.0), figure(2.0, 8.0)];
        assert_eq!(median(Some(&three)), figure(2.0, 8.0));
    }

    #[test]
    fn absent_targets_are_well_formed_and_different() {
        let targets = absent_targets(10_000);
        let unique: std::collections::BTreeSet<_> = targets.iter().collect();
        assert_eq!(unique.len(), 10_000);
        assert!(
            targets
                .iter()
                .all(|target| target.len() == "/.narinfo".len() + 32)
        );
    }
}
