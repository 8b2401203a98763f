//! Measures reading a directory on this machine: `measure DIR [THREADS…]`.

#![expect(clippy::print_stdout, reason = "the figures are the purpose")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use samovar_workspace::pack::{default_threads, hash};
use samovar_workspace::{Index, Packer, Scanned};

const ROUND_COUNT: usize = 5;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args_os().skip(1);
    let root = PathBuf::from(arguments.next().ok_or("usage: measure DIR [THREADS…]")?);
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
                hash(&mut scanned, needs_nar_hash, threads)?;
                Ok(scanned)
            })?;
        }
        let shared = Arc::new(scanned.clone());
        measure("pack", || {
            let mut packer = Packer::start(Arc::clone(&shared), threads)?;
            Ok(std::io::copy(&mut packer, &mut std::io::sink())?)
        })?;
    }
    let index = measure("make an index", || Ok(Index::of(&hashed)))?;
    let bytes = measure("encode it", || Ok(index.encode()))?;
    println!("{} bytes", bytes.len());
    let index = measure("decode it", || Ok(Index::decode(&bytes)?))?;
    measure("apply it", || Ok(index.apply(&mut scanned.clone())))?;
    Ok(())
}

fn measure<T>(name: &str, mut run: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    let mut times = Vec::new();
    let mut last = None;
    for _ in 0..ROUND_COUNT {
        let start = Instant::now();
        last = Some(run()?);
        times.push(start.elapsed());
    }
    times.sort_unstable();
    println!(
        "{name}: {:?} ({:?} to {:?})",
        times[ROUND_COUNT / 2],
        times[0],
        times[ROUND_COUNT - 1]
    );
    last.ok_or_else(|| "no rounds".into())
}
