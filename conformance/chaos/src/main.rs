//! Runs all clients and all faults at once against one nix-serve; an oracle checks every byte that
//! it sends.
//!
//! `samovar-chaos --server PROGRAM --seconds N [--seed S] [--out FOLDER]`
//!
//! With `--requests N`, it runs the soak instead (`soak.rs`); with `--valgrind SECONDS`, the leak
//! search (`leaks.rs`).
//!
//! Nix creates a temporary store and changes it during the run. Clients of every kind send
//! requests, while faults affect the database, the files and the server's limits, and the server is
//! reloaded, restarted, stopped or killed. All actors run concurrently. Their random decisions
//! derive from the seed; their interleaving depends on the machine, so a seed does not always
//! reproduce a finding.
//!
//! Neither the server nor the clients know the injected faults. The oracle knows the expected state
//! at each moment (`timeline.rs`, `world.rs`) and derives which responses are correct
//! (`oracle.rs`).

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "a tool that talks to its terminal, on a machine of 64 bits"
)]

mod ask;
mod changes;
mod client;
mod content;
mod control;
mod daemon;
mod ending;
mod faults;
mod leaks;
mod oracle;
mod server;
mod soak;
mod store;
mod timeline;
mod world;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::Scope;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use changes::Stock;
use client::connection::tls_config;
use control::{Authority, Pair};
use server::{Setup, Shared};
use store::Store;
use testkit::random::SplitMix64;
use world::{Cause, World};

const USAGE: &str = "\
usage: samovar-chaos --server PROGRAM [OPTION...]

Runs clients and faults at once against one nix-serve and checks every byte of every response.

  --server PROGRAM    nix-serve to test; required
  --seconds N         duration of the run (30)
  --requests N        soak instead: send N requests and watch memory and descriptors
  --valgrind SECONDS  search for leaks instead: run the server under valgrind
  --seed S            seed of the random plan (from the clock)
  --out DIR           directory for logs and reports (samovar-chaos in the temporary directory)
  --help              show this help";

/// The parsed command line.
struct Arguments {
    server: PathBuf,
    time: Duration,
    seed: u64,
    out: PathBuf,
    kind: Kind,
}

/// The kind of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Chaos,
    /// A soak, which runs until this number of requests was answered.
    Soak(u64),
    Leaks,
}

/// Time limit of a soak; never reached in practice.
const SOAK_TIME: Duration = Duration::from_secs(6 * 3600);

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "--help" || word == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
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
        kind: Kind::Chaos,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next();
        let value = value.with_context(|| format!("{word} needs a value\n\n{USAGE}"))?;
        match word.as_str() {
            "--server" => server = Some(PathBuf::from(value)),
            "--seconds" => arguments.time = Duration::from_secs(value.parse()?),
            "--requests" => {
                arguments.kind = Kind::Soak(value.parse()?);
                arguments.time = SOAK_TIME;
            }
            "--valgrind" => {
                arguments.kind = Kind::Leaks;
                arguments.time = Duration::from_secs(value.parse()?);
            }
            "--seed" => arguments.seed = value.parse()?,
            "--out" => arguments.out = PathBuf::from(value),
            _ => bail!("unknown option {word:?}\n\n{USAGE}"),
        }
    }
    arguments.server = server.with_context(|| format!("--server is required\n\n{USAGE}"))?;
    Ok(arguments)
}

/// Everything that a run needs: the expected state, the store, the server and its files.
struct Scene {
    world: World,
    store: Store,
    stock: Stock,
    server: Arc<Shared>,
    keys: Vec<Pair>,
    authority: Authority,
    /// Declared before `scratch`, and so dropped before it: the disk is unmounted before its mount
    /// point is removed.
    _disk: SmallDisk,
    scratch: tempfile::TempDir,
}

