//! `samovar-bench uploads`: uploads to Samovar, to nginx with `dav_methods PUT`, and to a directory.
//!
//! Each measurement starts a server with an empty storage. The clients are `nix copy`,
//! `samovar push`, and a load generator that sends the same requests as `nix copy`. Rounds are
//! interleaved and figures are medians, as in the comparison of caches.

mod contender;
mod disk;
mod inputs;

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use testkit::http1::Connection;
use testkit::nix::hash_part;
use testkit::procfs;

use self::contender::{Contender, Running, samovar_program};
use self::disk::Disk;
use self::inputs::{Inputs, Upload};
use crate::arguments::Arguments;
use crate::figures::{Cell, Gap, Part, Quantity, Results, Row, Section, Values, failed, to_f64};
use crate::{load, machine, report, rows};

/// Number of small paths that `nix copy` uploads; it needs too long for all of them.
const COPY_COUNT: usize = 200;

/// Number of small paths that the load generator uploads.
const LOAD_COUNT: usize = 4000;

/// One-way delay of the connection with a round-trip time of 20 ms.
const DELAY: Duration = Duration::from_millis(10);

/// The client and the paths of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// `nix copy` of the large paths.
    CopyLarge,
    /// The large paths, compressed with xz before, on one connection.
    Xz,
    /// `nix copy` of [`COPY_COUNT`] small paths.
    CopySmall,
    /// `samovar push` of all small paths, with this one-way delay.
    Push(Duration),
    /// Small paths on this number of connections.
    Load(usize),
}

/// Measures all rows and prints the report.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    machine::enter_network_namespace();
    let load_before = machine::load();
    let inputs = Inputs::open(&arguments.store, arguments.is_check)?;
    let small_count = inputs.small.len();
    let plans = [
        ("3 large paths, nix copy, zstd".to_owned(), What::CopyLarge),
        ("3 large paths, xz, one connection".to_owned(), What::Xz),
        (
            format!("{} small paths, nix copy", COPY_COUNT.min(small_count)),
            What::CopySmall,
        ),
        (
            format!("{small_count} small paths, samovar push"),
            What::Push(Duration::ZERO),
        ),
        (
            format!("{small_count} small paths, samovar push, 20 ms RTT"),
            What::Push(DELAY),
        ),
        ("small paths, 16 at once".to_owned(), What::Load(16)),
        ("small paths, 64 at once".to_owned(), What::Load(64)),
    ];
    let contenders = Contender::all(&arguments.servers)?;
    let mut results = Results {
        servers: contenders
            .iter()
            .map(|it| (it.name.clone(), it.part))
            .collect(),
        rows: Vec::new(),
    };
    let plans = plans.into_iter();
    let plans: Vec<_> = plans.filter(|it| it.0.contains(&arguments.rows)).collect();
    results.rows.extend(plans.iter().map(|(name, _)| Row {
        name: name.clone(),
        section: Section::Uploads,
        cells: vec![Cell::default(); contenders.len()],
    }));
    let disk = Disk::new(&arguments.dir, !arguments.is_check)?;
    for round in 1..=arguments.rounds {
        for ((name, what), row) in plans.iter().zip(&mut results.rows) {
            crate::progress(&format!("round {round}: {name}"));
            for (contender, cell) in contenders.iter().zip(&mut row.cells) {
                let outcome = what
                    .of(contender)
                    .and_then(|()| failed(what.measure(contender, &inputs, &disk.new_folder()?)));
                if let Err(Gap::Failed(why)) = &outcome {
                    crate::progress(&format!("{}: {why}", contender.name));
                }
                cell.add(outcome);
            }
        }
    }
    let how = format!("{} rounds, medians", arguments.rounds);
    let machine = machine::describe(&how, &load_before);
    let text = report::markdown(&machine, &[disk.remark.clone(), inputs.remark()], &results);
    print!("{text}");
    if let Some(folder) = &arguments.out {
        report::write(folder, &text, &results)?;
    }
    results.ensure_complete()
}

impl What {
    /// Fails with the reason if this row does not measure `contender`.
    fn of(self, contender: &Contender) -> Result<(), Gap> {
        let why = match self {
            Self::CopyLarge | Self::CopySmall => return Ok(()),
            _ if contender.part == Part::Floor => "is a directory, not a server",
            Self::Push(_) if contender.part != Part::Ours => "does not know the push protocol",
            _ => return Ok(()),
        };
        Err(Gap::NotAsked(why.into()))
    }

