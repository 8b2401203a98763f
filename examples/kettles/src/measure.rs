//! `kettles measure`: measures the cost of storing a row, without HTTP.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result};

use crate::log;
use crate::process::thread_times;
use crate::seed::Plan;
use crate::serve::at_least_one;
use crate::store::{self, Batch};
use crate::time::Time;

/// Options of `kettles measure`.
#[derive(Debug, Clone, clap::Args)]
#[command(args_override_self = true)]
pub struct Measure {
    /// SQLite file or PostgreSQL URL; use an empty one, the measurements are written into it.
    #[arg(long, short = 'e', value_name = "STORE")]
    pub database: PathBuf,
    /// Number of measurements, generated before the first is stored.
    #[arg(long, default_value_t = 500_000, value_name = "COUNT", value_parser = at_least_one())]
    pub rows: usize,
    /// Measurements per transaction.
    #[arg(long, default_value_t = 1000, value_name = "COUNT", value_parser = at_least_one())]
    pub batch: usize,
    /// Number of kettles.
    #[arg(long, default_value_t = 20_000, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub devices: u32,
    /// PID of a local PostgreSQL postmaster, to include the CPU time of its processes.
    #[arg(long, value_name = "PID")]
    pub postmaster: Option<u32>,
}

impl Measure {
    /// Stores the measurements and prints the cost of one.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub fn run(&self) -> Result<()> {
        let to = Time::now();
        let steps = self.rows.div_ceil(self.devices as usize);
        let steps = i64::try_from(steps).context("too many rows")?;
        let plan = Plan {
            device_count: self.devices,
            from: to.plus_seconds(-30 * steps),
            to,
            every_seconds: 30,
            seed: 2017,
        };
        let rows: Vec<_> = plan.measurements().take(self.rows).collect();
        let batches: Vec<_> = rows
            .chunks(self.batch)
            .map(|rows| Batch {
                measurements: rows.to_vec(),
                ..Batch::default()
            })
            .collect();
        let mut store = store::open(&self.database)?;
        store.load().context("the store cannot be read")?;
        // All kettles are registered before the measurement, as in a server that has run for a
        // minute.
        let known = Batch {
            devices: plan.devices().collect(),
            ..Batch::default()
        };
        store.commit(&known)?;
        let (own, database) = (own_cpu(), self.database_cpu());
        let started = Instant::now();
        for batch in &batches {
            store
                .commit(batch)
                .context("the measurements cannot be stored")?;
        }
        let seconds = started.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "there are fewer rows")]
        let count = rows.len() as f64;
        let each = |cpu_s: f64| cpu_s * 1e6 / count;
        log::say(&format!(
            "kettles: {count} rows, {} a transaction: {:.0} a second, {:.2} us of a processor \
             each, and {:.2} us of the database's",
            self.batch,
            count / seconds,
            each(own_cpu() - own),
            each(self.database_cpu() - database),
        ));
        Ok(())
    }

    /// Returns the CPU time of the database's processes, in seconds.
    fn database_cpu(&self) -> f64 {
        let Some(postmaster) = self.postmaster else {
            return 0.0;
        };
        let list = fs::read_dir("/proc").into_iter().flatten();
        let children = list.filter_map(|entry| {
            let folder = entry.ok()?.path();
            let stat = fs::read_to_string(folder.join("stat")).ok()?;
            let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok();
            let times = fs::read_to_string(folder.join("schedstat")).ok()?;
            let nanos: f64 = times.split(' ').next()?.parse().ok()?;
            (parent == Some(postmaster)).then_some(nanos / 1e9)
        });
        children.sum()
    }
}

/// Returns the CPU time of this process's threads, in seconds.
fn own_cpu() -> f64 {
    thread_times().values().sum()
}