impl Scene {
    fn make(arguments: &Arguments) -> Result<Self> {
        let seed = arguments.seed;
        let has_wal =
            SplitMix64::for_actor(seed, "run").percent(70) || arguments.kind != Kind::Chaos;
        let scratch = tempfile::tempdir()?;
        let setup = Setup {
            program: arguments.server.clone(),
            wrapper: match arguments.kind {
                Kind::Leaks => leaks::wrapper(&arguments.out)?,
                _ => Vec::new(),
            },
            store: scratch.path().join("store"),
            folder: arguments.out.clone(),
            nar_cache: scratch.path().join("nar-cache"),
        };
        fs::create_dir_all(&setup.folder)?;
        fs::remove_file(setup.log()).ok();
        fs::remove_file(setup.folder.join("access")).ok();
        fs::create_dir(&setup.nar_cache)?;
        let disk = SmallDisk::mount(&setup.nar_cache);
        println!(
            "{:?} for {:?} with seed {seed}, {}, {}",
            arguments.kind,
            arguments.time,
            if has_wal { "WAL" } else { "rollback journal" },
            if disk.is_mounted {
                "a disk of 16 MB for the NAR cache"
            } else {
                "no separate disk for the NAR cache (only root can mount one)"
            }
        );
        let store = Store::new(setup.store.clone(), has_wal)?;
        let names = ["chaos-1", "chaos-2", "chaos-3"].iter();
        let keys: Result<Vec<Pair>> = names.map(|name| Pair::make(scratch.path(), name)).collect();
        let keys = keys?;
        keys[0].install(&setup)?;
        let authority = Authority::new()?;
        let certificate = authority.install(&setup, 1)?;
        let world = World::new(
            seed,
            arguments.time,
            has_wal,
            keys[0].public.clone(),
            certificate,
        );
        let stock = Stock::make(&world, &store)?;
        let server = Shared::new(setup, &world)?;
        Ok(Self {
            world,
            store,
            stock,
            server,
            keys,
            authority,
            _disk: disk,
            scratch,
        })
    }
}

/// Performs a run; returns whether it had no findings.
fn run(arguments: &Arguments) -> Result<bool> {
    // After an upgrade, the successor is re-parented to this process when its predecessor exits.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let scene = Scene::make(arguments)?;
    let world = &scene.world;
    world.begin_acting();
    match arguments.kind {
        Kind::Chaos => chaos(&scene)?,
        Kind::Soak(requests) => soak(&scene, requests, &arguments.out)?,
        Kind::Leaks => leaks(&scene)?,
    }
    world.note("the end begins");
    let ending = world::lock(&scene.server.server).ending()?;
    if let Some(status) = ending {
        world.finding(format_args!("the server has ended by itself: {status}"));
    }
    let ended = match arguments.kind {
        _ if !world.findings().is_empty() => Ok(()),
        Kind::Leaks => leaks::judge(world, &scene.server),
        _ => ending::check_all(world, &scene.server, &scene.stock),
    };
    if let Err(error) = ended {
        world.finding(format_args!("at the end: {error:#}"));
    }
    fs::write(arguments.out.join("events"), world.events())?;
    Ok(report(world, &scene.server))
}

/// Starts actors, each on a thread of its own.
struct Actors<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    world: &'env World,
}

impl<'scope, 'env> Actors<'scope, 'env> {
    fn go(&self, name: &str, actor: impl FnOnce(&str) -> Result<()> + Send + 'scope) {
        let (name, world) = (name.to_owned(), self.world);
        self.scope.spawn(move || world.act(&name, || actor(&name)));
    }

    /// Starts clients of every kind, `plain_count` of them over plain HTTP/1.1.
    fn clients(&self, plain_count: usize, authority: &Authority) -> Result<()> {
        let http1 = tls_config(&authority.der(), b"http/1.1")?;
        let http2 = tls_config(&authority.der(), b"h2")?;
        let world = self.world;
        for number in 0..plain_count {
            self.go(&format!("client {number}"), |name| {
                client::http1::run(world, name, None)
            });
        }
        self.go("client of TLS", move |name| {
            client::http1::run(world, name, Some(&http1))
        });
        self.go("client of HTTP/2 and TLS", move |name| {
            client::h2::run(world, name, Some(&http2))
        });
        self.go("client of HTTP/2", |name| {
            client::h2::run(world, name, None)
        });
        self.go("hostile client", |name| client::hostile::run(world, name));
        Ok(())
    }
}

