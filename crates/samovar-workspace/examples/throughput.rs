//! Measures reading and writing a directory on this machine: `throughput DIR [--unpack DIR]
//! [THREADS…]`.
//!
//! `--unpack` unpacks the directory without a flush, once in each round, into new directories below
//! the named one. They are not removed: deletions would slow down the next round.

#![expect(clippy::print_stdout, reason = "the figures are the purpose")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use samovar_workspace::pack::{default_threads, hash};
use samovar_workspace::unpack::{Options, unpack};
use samovar_workspace::{Index, Packer, Scanned};

const ROUND_COUNT: usize = 5;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    const USAGE: &str = "usage: throughput DIR [--unpack DIR] [THREADS…]";
    let mut arguments = std::env::args_os().skip(1).peekable();
    let root = PathBuf::from(arguments.next().ok_or(USAGE)?);
    let into = arguments.next_if(|argument| argument == "--unpack");
    let into = into.map(|_| arguments.next().ok_or(USAGE)).transpose()?;
    let threads = arguments.map(|count| Ok(count.to_string_lossy().parse()?));
    let mut threads = threads.collect::<Result<Vec<usize>, Failure>>()?;
    if threads.is_empty() {
        threads.push(default_threads());
    }
    let scanned = measure("scan", || Ok(Scanned::scan(&root)?))?;
    let megabytes = scanned.entries.nar_size() / 1_000_000;
    println!("{} entries, {megabytes} MB", scanned.states.len());
    let mut hashed = scanned.clone();
    for threads in threads {
        println!("{threads} threads");
        for (name, needs_nar_hash) in [("digests", false), ("digests and NAR hash", true)] {
            hashed = measure(name, || {
                let mut scanned = scanned.clone();
                hash(&mut scanned, needs_nar_hash, threads, &|_| {})?;
                Ok(scanned)
            })?;
        }
        let shared = Arc::new(scanned.clone());
        let (len, time) = timed("pack", || {
            let mut packer = Packer::start(Arc::clone(&shared), threads)?;
            Ok(std::io::copy(&mut packer, &mut std::io::sink())?)
        })?;
        println!("pack: {:.0} MB/s", len as f64 / 1e6 / time.as_secs_f64());
    }
    if let Some(into) = into {
        measure_unpacking(&scanned, Path::new(&into))?;
    }
    let index = measure("make an index", || Ok(Index::of(&hashed)))?;
    let bytes = measure("encode it", || Ok(index.encode()))?;
    println!("{} bytes", bytes.len());
    let index = measure("decode it", || Ok(Index::decode(&bytes)?))?;
    measure("apply it", || Ok(index.apply(&mut scanned.clone())))?;
    Ok(())
}

/// Unpacks the NAR of a directory from memory.
fn measure_unpacking(scanned: &Scanned, into: &Path) -> Result<(), Failure> {
    let mut nar = Vec::new();
    let mut packer = Packer::start(Arc::new(scanned.clone()), default_threads())?;
    std::io::copy(&mut packer, &mut nar)?;
    let options = Options {
        sync: false,
        ..Options::default()
    };
    let mut round = 0;
    let (unpacked, time) = timed("unpack", || {
        round += 1;
        let into = into.join(format!("unpacked-{round}"));
        Ok(unpack(&mut nar.as_slice(), None, &into, &options)?)
    })?;
    let rate = unpacked.file_count as f64 / time.as_secs_f64();
    println!("unpack: {rate:.0} files/s");
    Ok(())
}

fn measure<T>(name: &str, run: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    Ok(timed(name, run)?.0)
}

/// Returns the last result, and the median of the times.
fn timed<T>(
    name: &str,
    mut run: impl FnMut() -> Result<T, Failure>,
) -> Result<(T, Duration), Failure> {
    let mut times = Vec::new();
    let mut last = None;
    for _ in 0..ROUND_COUNT {
        let start = Instant::now();
        last = Some(run()?);
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let median = times[ROUND_COUNT / 2];
    println!(
        "{name}: {median:?} ({:?} to {:?})",
        times[0],
        times[ROUND_COUNT - 1]
    );
    Ok((last.ok_or("no rounds")?, median))
}
