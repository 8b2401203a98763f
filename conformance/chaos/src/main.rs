//! Everything at once against one nix-serve, and an oracle that checks every byte.
//!
//! `samovar-chaos --server PROGRAM --seconds N [--seed S] [--out FOLDER]`
//!
//! A store of its own, made and changed by the real Nix; clients of every kind; faults of its
//! database, its files and its limits; and a server that is told to reload, to end and to stand
//! still, or killed. All of that at once, by a plan that is random and made of the seed. What
//! happens in which order is up to the machine, so a seed finds the same thing again only
//! sometimes.
//!
//! Nobody tells the server what to expect, and nobody tells the clients. The oracle knows what was
//! true when (`timeline.rs`, `world.rs`), and what an answer may therefore be (`oracle.rs`).

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    reason = "a tool that talks to its terminal, on a machine of 64 bits"
)]

mod ask;
mod changes;
mod client;
mod content;
mod control;
mod ending;
mod faults;
mod oracle;
mod random;
mod server;
mod store;
mod timeline;
mod world;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::Scope;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use changes::Stock;
use client::connection::tls_config;
use control::{Authority, Pair};
use random::Random;
use server::{Setup, Shared};
use store::Store;
use world::World;

const USAGE: &str = "usage: samovar-chaos --server PROGRAM --seconds N [--seed S] [--out FOLDER]";

/// What the command line says.
struct Arguments {
    server: PathBuf,
    time: Duration,
    seed: u64,
    out: PathBuf,
}

