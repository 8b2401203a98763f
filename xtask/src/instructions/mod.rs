//! `instructions`: measures the cost of requests in instructions, which vary less than times.
//!
//! nix-serve runs under callgrind on one core, and hence with one I/O thread, and serves one
//! connection. A figure is the cost of 2 N requests less the cost of N, which excludes one-time
//! work. It includes only instructions and system calls of the I/O thread, and not the kernel's
//! work, which is most of the cost of a small response.
//!
//! A second run with `--admin`, which makes the server count requests in its metrics, gives the
//! rows whose names end in `-counted`.
//!
//! The rows `first-narinfo` and `first-nar` are the first requests for the narinfos and the NARs of
//! 60 paths. They include the work of all threads, until they are idle again.
//!
//! Each of the other rows requests 50 targets in turn. With a single target, its position in
//! randomly seeded hash tables would change the figure by 6 % between runs.

mod budget;
mod server;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use self::budget::{Budgets, Cost, Verdict};
use self::server::{Client, Server};
use crate::command::{output, repository};
use crate::{sample, serve};

/// Number of URL paths that a row requests in turn.
const TARGET_COUNT: usize = 50;

/// Number of paths that are requested once for a measurement of first requests. Each measurement
/// uses other paths.
const FIRST_COUNT: usize = 60;

/// Number of requests of the first of two measurements, a multiple of [`TARGET_COUNT`].
const REQUEST_COUNT: u64 = 500;

/// Maximum number of attempts to measure a row. The minimum of their costs is used, because
/// disturbances only add to it.
const ATTEMPT_COUNT_MAX: usize = 3;

/// Start of the responses for paths in the store.
const FOUND: &str = "HTTP/1.1 200 ";

/// Start of the responses for paths that are not in the store.
const MISSING: &str = "HTTP/1.1 404 ";

/// Maximum length of NARs in a row. The I/O thread answers NARs of up to 16 KiB from memory.
const NAR_LEN_MAX: u64 = 8 * 1024;

/// Suffixes of row names, each with the additional server arguments that it stands for.
const SERVERS: [(&str, &[&str]); 2] = [("", &[]), ("-counted", &["--admin", "127.0.0.1:0"])];

/// One row of the measurements: requests of one kind.
struct Row {
    name: String,
    targets: Vec<String>,
    /// Status line with which every response must start.
    status_line: &'static str,
}

/// Measures all rows and compares them with the recorded budgets; `--renew` records them. Fails if
/// a measurement fails, or a row exceeds its budget.
pub(crate) fn run_gates(words: &[&str]) -> Result<()> {
    let renews = match words {
        [] => false,
        ["--renew"] => true,
        _ => bail!("usage: xtask instructions [--renew]"),
    };
    let program = serve::build("nix-serve")?;
    let store = repository().join(".samovar/sample");
    sample::make(&store, sample::Kind::Test)?;
    let file = repository().join("xtask/instructions.txt");
    let here = environment()?;
    let budgets = Budgets::parse(&fs::read_to_string(&file).unwrap_or_default())?;
    if !renews && budgets.environment != here {
        println!(
            "instructions: budgets were recorded with {}, this run is with {here}: \
             more above the budget is tolerated",
            budgets.environment
        );
    }
    println!("instructions of the program for each request; those of the kernel are not counted");
    let verdict_of = |name: &str, cost: &Cost| {
        let budget = budgets.rows.get(name).filter(|_| !renews);
        if budget.is_none() && !renews {
            bail!("{} has no line for {name}", file.display());
        }
        let tolerance_percent = budgets.tolerance_percent(name, &here);
        Ok(Verdict::of(cost, budget, tolerance_percent))
    };
    let mut costs = Vec::new();
    let mut above = Vec::new();
    let paths = hash_parts(&store)?;
    for (suffix, arguments) in SERVERS {
        let server = Server::start(&program, &store, arguments)?;
        let mut client = server.connect()?;
        let mut judged = Vec::new();
        if suffix.is_empty() {
            for (name, cost) in first_costs(&server, &mut client, &paths)? {
                let verdict = verdict_of(&name, &cost)?;
                judged.push((name, cost, verdict));
            }
        }
        let rows = rows(&paths, &mut client, suffix)?;
        server.settle()?;
        for row in rows {
            let (cost, verdict) = judge(&server, &mut client, &row, &verdict_of)?;
            judged.push((row.name, cost, verdict));
        }
        for (name, cost, verdict) in judged {
            println!("{name:20} {cost}: {verdict}");
            if let Verdict::Above(_) = verdict {
                above.push(name.clone());
            }
            costs.push((name, cost));
        }
    }
    if renews {
        fs::write(&file, budget::render(&here, &costs))?;
    } else if !above.is_empty() {
        bail!(
            "{}: above the budget in {}. If the cost is intended, record it with \
             `cargo run -p xtask -- instructions --renew` and give the reason in the commit; \
             otherwise find its origin with `valgrind --tool=callgrind --separate-threads=yes` and \
             callgrind_annotate",
            above.join(", "),
            file.display()
        );
    }
    Ok(())
}

