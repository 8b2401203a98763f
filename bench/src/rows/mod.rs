//! Rows of the report, with one module for each measuring method.

mod bulk;
mod calls;
mod copy;
mod iteration;
mod once;
mod start;

use std::cell::OnceCell;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use testkit::random::SplitMix64;

pub(crate) use self::calls::is_possible as can_count_calls;
use self::copy::Copied;
use self::iteration::Iteration;
use crate::arguments::Arguments;
use crate::contender::{Contender, Setting};
use crate::figures::{Cell, Gap, Results, Row, Section, Values, failed};
use crate::process::on_one_core;
use crate::store::{BigStore, Store, hash_part};
use crate::wrk::Load;

/// A server that takes longer than this in a row is measured in the first round only: otherwise a
/// slow server would take as long as all others together, and its figure averages over more anyway.
const LONG: Duration = Duration::from_secs(6);

/// Row to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    name: String,
    section: Section,
    kind: Kind,
}

/// Measuring method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Iteration(Iteration),
    /// Random requests by wrk, on this many connections.
    Requests(Target, Setting, u32),
    /// One NAR, requested repeatedly by this number of clients.
    Bulk(Nar, usize, Encoding),
    /// The NAR of the tree, from a freshly started server.
    FirstTree,
    /// Every narinfo once, from a freshly started server with a key.
    ColdSigned,
    /// The narinfos of a large closure, each once.
    MassQuery(Warmth),
    /// The same narinfos as in [`Self::MassQuery`], in one response.
    WholeClosure,
    Copy(Copied),
    Start(Setting),
    /// Memory of the server, before or after all other measurements.
    Memory(Setting, When),
    Calls(Target),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Narinfo,
    NarinfoTakingZstd,
    Absent,
    EmptyNar,
    BigNar,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nar {
    Big,
    Tree,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Plain,
    ZstdAccepted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Warmth {
    Cold,
    Warm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Idle,
    AfterTheLoad,
}

impl Kind {
    /// Returns whether one round suffices, because further ones would add nothing or be
    /// incomparable.
    fn is_measured_once(self) -> bool {
        matches!(self, Self::Memory(..) | Self::Calls(_))
    }
}

/// Returns all rows in measuring order. Memory comes last, after all load.
// Long: a table of rows.
fn plans(connections: &[u32], path_count: u64) -> Vec<Plan> {
    let mut plans = Vec::new();
    let mut add = |section, name: String, kind| {
        plans.push(Plan {
            name,
            section,
            kind,
        });
    };
    for iteration in Iteration::ALL {
        let name = iteration.name().into();
        add(Section::NixServeNg, name, Kind::Iteration(iteration));
    }
    for (target, name) in [
        (Target::Narinfo, "narinfo"),
        (Target::Absent, "absent"),
        (Target::EmptyNar, "empty NAR"),
    ] {
        for &count in connections {
            let kind = Kind::Requests(target, Setting::Plain, count);
            add(Section::Requests, format!("{name} c{count}"), kind);
        }
    }
    let many = if connections.contains(&64) { 64 } else { 1 };
    let big = crate::table::grouped(path_count);
    for (target, setting, name) in [
        (
            Target::NarinfoTakingZstd,
            Setting::Plain,
            "narinfo, zstd accepted".to_owned(),
        ),
        (Target::Narinfo, Setting::Signing, "narinfo, signed".into()),
        (
            Target::Narinfo,
            Setting::Big,
            format!("narinfo, {big} paths"),
        ),
        (Target::Absent, Setting::Big, format!("absent, {big} paths")),
    ] {
        let kind = Kind::Requests(target, setting, many);
        add(Section::Requests, format!("{name} c{many}"), kind);
    }
    for (name, kind) in [
        ("10 MB NAR c1", Kind::Bulk(Nar::Big, 1, Encoding::Plain)),
        ("10 MB NAR c16", Kind::Bulk(Nar::Big, 16, Encoding::Plain)),
        ("tree, first c1", Kind::FirstTree),
        ("tree, again c1", Kind::Bulk(Nar::Tree, 1, Encoding::Plain)),
        (
            "tree, again, zstd accepted c1",
            Kind::Bulk(Nar::Tree, 1, Encoding::ZstdAccepted),
        ),
    ] {
        add(Section::Bulk, name.into(), kind);
    }
    add(
        Section::Once,
        "all narinfos, signed, cold".into(),
        Kind::ColdSigned,
    );
    for (name, warmth) in [("cold", Warmth::Cold), ("again", Warmth::Warm)] {
        add(
            Section::Once,
            format!("mass query of 10,000 paths, {name}"),
            Kind::MassQuery(warmth),
        );
    }
    add(
        Section::Once,
        "mass query of 10,000 paths, one answer".into(),
        Kind::WholeClosure,
    );
    for copied in [Copied::Closure, Copied::Tree] {
        add(Section::Copy, copied.name().into(), Kind::Copy(copied));
    }
    for (setting, name) in [
        (Setting::Plain, "the store".to_owned()),
        (Setting::Big, format!("{big} paths")),
    ] {
        add(
            Section::Start,
            format!("start, {name}"),
            Kind::Start(setting),
        );
    }
    for (target, name) in [
        (Target::Narinfo, "narinfo"),
        (Target::Absent, "absent"),
        (Target::EmptyNar, "empty NAR"),
        (Target::BigNar, "10 MB NAR"),
    ] {
        add(
            Section::Calls,
            format!("system calls, {name}"),
            Kind::Calls(target),
        );
    }
    for (setting, name) in [
        (Setting::Plain, "the store".to_owned()),
        (Setting::Big, format!("{big} paths")),
    ] {
        for (when, moment) in [(When::Idle, "idle"), (When::AfterTheLoad, "after the load")] {
            add(
                Section::Memory,
                format!("memory, {name}, {moment}"),
                Kind::Memory(setting, when),
            );
        }
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
    let plans: Vec<Plan> = plans(arguments.connections, path_count)
        .into_iter()
        .filter(|plan| plan.name.contains(&arguments.rows))
        .collect();
    let bench = Bench::new(arguments, store, big_store, scratch, contenders.len())?;
    let mut rows: Vec<Row> = plans
        .iter()
        .map(|plan| Row {
            name: plan.name.clone(),
            section: plan.section,
            cells: vec![Cell::default(); contenders.len()],
        })
        .collect();
    let mut lasts_long: Vec<(&Plan, usize)> = Vec::new();
    for round in 1..=arguments.rounds {
        for (plan, row) in plans.iter().zip(&mut rows) {
            if plan.kind.is_measured_once() && round < arguments.rounds {
                continue;
            }
            crate::progress(&format!("round {round}: {}", plan.name));
            for (index, cell) in row.cells.iter_mut().enumerate() {
                // Do not repeat after a failure.
                if cell.gap.is_some() || lasts_long.contains(&(plan, index)) {
                    continue;
                }
                let started = Instant::now();
                if let Some((contender, urls)) = contenders.get(index).zip(bench.urls.get(index)) {
                    let outcome = bench.measure(plan.kind, contender, urls);
                    if let Err(Gap::Failed(why)) = &outcome {
                        crate::progress(&format!("{}, {}: {why}", contender.name, plan.name));
                    }
                    cell.add(outcome);
                }
                if started.elapsed() > LONG {
                    lasts_long.push((plan, index));
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

/// Targets and wrk scripts of the rows. NAR URLs differ between servers.
struct Bench<'run> {
    seconds: f64,
    scratch: &'run Path,
    store: &'run Store,
    big_store: Option<&'run BigStore>,
    narinfos: Vec<String>,
    narinfo_load: Load,
    zstd_load: Load,
    absent: Vec<String>,
    absent_load: Load,
    big_load: Load,
    urls: Vec<OnceCell<Urls>>,
}

/// A server's URLs of the NARs in the rows.
struct Urls {
    empty: String,
    empty_load: Load,
    big: String,
    tree: String,
}

impl<'run> Bench<'run> {
    fn new(
        arguments: &Arguments,
        store: &'run Store,
        big_store: Option<&'run BigStore>,
        scratch: &'run Path,
        contender_count: usize,
    ) -> Result<Self> {
        let narinfos: Vec<String> = store
            .paths
            .keys()
            .map(|path| narinfo_target(path))
            .collect();
        let absent = absent_targets(10_000);
        let big: Vec<String> = big_store
            .into_iter()
            .flat_map(|big| &big.paths)
            .map(|path| narinfo_target(path))
            .collect();
        Ok(Self {
            seconds: arguments.seconds,
            scratch,
            store,
            big_store,
            narinfo_load: Load::new(scratch, "narinfo", &narinfos, true)?,
            zstd_load: Load::new(scratch, "narinfo", &narinfos, true)?.taking_zstd(),
            absent_load: Load::new(scratch, "absent", &absent, false)?,
            big_load: Load::new(scratch, "big", &big, true)?,
            narinfos,
            absent,
            urls: (0..contender_count).map(|_| OnceCell::new()).collect(),
        })
    }

    fn measure(
        &self,
        kind: Kind,
        contender: &Contender,
        urls: &OnceCell<Urls>,
    ) -> Result<Values, Gap> {
        // The methods of these rows start servers themselves.
        match kind {
            Kind::FirstTree => return self.first_tree(contender),
            Kind::ColdSigned => return self.cold_signed(contender),
            Kind::MassQuery(warmth) => return self.mass_query(contender, warmth),
            Kind::WholeClosure => return self.whole_closure(contender),
            Kind::Start(setting) => return self.start(contender, setting),
            Kind::Memory(setting, when) => return start::memory(contender, setting, when),
            Kind::Calls(target) => {
                return self.calls(target, contender, self.urls(contender, urls)?);
            }
            Kind::Iteration(_) | Kind::Requests(..) | Kind::Bulk(..) | Kind::Copy(_) => {}
        }
        let setting = match kind {
            Kind::Requests(_, setting, _) => setting,
            _ => Setting::Plain,
        };
        let server = &contender.standing(setting)?.server;
        let urls = self.urls(contender, urls)?;
        match kind {
            Kind::Iteration(iteration) => self.iteration(iteration, server),
            Kind::Requests(target, setting, count) => {
                let load = match (target, setting) {
                    (Target::Narinfo, Setting::Big) => &self.big_load,
                    (Target::Narinfo, _) => &self.narinfo_load,
                    (Target::NarinfoTakingZstd, _) => &self.zstd_load,
                    (Target::Absent, _) => &self.absent_load,
                    (Target::EmptyNar | Target::BigNar, _) => &urls.empty_load,
                };
                let measure = || load.measure(server, count, self.seconds);
                // On two cores, every request of a single client waits twice for an idle core to
                // wake, which no server can avoid.
                failed(if count == 1 {
                    on_one_core(server, measure)
                } else {
                    measure()
                })
            }
            Kind::Bulk(nar, count, encoding) => {
                let (url, path) = match nar {
                    Nar::Big => (&urls.big, &self.store.big),
                    Nar::Tree => (&urls.tree, &self.store.tree),
                };
                failed(self.bulk(url, path, server, count, encoding))
            }
            Kind::Copy(copied) => failed(self.copy(copied, server)),
            _ => Err(Gap::NotAsked(
                "not a measurement of a running server".into(),
            )),
        }
    }

    fn urls<'cell>(
        &self,
        contender: &Contender,
        cell: &'cell OnceCell<Urls>,
    ) -> Result<&'cell Urls, Gap> {
        if let Some(urls) = cell.get() {
            return Ok(urls);
        }
        let find = || -> Result<Urls> {
            let empty = contender.nar_url(&self.store.empty)?;
            let name = format!("empty-{}", contender.name);
            Ok(Urls {
                empty_load: Load::new(self.scratch, &name, std::slice::from_ref(&empty), true)?,
                empty,
                big: contender.nar_url(&self.store.big)?,
                tree: contender.nar_url(&self.store.tree)?,
            })
        };
        let urls = failed(find())?;
        Ok(cell.get_or_init(|| urls))
    }
}

/// Returns the request target of a path's narinfo.
fn narinfo_target(path: &str) -> String {
    format!("/{}.narinfo", hash_part(path))
}

/// Returns targets of narinfos that no store has, with distinct well-formed hash parts.
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

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Returns the first target of a list.
fn first_of(targets: &[String]) -> Result<&String> {
    targets.first().context("there is nothing to ask for")
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
        let is_memory = |plan: &Plan| matches!(plan.kind, Kind::Memory(..));
        let first = plans.iter().position(is_memory).unwrap();
        assert!(plans.iter().skip(first).all(is_memory));
    }
}
