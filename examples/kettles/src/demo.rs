//! `kettles demo`: a server with a year of generated history and a thousand simulated kettles in
//! one process, in a folder that is deleted at the end.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::ingest::{COALESCING_MS, Ingest, QUEUE_LIMIT, Refusal, WAIT_MAX_MS, Work};
use crate::metrics::Metrics;
use crate::seed::Plan;
use crate::serve::{Running, Serve, announce, ended};
use crate::store::SqliteStore;
use crate::time::Time;

/// Number of kettles with history, besides the simulated ones.
const SEEDED_DEVICES: u32 = 20;
const SEEDED_DAYS: i64 = 365;
const SEEDED_EVERY_SECONDS: i64 = 300;
/// Number of rows per batch of history.
const SEED_LEN: usize = 2000;
/// Duration of the simulation, which a signal usually ends.
const FOREVER: Duration = Duration::from_secs(366 * 24 * 3600);

/// Options of `kettles demo`.
#[derive(Debug, Clone, clap::Args)]
#[command(args_override_self = true)]
pub struct Demo {
    /// Port to listen on; 0 picks a free one.
    #[arg(long, short, default_value_t = 8080)]
    port: u16,
    /// Number of simulated kettles.
    #[arg(long, default_value_t = 1000, value_name = "COUNT")]
    kettles: usize,
    /// Interval between a kettle's requests, in seconds.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    period: u64,
    /// Skip the year of history.
    #[arg(long)]
    no_history: bool,
}

/// Runs until a signal ends it.
///
/// # Errors
///
/// If the folder, the store, the port or a thread cannot be created.
pub fn demo(options: &Demo) -> Result<()> {
    let is_ended = ended().context("no signals")?;
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let database = folder.path().join("kettles.db");
    let store = SqliteStore::open(&database)?;
    let running = Running::start(&options.serve(database), Box::new(store))?;
    let addr = running.addr().context("no address")?;
    announce(&running);
    let swarm = {
        let (options, is_ended) = (options.clone(), Arc::clone(&is_ended));
        std::thread::spawn(move || live(&options, addr, &is_ended))
    };
    let seed = (!options.no_history).then(|| {
        let (app, is_ended) = (Arc::clone(running.app()), Arc::clone(&is_ended));
        std::thread::spawn(move || seed(&app.ingest, &app.metrics, &is_ended))
    });
    let outcome = running.run_until(&is_ended);
    // Ends the simulated kettles if the server has ended by itself.
    is_ended.store(true, Ordering::Release);
    for thread in [Some(swarm), seed].into_iter().flatten() {
        // A panic of the thread has already printed its message.
        drop(thread.join());
    }
    outcome
}

impl Demo {
    fn serve(&self, database: PathBuf) -> Serve {
        Serve {
            hostname: "127.0.0.1".to_owned(),
            port: self.port,
            database,
            retain: 0,
            queue: QUEUE_LIMIT,
            coalescing: COALESCING_MS,
            wait: WAIT_MAX_MS,
            admin_token: None,
            login_secret: None,
            processes: 1,
            own_port: 0,
            member: None,
        }
    }
}

/// Runs the simulated kettles.
fn live(options: &Demo, addr: SocketAddr, is_ended: &AtomicBool) {
    let period = Duration::from_secs(options.period.max(1));
    let plan = swarm::Plan::new(addr, options.kettles, FOREVER);
    let host = addr.to_string();
    let fleet = swarm::Kettles::new(&host, options.kettles, period, period, 1);
    if let Err(error) = swarm::run(&plan, fleet, is_ended, &mut |_, _| {}) {
        crate::log::error("the simulated kettles failed", &error);
    }
}

/// Stores the year of history through the normal queue, two batches at a time, so that live
/// measurements do not wait.
fn seed(ingest: &Ingest, metrics: &Metrics, is_ended: &AtomicBool) {
    let to = Time::now();
    let plan = Plan {
        device_count: SEEDED_DEVICES,
        from: to.plus_seconds(-SEEDED_DAYS * 24 * 3600),
        to,
        every_seconds: SEEDED_EVERY_SECONDS,
        seed: 1,
    };
    metrics.plan_history(plan.row_count());
    let mut measurements = plan.measurements();
    let (sender, done) = sync_channel(2);
    let mut under_way = 0;
    let mut outcome = Ok(());
    while outcome.is_ok() && !is_ended.load(Ordering::Acquire) {
        let some: Vec<_> = measurements.by_ref().take(SEED_LEN).collect();
        if some.is_empty() {
            break;
        }
        let sender = sender.clone();
        // The queue has enough capacity for these batches of history and for live measurements.
        let acknowledge = move |outcome| sender.send(outcome).unwrap_or_default();
        ingest.push(Work::History(some), Box::new(acknowledge));
        under_way += 1;
        if under_way == 2 {
            outcome = done.recv().unwrap_or(Err(Refusal::Ending));
            under_way -= 1;
        }
    }
    if is_ended.load(Ordering::Acquire) {
        return;
    }
    let line = match outcome {
        Ok(()) => format!(
            "kettles: {} measurements of history stored",
            plan.row_count()
        ),
        Err(refusal) => {
            // The page must not wait for the rest.
            metrics.plan_history(0);
            format!("kettles: the history is incomplete: {}", refusal.name())
        }
    };
    // Standard output may be closed.
    drop(writeln!(io::stdout().lock(), "{line}"));
}
