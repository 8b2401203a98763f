//! Soak: measures the server's resources over millions of requests.
//!
//! No faults are injected except misbehaving clients. The store changes all the time, the server
//! reloads, and clients connect and disconnect, sometimes in the middle of a response. The oracle
//! judges every response, as in chaos.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::Signal;
use rustls::ClientConfig;

use crate::ask::{Ask, What};
use crate::changes::Stock;
use crate::client::http1::connect;
use crate::content::Version;
use crate::server::{Shared, Usage};
use crate::world::{Facts, World, lock};
use testkit::random::SplitMix64;

/// Number of pipelined requests in one batch.
const BATCH: usize = 32;

/// Resources that the server uses after a certain number of requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    seconds: f64,
    requests: u64,
    held: Usage,
}

/// A measured resource: its name, its value in a sample, and the maximum rise of its regression
/// line over the second half of the run.
type Resource = (&'static str, fn(&Sample) -> f64, f64);

/// The measured resources. The maximum for memory allows for the allocator's arenas. The maximum
/// for threads allows for up to two workers per slot: a worker is started when a job has a slot but
/// no worker is idle.
const RESOURCES: [Resource; 3] = [
    (
        "anonymous memory, MiB",
        |sample| sample.held.anonymous_kib as f64 / 1024.0,
        2.0,
    ),
    ("descriptors", |sample| sample.held.descriptors as f64, 4.0),
    ("threads", |sample| sample.held.threads as f64, 8.0),
];

/// Number of requests answered so far, and the number at which the run ends.
#[derive(Debug)]
pub(crate) struct Progress {
    done: AtomicU64,
    wanted: u64,
}

impl Progress {
    pub(crate) fn new(wanted: u64) -> Self {
        Self {
            done: AtomicU64::new(0),
            wanted,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.done.load(Ordering::Relaxed) >= self.wanted
    }
}

/// Runs one client until enough requests were answered.
pub(crate) fn client(
    world: &World,
    name: &str,
    stock: &Stock,
    progress: &Progress,
    tls: Option<&Arc<ClientConfig>>,
) -> Result<()> {
    let mut random = SplitMix64::for_actor(world.seed, name);
    let small: Vec<Arc<Facts>> = of_size(world, stock, 0, 60_000);
    let large: Vec<Arc<Facts>> = of_size(world, stock, 60_000, usize::MAX);
    while world.goes_on() && !progress.is_over() {
        let mut connection = connect(world, tls)?;
        for _ in 0..1 + random.index(60) {
            let asks: Vec<Ask> = (0..BATCH)
                .map(|_| ask(&mut random, stock, &small, &large))
                .collect();
            // Occasionally disconnect with responses in flight.
            let leave_at = random.percent(1).then(|| random.index(BATCH));
            if !connection.pipeline(world, &asks, leave_at) {
                break;
            }
            progress.done.fetch_add(BATCH as u64, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Returns graph and pool paths whose NAR length is at least `least` and below `most`.
fn of_size(world: &World, stock: &Stock, least: usize, most: usize) -> Vec<Arc<Facts>> {
    let pool = stock
        .pool
        .iter()
        .map(|(facts, version, _)| (facts, Arc::clone(version)));
    let graph = stock.graph.iter();
    let graph = graph.filter_map(|facts| Some((facts, facts.latest()?)));
    let is_wanted = |version: &Version| (least..most).contains(&version.nar.len());
    let found = graph.chain(pool).filter(|(_, version)| is_wanted(version));
    let found = found.map(|(facts, _)| Arc::clone(facts)).collect();
    world.note("sizes are known");
    found
}

fn ask(random: &mut SplitMix64, stock: &Stock, small: &[Arc<Facts>], large: &[Arc<Facts>]) -> Ask {
    let one = |random: &mut SplitMix64, of: &[Arc<Facts>]| Arc::clone(&of[random.index(of.len())]);
    let mut ask = Ask::of(match random.next() % 2000 {
        0..=1199 => What::Narinfo(one(random, small)),
        1200..=1699 => {
            let hash = crate::content::base32(&random.bytes(20));
            What::Narinfo(Facts::new(format!("/nix/store/{hash}-absent")))
        }
        1700..=1969 => What::Nar(one(random, small), None),
        1970..=1971 => What::Nar(one(random, large), None),
        1972..=1979 => {
            let mut ask = Ask::of(What::Nar(one(random, large), None));
            let first = random.between(0, 60_000);
            ask.range = Some((first, Some(first + 1 + random.between(0, 60_000))));
            return ask;
        }
        1980..=1987 => What::Listing(one(random, large)),
        1988..=1989 => What::Closure(one(random, &stock.graph)),
        1990 => What::Narinfos(small.to_vec()),
        1991..=1994 => What::Log,
        _ => What::Info,
    });
    ask.is_head = !matches!(ask.what, What::Narinfos(_)) && random.percent(2);
    ask
}

/// Sends HUP every two seconds until the run ends.
pub(crate) fn reload(world: &World, server: &Shared, progress: &Progress) -> Result<()> {
    while world.goes_on() && !progress.is_over() {
        world.pause(2000);
        server.signal_and_wait(Signal::HUP, "the certificate was reloaded")?;
        world.count("HUP");
    }
    Ok(())
}

/// Samples resources once a second until enough requests were answered, then ends the run.
pub(crate) fn watch(world: &World, server: &Shared, progress: &Progress) -> Result<Vec<Sample>> {
    let started = Instant::now();
    let mut samples = Vec::new();
    let mut said = 0;
    while world.goes_on() && !progress.is_over() {
        std::thread::sleep(Duration::from_secs(1));
        let held = lock(&server.server).usage()?;
        let sample = Sample {
            seconds: started.elapsed().as_secs_f64(),
            requests: progress.done.load(Ordering::Relaxed),
            held,
        };
        let tenth = sample.requests * 10 / progress.wanted.max(1);
        if tenth > said {
            said = tenth;
            println!("{sample:?}");
        }
        samples.push(sample);
    }
    world.stop();
    Ok(samples)
}

/// Writes the samples; reports a finding if a resource rises during the second half.
pub(crate) fn report(world: &World, samples: &[Sample], cpu: Duration, out: &Path) -> Result<()> {
    let mut table = String::from("seconds,requests,anonymous_kib,descriptors,threads\n");
    for sample in samples {
        writeln!(
            table,
            "{:.1},{},{},{},{}",
            sample.seconds,
            sample.requests,
            sample.held.anonymous_kib,
            sample.held.descriptors,
            sample.held.threads
        )?;
    }
    fs::write(out.join("soak.csv"), table)?;
    let half = &samples[samples.len() / 2..];
    for (what, of, rise_max) in RESOURCES {
        let rise = rise(half, of);
        println!("second half: {rise:+.1} {what}, {rise_max} allowed");
        if rise > rise_max {
            world.finding(format_args!("{what} rise by {rise:.1} in the second half"));
        }
    }
    if let Some(last) = samples.last() {
        println!(
            "{} requests in {:.0} s, {:.1} µs of the server's CPU each, churn included",
            last.requests,
            last.seconds,
            cpu.as_secs_f64() * 1e6 / last.requests as f64
        );
    }
    Ok(())
}

/// Returns the rise of the regression line through the values of `samples`, from the first sample
/// to the last.
fn rise(samples: &[Sample], of: fn(&Sample) -> f64) -> f64 {
    let count = samples.len() as f64;
    let mean = |of: &dyn Fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / count;
    let (x_mean, y_mean) = (mean(&|sample| sample.requests as f64), mean(&of));
    let (mut above, mut below) = (0.0, 0.0);
    for sample in samples {
        let x = sample.requests as f64 - x_mean;
        above += x * (of(sample) - y_mean);
        below += x * x;
    }
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return 0.0;
    };
    let width = (last.requests - first.requests) as f64;
    if below > 0.0 {
        above / below * width
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rise_is_found_and_noise_is_not() {
        let samples = |step: u64| -> Vec<Sample> {
            (0..100)
                .map(|index| Sample {
                    seconds: 0.0,
                    requests: index * 1000,
                    held: Usage {
                        descriptors: 9,
                        threads: 9,
                        anonymous_kib: 5000 + index * step + index % 7,
                    },
                })
                .collect()
        };
        let memory: fn(&Sample) -> f64 = |sample| sample.held.anonymous_kib as f64;
        assert!(rise(&samples(0), memory).abs() < 1.0);
        assert!((rise(&samples(10), memory) - 990.0).abs() < 1.0);
    }
}
