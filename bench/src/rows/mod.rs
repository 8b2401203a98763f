//! Measures the rows of the report, with one module for each measuring method.

mod bulk;
mod calls;
mod copy;
mod iteration;
mod once;
mod start;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use testkit::random::SplitMix64;

pub(crate) use self::calls::is_possible as can_count_calls;
pub(crate) use self::copy::client_home;
use self::iteration::ITERATIONS;
use crate::arguments::Arguments;
use crate::contender::{Contender, Setting};
use crate::figures::{Cell, Gap, Results, Row, Section, Values, failed};
use crate::process::on_one_core;
use crate::store::{BigStore, Store, hash_part};
use crate::wrk::Load;

/// A server that takes longer than this for a round of a row is not measured in later rounds of
/// that row. Otherwise a slow server would take as long as all others together, and its figure
/// averages over more anyway.
const LONG: Duration = Duration::from_secs(6);

/// A row that is to be measured: its name, and how it is measured.
struct Plan {
    name: String,
    section: Section,
    measure: Box<Measure>,
}

/// Measures a server in one round of a row.
type Measure = dyn Fn(&Bench<'_>, &Contender) -> Result<Values, Gap>;

/// The resource that a row requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// Narinfos of all paths in the store.
    Narinfo,
    Absent,
    EmptyNar,
    BigNar,
}

impl Plan {
    /// Returns whether one round suffices, because further ones would add nothing or be
    /// incomparable.
    fn is_measured_once(&self) -> bool {
        matches!(self.section, Section::Memory | Section::Calls)
    }
}

