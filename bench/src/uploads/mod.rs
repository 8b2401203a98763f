//! `samovar-bench uploads`: uploads to Samovar, to nginx (`dav_methods PUT`), and to a directory.
//!
//! Each measurement starts a server with an empty storage. The clients are `nix copy`,
//! `samovar push`, and a load generator that sends the same requests as `nix copy`. Rounds are
//! interleaved and figures are medians, as in the comparison of caches.

pub(crate) mod contender;
mod inputs;

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use testkit::http1::Connection;
use testkit::nix::hash_part;
use testkit::procfs;

use self::contender::{Contender, Running, samovar_program};
use self::inputs::Inputs;
use crate::arguments::Arguments;
use crate::disk::Disk;
use crate::figures::{Cell, Gap, Part, Quantity, Results, Row, Section, Values, failed, to_f64};
use crate::table::grouped;
use crate::{load, machine, report, rows};

/// Number of small paths that `nix copy` uploads; it needs too long for all of them.
const COPY_COUNT: usize = 200;

/// Number of small paths that the load generator uploads.
const LOAD_COUNT: usize = 4000;

/// One-way delay of the connection with a round-trip time of 20 ms.
const DELAY: Duration = Duration::from_millis(10);

/// The client of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    /// `nix copy` with zstd.
    Copy,
    /// `samovar push` over a connection with this one-way delay.
    Push(Duration),
    /// The requests of `nix copy` for files with this compression, on this number of connections.
    Put(&'static str, usize),
}

/// A row that is to be measured.
struct Plan<'inputs> {
    name: String,
    client: Client,
    paths: &'inputs [String],
    /// Length of all NARs, if the cost of the row is per byte rather than per path.
    nar_len: Option<u64>,
}

fn plans(inputs: &Inputs) -> Vec<Plan<'_>> {
    let large = |name: &str, client| Plan {
        name: name.into(),
        client,
        paths: &inputs.large,
        nar_len: Some(inputs.large_nar_len),
    };
    let small = |name: &str, client, count: usize| {
        let count = count.min(inputs.small.len());
        Plan {
            name: format!("{} small paths, {name}", grouped(count as u64)),
            client,
            paths: inputs.small.get(..count).unwrap_or_default(),
            nar_len: None,
        }
    };
    vec![
        large("3 large paths, nix copy, zstd", Client::Copy),
        large("3 large paths, xz, one connection", Client::Put("xz", 1)),
        small("nix copy, zstd", Client::Copy, COPY_COUNT),
        small("samovar push", Client::Push(Duration::ZERO), usize::MAX),
        small("samovar push, 20 ms RTT", Client::Push(DELAY), usize::MAX),
        small("16 at once", Client::Put("zstd", 16), LOAD_COUNT),
        small("64 at once", Client::Put("zstd", 64), LOAD_COUNT),
    ]
}

/// Measures all rows and prints the report.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    machine::enter_network_namespace();
    let load_before = machine::load();
    let inputs = Inputs::open(&arguments.store, arguments.is_check)?;
    let contenders = Contender::all(&arguments.servers)?;
    let mut plans = plans(&inputs);
    plans.retain(|plan| plan.name.contains(&arguments.rows));
    let row = |plan: &Plan<'_>| Row {
        name: plan.name.clone(),
        section: Section::Uploads,
        cells: vec![Cell::default(); contenders.len()],
    };
    let servers = contenders.iter().map(|it| (it.name.clone(), it.part));
    let mut results = Results {
        servers: servers.collect(),
        rows: plans.iter().map(row).collect(),
    };
    let disk = Disk::new(&arguments.dir, (!arguments.is_check).then_some(""))?;
    for round in 1..=arguments.rounds {
        for (plan, row) in plans.iter().zip(&mut results.rows) {
            crate::progress(&format!("round {round}: {}", plan.name));
            for (contender, cell) in contenders.iter().zip(&mut row.cells) {
                let outcome = plan.measure(contender, &inputs, &disk);
                if let Err(Gap::Failed(why)) = &outcome {
                    crate::progress(&format!("{}: {why}", contender.name));
                }
                cell.add(outcome);
            }
        }
    }
    let how = format!("{} rounds, medians", arguments.rounds);
    let machine = machine::describe(&["nginx", "wrk"], &how, &load_before);
    let text = report::markdown(&machine, &[disk.remark.clone(), inputs.remark()], &results);
    print!("{text}");
    if let Some(folder) = &arguments.out {
        report::write(folder, &text, &results)?;
    }
    results.ensure_complete()
}