/// Measures a row several times and returns the minimum cost. Stops at the first cost within the
/// budget.
fn judge(
    server: &Server,
    client: &mut Client,
    row: &Row,
    verdict_of: &impl Fn(&str, &Cost) -> Result<Verdict>,
) -> Result<(Cost, Verdict)> {
    let mut least: Option<(Cost, Verdict)> = None;
    for _ in 0..ATTEMPT_COUNT_MAX {
        let cost = cost(server, client, row).with_context(|| row.name.clone())?;
        let verdict = verdict_of(&row.name, &cost)?;
        let is_within = matches!(verdict, Verdict::Within | Verdict::Below(_));
        if least
            .as_ref()
            .is_none_or(|(least, _)| is_within || cost.instructions < least.instructions)
        {
            least = Some((cost, verdict));
        }
        if is_within {
            break;
        }
    }
    least.context("there is an attempt")
}

fn cost(server: &Server, client: &mut Client, row: &Row) -> Result<Cost> {
    let mut asked = |count: u64| {
        let before = server.mark()?;
        for target in row.targets.iter().cycle().take(usize::try_from(count)?) {
            client.ask(target, row.status_line)?;
        }
        server.since(before)
    };
    let (once, twice) = (asked(REQUEST_COUNT)?, asked(2 * REQUEST_COUNT)?);
    Ok(Cost::between(&once, &twice, REQUEST_COUNT))
}

/// Measures the first requests for narinfos and for NARs, three times with the last paths; returns
/// the minimum costs.
fn first_costs(
    server: &Server,
    client: &mut Client,
    paths: &[String],
) -> Result<[(String, Cost); 2]> {
    let mut least = [u64::MAX; 2];
    server.settle()?;
    for paths in paths.rchunks(FIRST_COUNT).take(ATTEMPT_COUNT_MAX) {
        let mut nars = Vec::new();
        for hash_part in paths {
            let narinfo = client.ask(&format!("/{hash_part}.narinfo"), FOUND)?;
            let url = field(&narinfo, "URL: ").context("a narinfo has a URL")?;
            nars.push(format!("/{url}"));
        }
        let narinfos_cost = server.settle()?;
        for nar in &nars {
            client.ask(nar, FOUND)?;
        }
        for (least, cost) in least.iter_mut().zip([narinfos_cost, server.settle()?]) {
            *least = cost.min(*least);
        }
    }
    let [narinfo, nar] = least.map(|sum| Cost::of(sum / FIRST_COUNT as u64));
    Ok([("first-narinfo".into(), narinfo), ("first-nar".into(), nar)])
}

/// Returns the hash parts of the packages in the sample store.
fn hash_parts(store: &Path) -> Result<Vec<String>> {
    let manifest = fs::read_to_string(store.join(sample::MANIFEST))?;
    let manifest: Value = serde_json::from_str(&manifest)?;
    let paths = manifest.get("graph").and_then(Value::as_array);
    let paths = paths.context("the sample store has a graph")?.iter();
    let hash_parts = paths.filter_map(|path| {
        let name = path.as_str()?.strip_prefix(sample::STORE_DIR)?;
        Some(name.get(1..33)?.to_owned())
    });
    Ok(hash_parts.collect())
}

/// Returns the value of a field of a narinfo. `name` includes the colon and the space.
fn field<'a>(narinfo: &'a str, name: &str) -> Option<&'a str> {
    narinfo.lines().find_map(|line| line.strip_prefix(name))
}

/// Returns the rows, after requesting every target so that it is in memory.
fn rows(paths: &[String], client: &mut Client, suffix: &str) -> Result<Vec<Row>> {
    let (mut hits, mut misses, mut nars) = (Vec::new(), Vec::new(), Vec::new());
    for hash_part in paths {
        if hits.len() == TARGET_COUNT {
            break;
        }
        let hit = format!("/{hash_part}.narinfo");
        let narinfo = client.ask(&hit, FOUND)?;
        let nar_len = field(&narinfo, "NarSize: ").context("a narinfo has a size")?;
        let nar_len: u64 = nar_len.parse()?;
        if nar_len > NAR_LEN_MAX {
            continue;
        }
        let url = field(&narinfo, "URL: ").context("a narinfo has a URL")?;
        nars.push(format!("/{url}"));
        hits.push(hit);
        // A reversed hash part looks like a random one, but no path has it.
        let absent: String = hash_part.chars().rev().collect();
        misses.push(format!("/{absent}.narinfo"));
    }
    if hits.len() < TARGET_COUNT {
        bail!("the sample store has too few small paths");
    }
    let row = |name: &str, targets, status_line| Row {
        name: format!("{name}{suffix}"),
        targets,
        status_line,
    };
    let rows = vec![
        row("cache-info", vec!["/nix-cache-info".to_owned()], FOUND),
        row("narinfo-hit", hits, FOUND),
        row("narinfo-miss", misses, MISSING),
        row("small-nar", nars, FOUND),
    ];
    // The server caches a NAR from its second request on.
    for _ in 0..3 {
        for row in &rows {
            for target in &row.targets {
                client.ask(target, row.status_line)?;
            }
        }
    }
    Ok(rows)
}

/// Describes what affects the number of instructions besides our code.
fn environment() -> Result<String> {
    let said = output(Command::new("rustc").arg("--version"))?;
    let rustc = said.split(' ').nth(1).unwrap_or("unknown");
    let libc = output(Command::new("getconf").arg("GNU_LIBC_VERSION"))
        .unwrap_or_else(|_| "another libc".to_owned());
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let simd = if cpu.split_whitespace().any(|flag| flag == "avx2") {
        "with AVX2"
    } else {
        "without AVX2"
    };
    let arch = std::env::consts::ARCH;
    Ok(format!("rustc {rustc}, {libc}, {arch} {simd}"))
}
