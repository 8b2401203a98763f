//! Goal `overload`: measures throughput and peak memory of the server at three times its capacity,
//! and the time until it responds normally again.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use swarm::{Fleet, Kettles, Plan, Tally};
use testkit::PATIENCE;
use testkit::http1::Connection;
use testkit::wait::holds_within;

use crate::arguments::Arguments;
use crate::process::Process;
use crate::say;

/// Initial rate of the search for the capacity, in requests per second.
const FIRST_RATE: f64 = 1000.0;
/// Duration of each step of the search.
const STEP: Duration = Duration::from_secs(3);
/// The search ends at the first rate at which the server answers less than this share of the
/// requests. Its capacity is the highest throughput seen until then.
const KEPT_UP: f64 = 0.9;
/// Minimum throughput under three times the capacity, as a share of the capacity.
const THROUGHPUT_MIN: f64 = 0.9;
/// Number of times that the load alternates between capacity and overload.
const ROUNDS: u32 = 3;
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// Memory limit of the server, in bytes.
const MEMORY_MAX: u64 = 512 << 20;

/// Runs the goal; returns a line for each requirement that the server missed. Fails if the load
/// cannot be run.
pub(crate) fn run(
    arguments: &Arguments,
    address: SocketAddr,
    server: &Process,
) -> Result<Vec<String>> {
    let (mut rate, mut peak) = (FIRST_RATE, 0.0_f64);
    loop {
        let (tally, _) = ask(arguments, address, rate, STEP)?;
        peak = peak.max(tally.rate());
        tell("search:", rate, &tally);
        if tally.rate() < KEPT_UP * rate {
            break;
        }
        rate *= 2.0;
    }
    // Capacity and overload alternate, so that other load on the machine affects both results
    // alike.
    let part_time = arguments.duration / ROUNDS;
    let (mut peak_count, mut count, mut refused, mut wrong) = (0, 0, 0, 0);
    let mut drained = Duration::ZERO;
    for _ in 0..ROUNDS {
        let (tally, _) = ask(arguments, address, peak, part_time)?;
        tell("capacity:", peak, &tally);
        peak_count += tally.answered();
        let (tally, drained_now) = ask(arguments, address, 3.0 * peak, part_time)?;
        tell("overload:", 3.0 * peak, &tally);
        count += tally.answered();
        drained = drained.max(drained_now);
        let failures = tally.failures;
        refused += failures.refused;
        // Refusals are correct here, and unsent requests never reached the server.
        wrong += failures.wrong + failures.malformed + failures.closed;
    }
    let memory = server.memory_peak().context("the server is gone")?;
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let part = count as f64 / peak_count.max(1) as f64;
    say(&format!(
        "{:.0} % of the {peak_count} responses at capacity; {refused} refused; at most {} MiB; \
         responsive {:.2} s after the last request was due",
        100.0 * part,
        memory >> 20,
        drained.as_secs_f64()
    ));
    let mut missed = Vec::new();
    if part < THROUGHPUT_MIN {
        missed.push(format!(
            "{:.0} % of the peak, not {:.0}",
            100.0 * part,
            100.0 * THROUGHPUT_MIN
        ));
    }
    if drained > DRAIN_MAX {
        missed.push(format!(
            "{drained:.2?} until the server was responsive, not {DRAIN_MAX:?}"
        ));
    }
    if memory > MEMORY_MAX {
        missed.push(format!("{} MiB, not {}", memory >> 20, MEMORY_MAX >> 20));
    }
    if wrong > 0 {
        missed.push(format!("{wrong} wrong, malformed or incomplete responses"));
    }
    Ok(missed)
}

fn tell(what: &str, rate: f64, tally: &Tally) {
    let failures = tally
        .failures
        .by_name()
        .into_iter()
        .filter(|(_, count)| *count > 0);
    let failures: String = failures
        .map(|(name, count)| format!(", {name} {count}"))
        .collect();
    say(&format!(
        "{what} {rate:.0} requests per second, {:.0} answered{failures}",
        tally.rate()
    ));
}

/// Sends requests at `rate`, and an extra one at the end. Returns the results, and how long the
/// server took to become responsive: the time from the last due request until all sent requests
/// were answered, plus the time of the extra request. The time that the generator itself needs
/// between these two is not counted.
fn ask(
    arguments: &Arguments,
    address: SocketAddr,
    rate: f64,
    duration: Duration,
) -> Result<(Tally, Duration)> {
    const PERIOD: Duration = Duration::from_secs(1);
    // Each kettle sends two requests per period.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "no machine answers that many"
    )]
    let count = (rate / 2.0) as usize;
    let host = address.to_string();
    let seed = arguments.seed;
    let fleet = Kettles::new(&host, count, PERIOD, PERIOD, seed);
    let plan = Plan {
        timeout: arguments.timeout,
        ..Plan::new(address, arguments.connections, duration)
    };
    let tally = swarm::run(&plan, fleet, &AtomicBool::new(false), &mut |_, _| {})?;
    let asked = Instant::now();
    answered_at_once(address)?;
    let settled = tally.settled.saturating_sub(tally.duration);
    Ok((tally, settled + asked.elapsed()))
}

/// Sends both requests of one kettle on new connections, again and again, until the server answers
/// both correctly.
fn answered_at_once(address: SocketAddr) -> Result<()> {
    let second = Duration::from_secs(1);
    // With this seed, the probe is another kettle than those of the load.
    let mut fleet = Kettles::new("probe", 1, second, second, u64::MAX);
    if !holds_within(PATIENCE, || {
        is_answered(address, &mut fleet).unwrap_or(false)
    }) {
        bail!("the server does not respond after the overload");
    }
    Ok(())
}

/// Sends both requests of a kettle on a new connection; returns whether both succeed.
fn is_answered(address: SocketAddr, fleet: &mut Kettles) -> std::io::Result<bool> {
    let mut connection = Connection::try_connect(address)?;
    for _ in 0..2 {
        let mut request = Vec::new();
        fleet.ask(&mut request);
        connection.try_send(&request)?;
        if connection
            .try_next(false)?
            .is_none_or(|it| it.status != 200)
        {
            return Ok(false);
        }
    }
    Ok(true)
}
