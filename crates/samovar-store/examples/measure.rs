//! Measures a store on this machine: `measure walk PATH…`, `measure catalog STATE_DIR…`,
//! `measure lookup STATE_DIR…`.
//!
//! CPU time is measured for this thread only, so that other load has little effect.

#![expect(clippy::print_stdout, reason = "the figures are the purpose")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use samovar_store::{LocalStore, Location, Parameters, Settings, Store, Tree};

const ROUND_COUNT: usize = 5;
const BUFFER_LEN: usize = 256 * 1024;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("walk") => arguments.try_for_each(|path| walk(PathBuf::from(path))),
        Some("catalog") => arguments.try_for_each(|dir| catalog(PathBuf::from(dir))),
        Some("lookup") => arguments.try_for_each(|dir| lookup(PathBuf::from(dir))),
        _ => Err("usage: measure walk PATH… | measure catalog STATE_DIR… | \
                  measure lookup STATE_DIR…"
            .into()),
    }
}

fn walk(path: PathBuf) -> Result<(), Failure> {
    let tree = Tree::of_files(path);
    let mut buffer = vec![0; BUFFER_LEN];
    for _ in 0..ROUND_COUNT {
        let (start, cpu) = (Instant::now(), cpu_time()?);
        let mut reader = tree.nar()?;
        while reader.fill(&mut buffer)? > 0 {}
        let (wall, cpu) = (start.elapsed(), cpu_time()?.saturating_sub(cpu));
        let gigabytes = reader.position() as f64 / 1e9;
        println!(
            "walk: {gigabytes:.3} GB, {:.3} CPU s/GB, {:.2} GB/s",
            cpu.as_secs_f64() / gigabytes,
            gigabytes / wall.as_secs_f64()
        );
    }
    let (start, cpu) = (Instant::now(), cpu_time()?);
    let size = tree.plan(1 << 30)?.nar_size();
    println!(
        "sizes: {size} bytes, {:?} CPU, {:?} in all",
        cpu_time()?.saturating_sub(cpu),
        start.elapsed()
    );
    Ok(())
}

/// Measures look-ups. Spreads them so that consecutive ones touch different pages.
fn lookup(state_dir: PathBuf) -> Result<(), Failure> {
    const PATH_COUNT: usize = 40_000;
    const STRIDE: usize = 15_013;
    let store = open(state_dir)?;
    let (mut hash_parts, mut before) = (Vec::new(), None);
    loop {
        let page = store.newest(before, 10_000)?;
        let Some(last) = page.last() else { break };
        before = last.registration;
        hash_parts.extend(page.iter().map(|info| info.path.hash_part()));
    }
    let every = hash_parts.len().div_ceil(PATH_COUNT);
    let hash_parts: Vec<_> = hash_parts.into_iter().step_by(every).collect();
    for _ in 0..ROUND_COUNT {
        let (start, cpu) = (Instant::now(), cpu_time()?);
        let mut reference_count = 0;
        for index in 0..hash_parts.len() {
            let hash_part = hash_parts[index * STRIDE % hash_parts.len()];
            let info = store.lookup(hash_part)?.ok_or("a valid path")?;
            reference_count += info.references.len();
        }
        let count = u32::try_from(hash_parts.len())?;
        println!(
            "lookup: {:?} CPU, {:?} in all, {:.1} references",
            cpu_time()?.saturating_sub(cpu) / count,
            start.elapsed() / count,
            reference_count as f64 / f64::from(count)
        );
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    let resident = status.lines().find(|line| line.starts_with("VmRSS"));
    println!("{}", resident.unwrap_or_default());
    Ok(())
}

fn open(state_dir: PathBuf) -> Result<LocalStore, Failure> {
    let mut location = Location::new(
        &Parameters::default(),
        &Settings::from_environment(|_| None)?,
    );
    location.state_dir = state_dir;
    Ok(LocalStore::new(location)?)
}

fn catalog(state_dir: PathBuf) -> Result<(), Failure> {
    let store = open(state_dir)?;
    let catalog = store.catalog().ok_or("a local store has a catalog")?;
    let start = Instant::now();
    let mut snapshot = catalog.load()?;
    println!(
        "load: {} paths in {:?}, {} bytes",
        snapshot.path_count(),
        start.elapsed(),
        snapshot.memory_len()
    );
    let present = samovar_nix::HashPart::from_bytes([1; 20]);
    const CHECK_COUNT: u32 = 1_000_000;
    let start = Instant::now();
    let mut fresh_count = 0_u32;
    for _ in 0..CHECK_COUNT {
        fresh_count += u32::from(catalog.check(&mut snapshot));
    }
    println!(
        "check: {:?} each, {fresh_count} fresh",
        start.elapsed() / CHECK_COUNT
    );
    let mut bytes = *present.as_bytes();
    let start = Instant::now();
    let mut found_count = 0_u32;
    for number in 0..CHECK_COUNT {
        bytes[..4].copy_from_slice(&number.wrapping_mul(0x9e37_79b9).to_le_bytes());
        let hash_part = samovar_nix::HashPart::from_bytes(bytes);
        found_count += u32::from(snapshot.may_contain(&hash_part));
    }
    println!(
        "miss: {:?} each, {found_count} found",
        start.elapsed() / CHECK_COUNT
    );
    let start = Instant::now();
    const LOOKUP_COUNT: u32 = 20_000;
    for number in 0..LOOKUP_COUNT {
        bytes[..4].copy_from_slice(&number.wrapping_mul(0x9e37_79b9).to_le_bytes());
        store.lookup(samovar_nix::HashPart::from_bytes(bytes))?;
    }
    println!(
        "lookup of an absent path: {:?} each",
        start.elapsed() / LOOKUP_COUNT
    );
    Ok(())
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Result<Duration, Failure> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds = text
        .split(' ')
        .next()
        .ok_or("schedstat is empty")?
        .parse()?;
    Ok(Duration::from_nanos(nanoseconds))
}