impl Plan<'_> {
    /// Starts the cache in an empty directory, and measures it.
    fn measure(&self, contender: &Contender, inputs: &Inputs, disk: &Disk) -> Result<Values, Gap> {
        let is_unknown = |why: &str| Err(Gap::NotAsked(why.into()));
        match self.client {
            Client::Copy => {}
            _ if contender.part == Part::Floor => return is_unknown("a directory, not a server"),
            Client::Push(_) if contender.part != Part::Ours => {
                return is_unknown("does not know the push protocol");
            }
            _ => {}
        }
        let running = disk.new_folder().map_err(anyhow::Error::from);
        let running = running.and_then(|folder| contender.start(&folder));
        failed(running.and_then(|running| self.measured(&running, inputs)))
    }

    fn measured(&self, running: &Running, inputs: &Inputs) -> Result<Values> {
        let uploads = match self.client {
            Client::Put(compression, _) => inputs.uploads(compression, self.paths)?,
            _ => Vec::new(),
        };
        // Otherwise a server that flushes its files also waits for those of earlier measurements.
        Command::new("sync").status().context("cannot start sync")?;
        let Some(server) = &running.server else {
            return copy(inputs, self.paths, running);
        };
        server.rest();
        let cpu_before = server.cpu();
        let mut values = match self.client {
            Client::Copy => copy(inputs, self.paths, running)?,
            Client::Push(delay) => push(inputs, running, delay)?,
            Client::Put(_, count) => {
                let fields = running.authorization();
                let elapsed = load::put::all(server.address, &fields, &uploads, count)?;
                Values::from([(Quantity::WallMs, rows::millis(elapsed))])
            }
        };
        // Include the work that the server does after its last response.
        server.rest();
        let cpu = server.cpu().saturating_sub(cpu_before);
        values.extend(self.rates(&values, cpu));
        let peak = server.memory().remove(&Quantity::PeakMib);
        values.extend(peak.map(|it| (Quantity::PeakMib, it)));
        let mut connection = Connection::try_connect(server.address)?;
        for path in [self.paths.first(), self.paths.last()]
            .into_iter()
            .flatten()
        {
            let target = format!("/upload/{}.narinfo", hash_part(path));
            let response = connection.try_request("GET", &target, &[&running.authorization()])?;
            let status = response.status;
            ensure!(status == 200, "{target} was uploaded, but gets {status}");
        }
        Ok(values)
    }

    /// Returns the cost and the rate of the row.
    fn rates(&self, values: &Values, cpu: Duration) -> Vec<(Quantity, f64)> {
        let count = to_f64(self.paths.len() as u64);
        let cpu = cpu.as_secs_f64();
        if let Some(len) = self.nar_len {
            return vec![(Quantity::ServerCpuPerGb, cpu / to_f64(len) * 1e9)];
        }
        let wall_ms = values.get(&Quantity::WallMs);
        let rate = wall_ms.map(|ms| (Quantity::PathsPerSecond, count / ms * 1e3));
        let cost = (Quantity::ServerCpuPerPath, cpu / count * 1e6);
        rate.into_iter().chain([cost]).collect()
    }
}

/// Runs `nix copy` with zstd.
fn copy(inputs: &Inputs, paths: &[String], running: &Running) -> Result<Values> {
    let home = rows::client_home(&running.folder)?;
    let mut command = testkit::nix::nix("nix", home.path());
    command.args(["copy", "--from", &inputs.store_uri(), "--to"]);
    command.arg(format!("{}?compression=zstd", running.url));
    command.args(["--option", "netrc-file"]).arg(&running.netrc);
    let started = Instant::now();
    let done = command.args(paths).stdin(Stdio::null()).output()?;
    let elapsed = started.elapsed();
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "nix copy: {}", said.trim_end());
    Ok(Values::from([(Quantity::WallMs, rows::millis(elapsed))]))
}

/// Runs `samovar push` through a connection with this one-way delay.
fn push(inputs: &Inputs, running: &Running, delay: Duration) -> Result<Values> {
    let home = rows::client_home(&running.folder)?;
    let server = running.server.as_ref().context("a server")?;
    let address = if delay.is_zero() {
        server.address
    } else {
        load::line::start(server.address, delay, None)?
    };
    let [list, report, log] = ["list", "report", "log"].map(|name| home.path().join(name));
    std::fs::write(&list, inputs.small.join("\n"))?;
    let mut command = testkit::nix::nix(&samovar_program()?, home.path());
    command.args(["push", "--json", "--store", &inputs.store_uri()]);
    command
        .arg("--token-file")
        .arg(running.folder.join("token"));
    command.args([&format!("http://{address}"), "-"]);
    command
        .stdin(File::open(&list)?)
        .stdout(File::create(&report)?);
    let started = Instant::now();
    let mut child = command.stderr(File::create(&log)?).spawn()?;
    let mut peak_len = 0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        peak_len = procfs::memory(child.id(), "status", "VmHWM").unwrap_or(peak_len);
        std::thread::sleep(Duration::from_millis(5));
    };
    let elapsed = started.elapsed();
    let report: Value = serde_json::from_slice(&std::fs::read(&report)?).unwrap_or_default();
    let pushed_count = report["pushed"].as_array().map_or(0, Vec::len);
    if !status.success() || pushed_count != inputs.small.len() {
        bail!(
            "samovar push: {}",
            std::fs::read_to_string(&log)?.trim_end()
        );
    }
    let requests = report["requests"]
        .as_u64()
        .context("no number of requests")?;
    Ok(Values::from([
        (Quantity::WallMs, rows::millis(elapsed)),
        (Quantity::Requests, to_f64(requests)),
        (
            Quantity::ClientPeakMib,
            to_f64(peak_len) / f64::from(1 << 20),
        ),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_per_gb_for_large_paths_and_per_path_for_small_ones() {
        let mut plan = Plan {
            name: String::new(),
            client: Client::Copy,
            paths: &["a".into(), "b".into()],
            nar_len: Some(250_000_000),
        };
        let cpu = Duration::from_millis(500);
        let values = Values::from([(Quantity::WallMs, 100.0)]);
        let expected = [(Quantity::ServerCpuPerGb, 2.0)];
        assert_eq!(plan.rates(&values, cpu), expected);
        plan.nar_len = None;
        let rate = (Quantity::PathsPerSecond, 20.0);
        let expected = [rate, (Quantity::ServerCpuPerPath, 250_000.0)];
        assert_eq!(plan.rates(&values, cpu), expected);
    }
}
