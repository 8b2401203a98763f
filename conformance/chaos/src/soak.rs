//! Soak: resources in use by the server over millions of requests.
//!
//! No faults are injected except misbehaving clients. The store changes all the time, the server
//! reloads, and clients connect and disconnect, sometimes in the middle of a response. The oracle
//! judges every response, as in chaos.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;
use rustls::ClientConfig;

use crate::ask::{Ask, What};
use crate::changes::Stock;
use crate::chart::{self, Sample};
use crate::client::connection::{Connection, Manner};
use crate::content::Version;
use crate::oracle::check;
use crate::server::Shared;
use crate::world::{Facts, World, lock};
use testkit::random::SplitMix64;

/// Maximum rise of the regression line over the second half of the run. Memory: tolerance for the
/// allocator's arenas. Threads: a worker is started when a job finds a slot but no idle worker, up
/// to two workers per slot.
const KIB_RISE_MAX: f64 = 2048.0;
const DESCRIPTORS_RISE_MAX: f64 = 4.0;
const THREADS_RISE_MAX: f64 = 8.0;

/// Pipelined requests in one batch.
const BATCH: usize = 32;

/// Requests answered so far, out of those wanted.
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
        let addresses = *lock(&world.addresses);
        let mut connection = match tls {
            None => {
                let stream = TcpStream::connect(addresses.plain.context("no address")?)?;
                Connection::over(stream, "HTTP/1.1")?
            }
            Some(config) => {
                let began = world.now();
                let stream = TcpStream::connect(addresses.tls.context("no address")?)?;
                Connection::tls(world, stream, began, config)?
            }
        };
        for _ in 0..1 + random.index(60) {
            let asks: Vec<Ask> = (0..BATCH)
                .map(|_| ask(&mut random, stock, &small, &large))
                .collect();
            if !batch(world, &mut random, &mut connection, &asks) {
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

/// Sends a batch and checks its responses; returns whether the connection can be reused.
fn batch(
    world: &World,
    random: &mut SplitMix64,
    connection: &mut Connection,
    asks: &[Ask],
) -> bool {
    let bytes: Vec<u8> = asks.iter().flat_map(Ask::bytes).collect();
    let sent = world.now();
    if let Err(error) = connection.send(&bytes) {
        world.finding(format_args!("cannot send: {error}"));
        return false;
    }
    // Occasionally disconnect with responses in flight.
    let leaves_at = random.percent(1).then(|| random.index(asks.len()));
    for (index, ask) in asks.iter().enumerate() {
        if leaves_at == Some(index) {
            return false;
        }
        let (outcome, goes_on) = connection.answer(world, ask, sent, Manner::default());
        check(world, ask, &outcome);
        if !goes_on {
            return false;
        }
    }
    true
}

/// Sends HUP every two seconds until the run ends.
pub(crate) fn reload(world: &World, server: &Shared, progress: &Progress) -> Result<()> {
    while world.goes_on() && !progress.is_over() {
        world.pause(2000);
        server.told(Signal::HUP, "the certificate was reloaded")?;
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
        let held = lock(&server.server).holdings()?;
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

/// Writes the samples; reports a finding if the second half rises.
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
    fs::write(out.join("soak.svg"), chart::render(samples))?;
    let half = &samples[samples.len() / 2..];
    let memory: fn(&Sample) -> f64 = |sample| sample.held.anonymous_kib as f64;
    for (what, of, rise_max) in [
        ("KiB of anonymous memory", memory, KIB_RISE_MAX),
        (
            "descriptors",
            |sample| sample.held.descriptors as f64,
            DESCRIPTORS_RISE_MAX,
        ),
        (
            "threads",
            |sample| sample.held.threads as f64,
            THREADS_RISE_MAX,
        ),
    ] {
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

/// Returns the rise of the regression line through `samples`, from the first to the last.
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
    use crate::server::Holdings;

    #[test]
    fn a_rise_is_found_and_noise_is_not() {
        let samples = |step: u64| -> Vec<Sample> {
            (0..100)
                .map(|index| Sample {
                    seconds: 0.0,
                    requests: index * 1000,
                    held: Holdings {
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