/// Runs chaos with all actors.
fn chaos(scene: &Scene) -> Result<()> {
    let Scene {
        world,
        store,
        stock,
        server,
        keys,
        authority,
        ..
    } = scene;
    let public: Vec<&str> = keys.iter().map(|pair| pair.text.as_str()).collect();
    let public = public.join(" ");
    let trusted = scene.scratch.path().join("authority");
    fs::write(&trusted, authority.pem())?;
    let twins: Vec<_> = stock.twins.iter().map(|(facts, _)| facts.clone()).collect();
    let present = &daemon::Present::default();
    std::thread::scope(|scope| {
        let actors = Actors { scope, world };
        actors.clients(4, authority)?;
        for number in 0..3 {
            let slow = |name: &str| client::http1::run_slow(world, name, &twins);
            actors.go(&format!("slow client {number}"), slow);
            let relying = |name: &str| daemon::run_client(world, store, present, name, &twins);
            actors.go(&format!("relying client {number}"), relying);
        }
        actors.go("nix", |name| {
            client::nix::run(world, name, &public, &trusted)
        });
        actors.go("changes", |_| changes::run(world, store, stock));
        actors.go("twins", |_| changes::run_twins(world, store, stock));
        actors.go("database", |_| faults::run_database(world, store));
        actors.go("files", |_| faults::run_files(world, store, stock));
        actors.go("newborn", |_| faults::run_newborn(world, store, stock));
        actors.go("daemon", |_| daemon::run(world, store, present));
        actors.go("limits", |_| faults::run_limits(world, server));
        actors.go("control", |_| control::run(world, server, keys, authority));
        Ok(())
    })
}

/// Runs a soak: many ordinary requests while the store changes.
fn soak(scene: &Scene, requests: u64, out: &Path) -> Result<()> {
    let Scene {
        world,
        store,
        stock,
        server,
        authority,
        ..
    } = scene;
    let tls = tls_config(&authority.der(), b"http/1.1")?;
    let progress = &soak::Progress::new(requests);
    let samples = std::thread::scope(|scope| {
        let actors = Actors { scope, world };
        for number in 0..3 {
            let client = move |name: &str| soak::client(world, name, stock, progress, None);
            actors.go(&format!("client {number}"), client);
        }
        actors.go("client of TLS", |name| {
            soak::client(world, name, stock, progress, Some(&tls))
        });
        actors.go("changes", |_| changes::run(world, store, stock));
        actors.go("reload", |_| soak::reload(world, server, progress));
        soak::watch(world, server, progress)
    })?;
    let cpu = world::lock(&server.server).cpu()?;
    soak::report(world, &samples, cpu, out)
}

/// Runs the leak search: requests to all routes while the store changes. The only faults are
/// hostile clients.
fn leaks(scene: &Scene) -> Result<()> {
    let Scene {
        world,
        store,
        stock,
        server,
        authority,
        ..
    } = scene;
    let progress = &soak::Progress::new(u64::MAX);
    world.begin(Cause::Slowed);
    std::thread::scope(|scope| {
        let actors = Actors { scope, world };
        actors.clients(1, authority)?;
        actors.go("changes", |_| changes::run(world, store, stock));
        actors.go("reload", |_| soak::reload(world, server, progress));
        Ok(())
    })
}

/// Prints counts and findings; returns whether there were no findings.
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
    let mut log = server.setup.log();
    if !findings.is_empty() {
        // The next run overwrites the log.
        let kept = log.with_file_name(format!("log-{}", world.seed));
        log = fs::rename(&log, &kept).map_or(log, |()| kept);
    }
    println!(
        "chaos: {answers} responses checked, {} findings, seed {}; the server's log: {}",
        findings.len(),
        world.seed,
        log.display()
    );
    findings.is_empty()
}

/// A small disk, mounted for the NAR cache and unmounted on drop.
struct SmallDisk {
    folder: PathBuf,
    is_mounted: bool,
}

impl SmallDisk {
    /// Mounts a small disk at `folder`, if this user may mount file systems.
    fn mount(folder: &Path) -> Self {
        use rustix::mount::{MountFlags, mount};
        let size = Some(c"size=16m");
        Self {
            folder: folder.to_owned(),
            is_mounted: mount("chaos", folder, "tmpfs", MountFlags::empty(), size).is_ok(),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if self.is_mounted {
            let lazily = rustix::mount::UnmountFlags::DETACH;
            // A lazy unmount takes effect once the last open file on the disk is closed.
            rustix::mount::unmount(&self.folder, lazily).ok();
        }
    }
}