/// Creates the plan of a row.
fn plan(
    section: Section,
    name: impl Into<String>,
    measure: impl Fn(&Bench<'_>, &Contender) -> Result<Values, Gap> + 'static,
) -> Plan {
    Plan {
        name: name.into(),
        section,
        measure: Box::new(measure),
    }
}

/// Returns all rows in measuring order. Memory comes last, after all load.
// Long: a table of rows.
fn plans(connections: &'static [u32], path_count: u64) -> Vec<Plan> {
    let mut plans = Vec::new();
    for (name, iterate) in ITERATIONS {
        let measure = move |b: &Bench<'_>, c: &Contender| iteration::measure(b, iterate, c);
        plans.push(plan(Section::NixServeNg, name, measure));
    }
    let requests = |name: &str, target, setting, count, takes_zstd| {
        let measure =
            move |b: &Bench<'_>, c: &Contender| b.requests(target, setting, count, takes_zstd, c);
        plan(Section::Requests, format!("{name} c{count}"), measure)
    };
    for (target, name) in [
        (Target::Narinfo, "narinfo"),
        (Target::Absent, "absent"),
        (Target::EmptyNar, "empty NAR"),
    ] {
        let counts = connections.iter();
        plans.extend(counts.map(|&count| requests(name, target, Setting::Plain, count, false)));
    }
    let many = if connections.contains(&64) { 64 } else { 1 };
    let big = format!("{} paths", crate::table::grouped(path_count));
    for (name, target, setting, takes_zstd) in [
        (
            "narinfo, zstd accepted",
            Target::Narinfo,
            Setting::Plain,
            true,
        ),
        ("narinfo, signed", Target::Narinfo, Setting::Signing, false),
        (
            &format!("narinfo, {big}"),
            Target::Narinfo,
            Setting::Big,
            false,
        ),
        (
            &format!("absent, {big}"),
            Target::Absent,
            Setting::Big,
            false,
        ),
    ] {
        plans.push(requests(name, target, setting, many, takes_zstd));
    }
    plans.extend([
        plan(Section::Bulk, "10 MB NAR c1", |b, c| {
            bulk::measure(b, c, &b.store.big, 1, false)
        }),
        plan(Section::Bulk, "10 MB NAR c16", |b, c| {
            bulk::measure(b, c, &b.store.big, 16, false)
        }),
        plan(Section::Bulk, "tree, first c1", bulk::first_tree),
        plan(Section::Bulk, "tree, again c1", |b, c| {
            bulk::measure(b, c, &b.store.tree, 1, false)
        }),
        plan(Section::Bulk, "tree, again, zstd accepted c1", |b, c| {
            bulk::measure(b, c, &b.store.tree, 1, true)
        }),
        plan(
            Section::Once,
            "all narinfos, signed, cold",
            once::cold_signed,
        ),
        plan(
            Section::Once,
            "mass query of 10,000 paths, cold",
            once::cold_mass_query,
        ),
        plan(
            Section::Once,
            "mass query of 10,000 paths, again",
            once::warm_mass_query,
        ),
        plan(
            Section::Once,
            "mass query of 10,000 paths, one answer",
            once::whole_closure,
        ),
        plan(
            Section::Copy,
            "nix copy, a closure of 400 paths, first",
            |b, c| copy::first(b, c, b.store.closure.last()),
        ),
        plan(
            Section::Copy,
            "nix copy, a closure of 400 paths, again",
            |b, c| copy::again(b, c, b.store.closure.last()),
        ),
        plan(Section::Copy, "nix copy, the tree, first", |b, c| {
            copy::first(b, c, Some(&b.store.tree))
        }),
        plan(Section::Copy, "nix copy, the tree, again", |b, c| {
            copy::again(b, c, Some(&b.store.tree))
        }),
    ]);
    let stores = [(Setting::Plain, "the store"), (Setting::Big, &big)];
    for (setting, name) in stores {
        plans.push(plan(
            Section::Start,
            format!("start, {name}"),
            move |b, c| start::measure(b, c, setting),
        ));
    }
    for (target, name) in [
        (Target::Narinfo, "narinfo"),
        (Target::Absent, "absent"),
        (Target::EmptyNar, "empty NAR"),
        (Target::BigNar, "10 MB NAR"),
    ] {
        plans.push(plan(
            Section::Calls,
            format!("system calls, {name}"),
            move |b, c| calls::measure(b, target, c),
        ));
    }
    for (setting, name) in stores {
        plans.push(plan(
            Section::Memory,
            format!("memory, {name}, idle"),
            move |_, c| Ok(c.standing(setting)?.idle_memory.clone()),
        ));
        plans.push(plan(
            Section::Memory,
            format!("memory, {name}, after the load"),
            move |_, c| {
                let server = &c.standing(setting)?.server;
                server.rest();
                Ok(server.memory())
            },
        ));
    }
    plans
}

/// Measures all rows on all servers.
pub(crate) fn measure(
    arguments: &Arguments,
    store: &Store,
    big_store: Option<&BigStore>,
    contenders: &[Contender],
    scratch: &Path,
) -> Result<Results> {
    let path_count = big_store.map_or(1_000_000, |big| big.path_count);
    let mut plans = plans(arguments.connections, path_count);
    plans.retain(|plan| plan.name.contains(&arguments.rows));
    let bench = Bench {
        seconds: arguments.seconds,
        scratch,
        store,
        big_store,
        narinfos: store
            .paths
            .keys()
            .map(|path| narinfo_target(path))
            .collect(),
        absent: absent_targets(10_000),
    };
    let mut rows: Vec<Row> = plans
        .iter()
        .map(|plan| Row {
            name: plan.name.clone(),
            section: plan.section,
            cells: vec![Cell::default(); contenders.len()],
        })
        .collect();
    let mut lasts_long: Vec<(&str, &str)> = Vec::new();
    for round in 1..=arguments.rounds {
        for (plan, row) in plans.iter().zip(&mut rows) {
            if plan.is_measured_once() && round < arguments.rounds {
                continue;
            }
            crate::progress(&format!("round {round}: {}", plan.name));
            for (contender, cell) in contenders.iter().zip(&mut row.cells) {
                let pair = (&*plan.name, &*contender.name);
                // Do not repeat a measurement that has failed or takes long.
                if cell.gap.is_some() || lasts_long.contains(&pair) {
                    continue;
                }
                let started = Instant::now();
                let outcome = (plan.measure)(&bench, contender);
                if let Err(Gap::Failed(why)) = &outcome {
                    crate::progress(&format!("{}, {}: {why}", contender.name, plan.name));
                }
                cell.add(outcome);
                if started.elapsed() > LONG {
                    lasts_long.push(pair);
                }
            }
        }
    }
    let servers = contenders
        .iter()
        .map(|contender| (contender.name.clone(), contender.part))
        .collect();
    Ok(Results { servers, rows })
}

/// The stores, and the request targets that are the same for all servers.
struct Bench<'run> {
    seconds: f64,
    scratch: &'run Path,
    store: &'run Store,
    big_store: Option<&'run BigStore>,
    narinfos: Vec<String>,
    absent: Vec<String>,
}

