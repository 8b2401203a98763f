//! The real Nix daemon, through which the server takes GC leases, and clients that rely on leases.
//!
//! Leases can be observed: each daemon worker process writes its temporary roots to a file. A store
//! path listed there must survive until its download ends, unless a fault was injected into the
//! daemon or the server.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::ask::{Ask, End, Outcome, What};
use crate::client::connection::{Connection, Manner, NARROW, narrow};
use crate::store::Store;
use crate::timeline::Moment;
use crate::world::{Cause, Facts, World, lock, seconds};
use testkit::nix::Daemon;
use testkit::process::signal_if_alive;
use testkit::procfs;
use testkit::random::SplitMix64;
use testkit::wait::holds_within;

/// Minimum lease time given to the server, in seconds.
pub(crate) const LEASE_SECONDS: &str = "1";
/// [`LEASE_SECONDS`] in microseconds, less a margin for a loaded machine.
const LEASE_TIME: Moment = 900_000;

/// Time after which the lock of the database has no owner: no Nix process needs it that long.
const LOCK_TIME_MAX: Duration = Duration::from_secs(20);

/// Causes that excuse the server if a lease is lost or cannot be obtained.
const EXCUSES: [Cause; 6] = [
    Cause::NoDaemon,
    Cause::Down,
    Cause::Stopping,
    Cause::FewDescriptors,
    Cause::Unreadable,
    Cause::Replaced,
];

/// PID of the running daemon; 0 while there is none.
#[derive(Debug, Default)]
pub(crate) struct Present(AtomicU32);

impl Present {
    /// Returns the daemon's worker processes, one per connection.
    fn children(&self) -> Vec<Pid> {
        let children = procfs::children(self.0.load(Ordering::Relaxed)).into_iter();
        children
            .filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
            .collect()
    }

    /// Returns whether a worker process has `store_path` among its temporary roots.
    fn has_root(&self, store: &Store, store_path: &str) -> bool {
        let folder = store.root.join("nix/var/nix/temproots");
        self.children().into_iter().any(|pid| {
            let roots = fs::read(folder.join(pid.as_raw_nonzero().to_string())).unwrap_or_default();
            let mut roots = roots.split(|byte| *byte == 0);
            roots.any(|root| root == store_path.as_bytes())
        })
    }

    fn signal_children(&self, signal: Signal) -> Vec<Pid> {
        let children = self.children();
        for child in &children {
            // The signal fails if the process has exited already.
            kill_process(*child, signal).ok();
        }
        children
    }
}

/// Starts a daemon on the socket that the server uses.
fn start(store: &Store, present: &Present) -> Result<Daemon> {
    let socket = store.root.join("nix/var/nix/daemon-socket/socket");
    fs::create_dir_all(socket.parent().context("it lies in a folder")?)?;
    let mut command = store.nix("nix-daemon");
    command
        .env("NIX_REMOTE", format!("local?root={}", store.root.display()))
        .env("NIX_DAEMON_SOCKET_PATH", &socket);
    let daemon = Daemon::listening(&mut command, &socket);
    present.0.store(daemon.pid(), Ordering::Relaxed);
    Ok(daemon)
}

/// Ends the daemon and its workers.
fn end(daemon: Daemon, present: &Present) {
    // Stop the daemon (SIGSTOP) before its workers are killed, so that it forks no further workers.
    signal_if_alive(&[daemon.pid()], "STOP");
    let children = present.signal_children(Signal::KILL);
    present.0.store(0, Ordering::Relaxed);
    drop(daemon);
    for child in children {
        // Orphaned workers are re-parented to this process (a child subreaper), unless the daemon
        // has reaped them before.
        waitpid(Some(child), WaitOptions::empty()).ok();
    }
}

/// Removes the lock of the database if its owner was killed. With a rollback journal, Nix locks the
/// database by a directory, for which all other Nix processes would wait for ever.
fn remove_stale_lock(store: &Store) {
    let lock = store.root.join("nix/var/nix/db/db.sqlite.lock");
    let taken_at = || {
        let metadata = fs::metadata(&lock).ok()?;
        Some((metadata.ctime(), metadata.ctime_nsec()))
    };
    let before = taken_at();
    if before.is_some() && !holds_within(LOCK_TIME_MAX, || taken_at() != before) {
        fs::remove_dir(&lock).ok();
    }
}

/// Starts a daemon, injects faults and ends it, repeatedly until the run ends.
pub(crate) fn run(world: &World, store: &Store, present: &Present) -> Result<()> {
    let mut random = SplitMix64::for_actor(world.seed, "daemon");
    world.begin(Cause::NoDaemon);
    while world.goes_on() {
        // Faults that remove or replace the database wait while a daemon runs, so this pause gives
        // them time.
        world.pause(random.between(2000, 5000));
        let alone = lock(&world.database_opens);
        let daemon = start(store, present)?;
        world.end(Cause::NoDaemon);
        world.count("daemon");
        for _ in 0..random.between(2, 6) {
            world.pause(random.between(800, 2000));
            harm(world, store, present, &mut random);
        }
        world.begin(Cause::NoDaemon);
        end(daemon, present);
        remove_stale_lock(store);
        drop(alone);
    }
    world.end(Cause::NoDaemon);
    Ok(())
}

