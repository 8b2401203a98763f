//! `kettles check`: recomputes the statistics from all rows and compares them bit for bit.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::log;
use crate::stats::Totals;
use crate::store;

/// Maximum number of attempts while other processes write to the store.
const TRIES_MAX: u32 = 5;

/// Options of `kettles check`.
#[derive(Debug, Clone, clap::Args)]
#[command(args_override_self = true)]
pub struct Check {
    /// SQLite file, or PostgreSQL URL.
    #[arg(long, short = 'e', default_value = "kettles.db", value_name = "STORE")]
    pub database: PathBuf,
}

impl Check {
    /// Recomputes the statistics from all stored measurements, and compares them with the stored
    /// totals.
    ///
    /// # Errors
    ///
    /// If they differ, if the store cannot be read, or if it changed during every attempt.
    pub fn run(&self) -> Result<()> {
        let mut store = store::open_to_read(&self.database)?;
        let started = Instant::now();
        for _ in 0..TRIES_MAX {
            let before = store.load().context("the store cannot be read")?.totals;
            let recounted = store.recount().context("the rows cannot be counted")?;
            if before == recounted {
                let seconds = started.elapsed().as_secs_f64();
                let count = recounted.history.measurement_count;
                let devices = recounted.device_count;
                let rows = format!("{count} measurements of {devices} kettles");
                log::say(&format!(
                    "kettles: {rows}, recomputed in {seconds:.1} s: totals are exact"
                ));
                return Ok(());
            }
            let after = store.load().context("the store cannot be read")?.totals;
            if before == after {
                bail!(
                    "totals and rows differ: {}",
                    difference(&before, &recounted)
                );
            }
            // Another process has changed the store during this attempt, so try again.
        }
        bail!("the store changed during every attempt: try again while no server writes to it")
    }
}

/// Describes the difference between the totals.
fn difference(totals: &Totals, recounted: &Totals) -> String {
    if totals.to_json() == recounted.to_json() {
        return "in bits below the printed precision".to_owned();
    }
    format!("totals {}, rows {}", totals.to_json(), recounted.to_json())
}