impl Bench<'_> {
    /// Returns the request targets of a resource on this server, and whether the server has them
    /// (200) or not (404). The URLs of NARs differ between servers.
    fn targets(
        &self,
        target: Target,
        setting: Setting,
        contender: &Contender,
    ) -> Result<(Vec<String>, bool)> {
        let targets = match (target, setting, self.big_store) {
            (Target::Narinfo, Setting::Big, Some(big)) => {
                big.paths.iter().map(|path| narinfo_target(path)).collect()
            }
            (Target::Narinfo, ..) => self.narinfos.clone(),
            (Target::Absent, ..) => self.absent.clone(),
            (Target::EmptyNar, ..) => vec![contender.nar_url(&self.store.empty)?],
            (Target::BigNar, ..) => vec![contender.nar_url(&self.store.big)?],
        };
        Ok((targets, target != Target::Absent))
    }

    /// Requests random targets with wrk, on `count` connections.
    fn requests(
        &self,
        target: Target,
        setting: Setting,
        count: u32,
        takes_zstd: bool,
        contender: &Contender,
    ) -> Result<Values, Gap> {
        let server = &contender.standing(setting)?.server;
        let (targets, is_found) = failed(self.targets(target, setting, contender))?;
        let load = Load {
            scratch: self.scratch,
            targets: &targets,
            is_found,
            takes_zstd,
            threads: 2,
        };
        let measure = || load.measure(server, count, self.seconds);
        // On two cores, every request of a single client waits twice for an idle core to wake,
        // which no server can avoid.
        failed(if count == 1 {
            on_one_core(server, measure)
        } else {
            measure()
        })
    }
}

/// Returns the request target of a path's narinfo.
fn narinfo_target(path: &str) -> String {
    format!("/{}.narinfo", hash_part(path))
}

/// Returns the targets of narinfos that no store has. Their hash parts are well-formed and all
/// different.
fn absent_targets(count: u64) -> Vec<String> {
    const DIGITS: &[u8; 32] = b"0123456789abcdfghijklmnpqrsvwxyz";
    // The sample stores draw their hash parts from the generator with small seeds.
    let mut random = SplitMix64::new(0x6162_7365_6e74);
    let mut digit = || char::from(DIGITS[random.index(DIGITS.len())]);
    let mut target = |_| {
        let hash: String = (0..32).map(|_| digit()).collect();
        format!("/{hash}.narinfo")
    };
    (0..count).map(&mut target).collect()
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// Converts a duration to milliseconds.
pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn names_are_different_and_memory_comes_last() {
        let plans = plans(&[1, 64, 256], 1_000_000);
        let names: std::collections::BTreeSet<_> = plans.iter().map(|plan| &plan.name).collect();
        assert_eq!(names.len(), plans.len());
        let is_memory = |plan: &Plan| plan.section == Section::Memory;
        let first = plans.iter().position(is_memory).unwrap();
        assert!(plans.iter().skip(first).all(is_memory));
    }
}