fn harm(world: &World, store: &Store, present: &Present, random: &mut SplitMix64) {
    match random.weighted(&[15, 40, 45]) {
        0 => {
            world.cause(Cause::NoDaemon, || present.signal_children(Signal::KILL));
            remove_stale_lock(store);
            world.count("daemon's processes killed");
        }
        1 => {
            // A stopped worker process keeps its temporary roots. So this fault excuses no lost
            // lease.
            world.note("the daemon's processes are stopped");
            let stopped = present.signal_children(Signal::STOP);
            world.pause(random.between(50, 700));
            for child in stopped {
                kill_process(child, Signal::CONT).ok();
            }
            world.note("the daemon's processes continue");
            world.count("daemon's processes stopped");
        }
        _ => {}
    }
}

/// Requests narinfos of paths that are deleted all the time. A moment later, it requests their NARs
/// and reads them slowly. Runs until the run ends.
pub(crate) fn run_client(
    world: &World,
    store: &Store,
    present: &Present,
    name: &str,
    twins: &[Arc<Facts>],
) -> Result<()> {
    let mut random = SplitMix64::for_actor(world.seed, name);
    while world.goes_on() {
        world.pause(random.between(10, 100));
        // Numbers beyond the last path select the first one, whose NAR is the longest, so that it
        // is requested most often.
        let number = random.index(2 * twins.len());
        let facts = twins.get(number).unwrap_or(&twins[0]);
        let Some(address) = lock(&world.addresses).plain else {
            continue;
        };
        // Ignore a failed connection: other clients check those.
        if let Ok(stream) = narrow(address) {
            rely(world, store, present, &mut random, (stream, facts))?;
        }
    }
    Ok(())
}

fn rely(
    world: &World,
    store: &Store,
    present: &Present,
    random: &mut SplitMix64,
    (stream, facts): (TcpStream, &Arc<Facts>),
) -> io::Result<()> {
    let mut connection = Connection::over(stream, NARROW)?;
    let ask = Ask::of(What::Narinfo(Arc::clone(facts)));
    let narinfo = connection.exchange(world, &ask, Manner::default()).0;
    if narinfo.status != 200 || narinfo.end != End::Whole {
        return Ok(());
    }
    if !present.has_root(store, &facts.store_path) {
        world.count("narinfo sent, path not leased");
        return Ok(());
    }
    // Nix acknowledges the root of a path in deletion too, after the deletion. So only a narinfo
    // that is requested after the acknowledgment shows that the path is registered and leased.
    let leased_at = world.now();
    let narinfo = connection.exchange(world, &ask, Manner::default()).0;
    if narinfo.status != 200 || narinfo.end != End::Whole {
        world.count("root acknowledged, path deleted");
        return Ok(());
    }
    world.pause(random.between(0, 600));
    let text = String::from_utf8_lossy(&narinfo.body).into_owned();
    let hash = text.split_once("NarHash: sha256:");
    let hash = hash.and_then(|(_, rest)| rest.lines().next());
    let ask = Ask::of(What::Nar(Arc::clone(facts), hash.map(str::to_owned)));
    let manner = Manner {
        pace: Some((8192, Duration::from_micros(200 + random.next() % 1000))),
        ..Manner::default()
    };
    let nar = connection.exchange(world, &ask, manner).0;
    judge(world, facts, narinfo.sent, leased_at, &nar);
    Ok(())
}

/// Checks that a leased path is sent completely, even if it is deleted meanwhile.
fn judge(world: &World, facts: &Facts, announced: Moment, leased_at: Moment, nar: &Outcome) {
    let is_late = nar.sent.saturating_sub(announced) > LEASE_TIME
        || nar.head_at.saturating_sub(announced) > LEASE_TIME;
    if is_late {
        world.count("leased, requested too late");
        return;
    }
    // The observed lease proves that earlier faults were over, hence no slack for them. An upgrade
    // keeps its slack: the lease may belong to the predecessor process.
    let was_harmed = world.had_within(&EXCUSES, leased_at, nar.end_at, 0)
        || world.had(&[Cause::Upgrading], leased_at, nar.end_at);
    if was_harmed || world.may_be_unsure() {
        world.count("leased, disturbed by a fault");
        return;
    }
    if nar.status != 200 || nar.end != End::Whole {
        world.finding(format_args!(
            "a path leased from {:.6} on was not sent completely: {} {:?}, sent {:.6}, end {:.6}{}",
            seconds(leased_at),
            nar.status,
            nar.end,
            seconds(nar.sent),
            seconds(nar.end_at),
            facts.history()
        ));
    }
    world.count("leased, sent completely");
    if lock(&facts.registered).change_count(leased_at, nar.end_at) > 0 {
        world.count("leased, sent completely during a deletion");
    }
}
