//! `kettles seed`: fills a store with generated history.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::habit::Habits;
use crate::log;
use crate::seed::Plan;
use crate::store::{self, Batch, Store};
use crate::time::Time;

/// Number of rows per transaction.
const BATCH_LEN: usize = 8000;
/// Number of rows between two lines of progress.
const PROGRESS_LEN: u64 = 1_000_000;
const DAY_SECONDS: i64 = 86_400;

/// Options of `kettles seed`.
#[derive(Debug, Clone, clap::Args)]
#[command(args_override_self = true)]
pub struct Seed {
    /// SQLite file, or PostgreSQL URL.
    #[arg(long, short = 'e', default_value = "kettles.db", value_name = "STORE")]
    pub database: PathBuf,
    /// Preset; each of the other options overrides a part of it.
    #[arg(long, value_enum, default_value_t = Preset::Demo)]
    pub preset: Preset,
    /// Number of kettles.
    #[arg(long, value_name = "COUNT")]
    pub devices: Option<u32>,
    /// Time of the first measurements, such as 2017-12-24T18:30:00Z.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub from: Option<Time>,
    /// End of the history, exclusive; default: now.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub to: Option<Time>,
    /// Interval between a kettle's measurements: 30s, 5m, 1h, 1d.
    #[arg(long, value_name = "DURATION", value_parser = seconds)]
    pub every: Option<i64>,
    /// Approximate number of measurements, from which the start of the history follows.
    #[arg(long, value_name = "COUNT", conflicts_with = "from")]
    pub rows: Option<u64>,
    /// Seed: equal seeds give equal histories.
    #[arg(long, default_value_t = 2017, value_name = "NUMBER")]
    pub seed: u64,
}

/// Presets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// 20 kettles, a year, every 5 minutes: 2.1 million rows.
    Demo,
    /// 200 kettles, three years, every 5 minutes: 63 million rows.
    History,
    /// 20,000 kettles, a day, every 30 seconds: 57.6 million rows.
    Fleet,
}

impl Preset {
    /// Returns the plan of a preset that ends at `to`.
    pub fn plan(self, to: Time, seed: u64) -> Plan {
        let (device_count, days, every_seconds) = match self {
            Self::Demo => (20, 365, 300),
            Self::History => (200, 3 * 365, 300),
            Self::Fleet => (20_000, 1, 30),
        };
        Plan {
            device_count,
            from: to.plus_seconds(-days * DAY_SECONDS),
            to,
            every_seconds,
            seed,
        }
    }
}

impl Seed {
    /// Returns the plan that the options describe.
    ///
    /// # Errors
    ///
    /// If it has no rows.
    pub fn plan(&self) -> Result<Plan> {
        let mut plan = self
            .preset
            .plan(self.to.unwrap_or_else(Time::now), self.seed);
        plan.device_count = self.devices.unwrap_or(plan.device_count);
        plan.every_seconds = self.every.unwrap_or(plan.every_seconds);
        plan.from = self.from.unwrap_or(plan.from);
        if let Some(rows) = self.rows {
            let steps = rows.div_ceil(u64::from(plan.device_count.max(1)));
            let steps = i64::try_from(steps).context("too many rows")?;
            plan.from = plan
                .to
                .plus_seconds(-steps.saturating_mul(plan.every_seconds));
        }
        ensure!(
            plan.row_count() > 0,
            "the time range is empty: --from must be before --to"
        );
        Ok(plan)
    }

    /// Fills the store.
    ///
    /// # Errors
    ///
    /// If the options describe no rows, or the store fails.
    pub fn run(&self) -> Result<()> {
        let plan = self.plan()?;
        let mut store = store::open(&self.database)?;
        store.load().context("the store cannot be read")?;
        let started = Instant::now();
        let count = fill(store.as_mut(), plan, |count| {
            let rate = count as f64 / started.elapsed().as_secs_f64();
            log::say(&format!(
                "kettles: {count} of {} rows, {rate:.0}/s",
                plan.row_count()
            ));
        })?;
        let seconds = started.elapsed().as_secs_f64();
        log::say(&format!("kettles: {count} new rows in {seconds:.1} s"));
        Ok(())
    }
}

/// Stores a plan through the normal write path, so that the totals match the rows. Returns the
/// number of new rows.
///
/// # Errors
///
/// If the store fails. Rows stored so far stay; running the same plan again continues.
pub fn fill(store: &mut dyn Store, plan: Plan, mut progress: impl FnMut(u64)) -> Result<u64> {
    let mut measurements = plan.measurements();
    let (mut stored, mut new, mut next) = (0, 0, PROGRESS_LEN);
    let habits = Habits::default();
    loop {
        let batch = Batch {
            measurements: measurements.by_ref().take(BATCH_LEN).collect(),
            ..Batch::default()
        };
        let count = batch.measurements.len();
        if count == 0 {
            let learned = habits.take_unsaved(usize::MAX);
            store
                .save_habits(&learned)
                .context("the habits of the kettles cannot be stored")?;
            return Ok(new);
        }
        let committed = store
            .commit(&batch)
            .context("the measurements cannot be stored")?;
        habits.learn(&batch.measurements);
        stored += count as u64;
        new += (count - committed.duplicate_count) as u64;
        if stored >= next {
            progress(stored);
            next += PROGRESS_LEN;
        }
    }
}

fn time(text: &str) -> Result<Time, &'static str> {
    Time::parse(text).ok_or("not a time such as 2017-12-24T18:30:00Z")
}

fn seconds(text: &str) -> Result<i64, &'static str> {
    const HELP: &str = "not a duration such as 30s, 5m, 1h or 1d";
    let unit = text.chars().next_back().ok_or(HELP)?;
    let factor = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => DAY_SECONDS,
        _ => return Err(HELP),
    };
    let number: i64 = text
        .strip_suffix(unit)
        .unwrap_or_default()
        .parse()
        .ok()
        .ok_or(HELP)?;
    let seconds = number.checked_mul(factor).ok_or(HELP)?;
    (seconds > 0).then_some(seconds).ok_or(HELP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        assert_eq!(seconds("30s"), Ok(30));
        assert_eq!(seconds("5m"), Ok(300));
        assert_eq!(seconds("1d"), Ok(86_400));
        for text in [
            "",
            "s",
            "5",
            "0s",
            "-5m",
            "5 m",
            "5mm",
            "99999999999999999d",
            "5µ",
        ] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn presets_have_the_documented_numbers_of_rows() {
        let rows = |preset: Preset| preset.plan(Time(0), 1).row_count();
        assert_eq!(rows(Preset::Demo), 2_102_400);
        assert_eq!(rows(Preset::History), 63_072_000);
        assert_eq!(rows(Preset::Fleet), 57_600_000);
    }
}