fn main() -> ExitCode {
    match arguments().and_then(|arguments| run(&arguments)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("samovar-chaos: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Result<Arguments> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let mut server = None;
    let mut arguments = Arguments {
        server: PathBuf::new(),
        time: Duration::from_secs(30),
        seed: u64::from(now.subsec_nanos()),
        out: std::env::temp_dir().join("samovar-chaos"),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().context(USAGE)?;
        match word.as_str() {
            "--server" => server = Some(PathBuf::from(value)),
            "--seconds" => arguments.time = Duration::from_secs(value.parse()?),
            "--seed" => arguments.seed = value.parse()?,
            "--out" => arguments.out = PathBuf::from(value),
            _ => bail!(USAGE),
        }
    }
    arguments.server = server.context(USAGE)?;
    Ok(arguments)
}

/// Whether nothing was found.
fn run(arguments: &Arguments) -> Result<bool> {
    let seed = arguments.seed;
    let mut random = Random::of(seed, "run");
    let has_wal = random.percent(70);
    let scratch = tempfile::tempdir()?;
    let setup = Setup {
        program: arguments.server.clone(),
        store: scratch.path().join("store"),
        folder: arguments.out.clone(),
        kept: scratch.path().join("kept"),
    };
    fs::create_dir_all(&setup.folder)?;
    fs::remove_file(setup.log()).ok();
    fs::remove_file(setup.folder.join("access")).ok();
    fs::create_dir(&setup.kept)?;
    let disk = SmallDisk::mount(&setup)?;
    println!(
        "chaos for {:?} with seed {seed}, {}, {}",
        arguments.time,
        if has_wal { "WAL" } else { "rollback journal" },
        if disk.is_mounted {
            "a disk of 16 MB for kept NARs"
        } else {
            "no disk of their own for kept NARs (only root can mount one)"
        }
    );
    let store = Store::new(setup.store.clone(), has_wal)?;
    let names = ["chaos-1", "chaos-2", "chaos-3"];
    let keys: Result<Vec<Pair>> = names
        .iter()
        .map(|name| Pair::make(scratch.path(), name))
        .collect();
    let keys = keys?;
    keys[0].install(&setup)?;
    let authority = Authority::new()?;
    let certificate = authority.install(&setup, 1)?;
    let key = keys[0].public.clone();
    let world = World::new(seed, arguments.time, key, certificate);
    let stock = Stock::make(&world, &store)?;
    let server = Shared::new(setup, &world)?;
    act(
        &world,
        &store,
        &stock,
        &server,
        &keys,
        &authority,
        scratch.path(),
    )?;
    // A limit or a halt that was cut short is over now.
    world.note("the end begins");
    if world.findings().is_empty()
        && let Err(error) = ending::check_all(&world, &server, &stock)
    {
        world.finding(format_args!("at the end: {error:#}"));
    }
    drop(disk);
    Ok(report(&world, &server))
}

/// Who starts actors.
struct Actors<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    world: &'env World,
}

impl<'scope, 'env> Actors<'scope, 'env> {
    fn go(&self, name: &str, actor: impl FnOnce(&str) -> Result<()> + Send + 'scope) {
        let (name, world) = (name.to_owned(), self.world);
        self.scope.spawn(move || world.act(&name, || actor(&name)));
    }
}

/// All actors, each on a thread of its own.
fn act(
    world: &World,
    store: &Store,
    stock: &Stock,
    server: &std::sync::Arc<Shared>,
    keys: &[Pair],
    authority: &Authority,
    scratch: &std::path::Path,
) -> Result<()> {
    let public: Vec<&str> = keys.iter().map(|pair| pair.text.as_str()).collect();
    let public = public.join(" ");
    let http1 = tls_config(&authority.der(), b"http/1.1")?;
    let http2 = tls_config(&authority.der(), b"h2")?;
    let trusted = scratch.join("authority");
    fs::write(&trusted, authority.pem())?;
    let twins: Vec<_> = stock.twins.iter().map(|(facts, _)| facts.clone()).collect();
    world.begin_acting();
    std::thread::scope(|scope| {
        let actors = Actors { scope, world };
        for number in 0..4 {
            let client = |name: &str| client::http1::run(world, name, None);
            actors.go(&format!("client {number}"), client);
        }
        for number in 0..3 {
            let slow = |name: &str| client::http1::run_slow(world, name, &twins);
            actors.go(&format!("slow client {number}"), slow);
        }
        actors.go("client of TLS", |name| {
            client::http1::run(world, name, Some(&http1))
        });
        actors.go("client of HTTP/2 and TLS", |name| {
            client::h2::run(world, name, Some(&http2))
        });
        actors.go("client of HTTP/2", |name| {
            client::h2::run(world, name, None)
        });
        actors.go("hostile client", |name| client::hostile::run(world, name));
        actors.go("nix", |name| {
            client::nix::run(world, name, &public, &trusted)
        });
        actors.go("changes", |_| changes::run(world, store, stock));
        actors.go("twins", |_| changes::run_twins(world, store, stock));
        actors.go("database", |_| faults::run_database(world, store));
        actors.go("files", |_| faults::run_files(world, store, stock));
        actors.go("limits", |_| faults::run_limits(world, server));
        actors.go("control", |_| control::run(world, server, keys, authority));
    });
    Ok(())
}

/// Prints what happened and what was found; whether that was nothing.
fn report(world: &World, server: &Shared) -> bool {
    let counts = world.counts();
    let answers: u64 = counts
        .iter()
        .filter(|(name, _)| name.starts_with("by "))
        .map(|(_, count)| count)
        .sum();
    for (name, count) in &counts {
        println!("{count:9} {name}");
    }
    let findings = world.findings();
    for finding in &findings {
        println!("\nFOUND with seed {}: {finding}", world.seed);
    }
    println!(
        "chaos: {answers} answers checked, {} findings, seed {}; the server's log: {}",
        findings.len(),
        world.seed,
        server.setup.log().display()
    );
    findings.is_empty()
}

/// Taken away again when dropped.
struct SmallDisk {
    folder: PathBuf,
    is_mounted: bool,
}

impl SmallDisk {
    fn mount(setup: &Setup) -> Result<Self> {
        Ok(Self {
            folder: setup.kept.clone(),
            is_mounted: faults::small_disk(&setup.kept)?,
        })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if self.is_mounted {
            let lazily = rustix::mount::UnmountFlags::DETACH;
            // It vanishes with the last file on it.
            rustix::mount::unmount(&self.folder, lazily).ok();
        }
    }
}