    /// Uploads to a server that is started in the empty directory `folder`.
    fn measure(self, contender: &Contender, inputs: &Inputs, folder: &Path) -> Result<Values> {
        let running = contender.start(folder)?;
        let uploads = match self {
            Self::Xz => inputs.uploads("xz", &inputs.large)?,
            Self::Load(_) => {
                let count = LOAD_COUNT.min(inputs.small.len());
                inputs.uploads("zstd", inputs.small.get(..count).unwrap_or_default())?
            }
            _ => Vec::new(),
        };
        let paths = match self {
            Self::CopyLarge | Self::Xz => inputs.large.as_slice(),
            Self::CopySmall => {
                let count = COPY_COUNT.min(inputs.small.len());
                inputs.small.get(..count).unwrap_or_default()
            }
            Self::Push(_) => inputs.small.as_slice(),
            Self::Load(_) => inputs.small.get(..uploads.len()).unwrap_or_default(),
        };
        // Otherwise a server that flushes its files also waits for those of earlier measurements.
        Command::new("sync").status().context("cannot start sync")?;
        let server = running.server.as_ref();
        server.inspect(|it| it.rest());
        let cpu_before = server.map(|it| it.cpu());
        let mut values = match self {
            Self::CopyLarge | Self::CopySmall => copy(inputs, paths, &running)?,
            Self::Push(delay) => push(inputs, &running, delay)?,
            Self::Xz => put(&uploads, &running, 1)?,
            Self::Load(count) => put(&uploads, &running, count)?,
        };
        if let (Some(server), Some(cpu_before)) = (server, cpu_before) {
            // Includes work that the server does after its last response.
            server.rest();
            let cpu = server.cpu().saturating_sub(cpu_before);
            values.extend(self.costs(cpu, inputs.large_nar_len, paths.len()));
            let peak = server.memory().remove(&Quantity::PeakMib);
            values.extend(peak.map(|it| (Quantity::PeakMib, it)));
            let mut connection = Connection::try_connect(server.address)?;
            for path in [paths.first(), paths.last()].into_iter().flatten() {
                let target = format!("/upload/{}.narinfo", hash_part(path));
                let status = connection
                    .try_request("GET", &target, &[&running.authorization()])?
                    .status;
                ensure!(status == 200, "{target} was uploaded, but gets {status}");
            }
        }
        Ok(values)
    }

    /// Converts the server's CPU time to the row's cost.
    fn costs(self, cpu: Duration, nar_len: u64, path_count: usize) -> [(Quantity, f64); 1] {
        let seconds = cpu.as_secs_f64();
        [match self {
            Self::CopyLarge | Self::Xz => {
                (Quantity::ServerCpuPerGb, seconds / to_f64(nar_len) * 1e9)
            }
            _ => (
                Quantity::ServerCpuPerPath,
                seconds / to_f64(path_count as u64) * 1e6,
            ),
        }]
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
        load::delay::start(server.address, delay)?
    };
    let [list, report, log] = ["list", "report", "log"].map(|name| home.path().join(name));
    std::fs::write(&list, inputs.small.join("\n"))?;
    let mut command = testkit::nix::nix(&samovar_program()?, home.path());
    command.args(["push", "--json", "--store", &inputs.store_uri()]);
    command
        .arg("--token-file")
        .arg(running.folder.join("token"));
    command.args(["-", &format!("http://{address}")]);
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

/// Sends the requests of `nix copy` for these paths on `count` connections.
fn put(uploads: &[[Upload; 2]], running: &Running, count: usize) -> Result<Values> {
    let server = running.server.as_ref().context("a server")?;
    let fields = running.authorization();
    let elapsed = load::put::all(server.address, &fields, uploads, count)?;
    let rate = to_f64(uploads.len() as u64) / elapsed.as_secs_f64();
    let mut values = Values::from([(Quantity::WallMs, rows::millis(elapsed))]);
    if count > 1 {
        values.insert(Quantity::PathsPerSecond, rate);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_per_gb_for_large_paths_and_per_path_for_small_ones() {
        let cpu = Duration::from_millis(500);
        let costs = |what: What| what.costs(cpu, 250_000_000, 1000);
        assert_eq!(costs(What::Xz), [(Quantity::ServerCpuPerGb, 2.0)]);
        assert_eq!(costs(What::Load(16)), [(Quantity::ServerCpuPerPath, 500.0)]);
    }
}
