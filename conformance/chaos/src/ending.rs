//! Final checks after chaos: everything is served correctly, and the server has released its
//! resources.

use std::fs;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::ask::{Ask, End, What};
use crate::changes::Stock;
use crate::client::connection::{Connection, Manner};
use crate::server::{STOP_TIME, Server, Shared, Usage};
use crate::world::{World, lock};

/// Maximum excess of the server's resources after chaos over those of a fresh server that has
/// answered the same requests. Descriptors: one database connection for each worker that ever
/// needed one. Threads: workers that were started at peak load. Memory: freed memory that the
/// allocator retains, and caches with limits of their own.
const MORE_DESCRIPTORS: usize = 48;
const MORE_THREADS: usize = 24;
const MORE_KIB: u64 = 96 * 1024;
/// Maximum time until the server has noticed that connections were closed.
const REST_TIME: Duration = Duration::from_secs(40);

/// Requests everything once more, without faults, and compares the resources in use with those of a
/// fresh server.
pub(crate) fn check_all(world: &World, server: &Shared, stock: &Stock) -> Result<()> {
    // Wait until the last causes excuse no more failures.
    std::thread::sleep(Duration::from_secs(4));
    sweep(world, stock)?;
    let mut held = lock(&server.server);
    let fresh = server.setup.start()?;
    let addresses = std::mem::replace(&mut *lock(&world.addresses), fresh.addresses);
    sweep(world, stock)?;
    let expected = fresh.usage()?;
    drop(fresh);
    *lock(&world.addresses) = addresses;
    let found = rest(&held, expected)?;
    println!("at the end: {found:?}; a fresh server: {expected:?}");
    let is_more = found.descriptors > expected.descriptors + MORE_DESCRIPTORS
        || found.threads > expected.threads + MORE_THREADS
        || found.anonymous_kib > expected.anonymous_kib + MORE_KIB;
    if is_more {
        world.finding(format_args!(
            "resources are left: {found:?}; a fresh server uses {expected:?}"
        ));
    }
    held.wait_for_those_before()?;
    held.signal(Signal::TERM)?;
    held.wait(STOP_TIME)?;
    let log = fs::read_to_string(server.setup.log())?;
    for line in log.lines() {
        if line.contains("panicked") {
            world.finding(format_args!("in the log: {line}"));
        }
    }
    Ok(())
}

/// Waits until the server has closed its connections, at most for [`REST_TIME`]. Returns the
/// resources that it uses then.
fn rest(server: &Server, expected: Usage) -> Result<Usage> {
    let started = Instant::now();
    loop {
        let found = server.usage()?;
        let is_rest = found.descriptors <= expected.descriptors + MORE_DESCRIPTORS;
        if is_rest || started.elapsed() > REST_TIME {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Requests every path by every URL, twice, so that the second response can come from a cache.
fn sweep(world: &World, stock: &Stock) -> Result<()> {
    let address = lock(&world.addresses).plain.context("no address")?;
    let mut connection = Connection::over(TcpStream::connect(address)?, "the end")?;
    for _ in 0..2 {
        for facts in world.all().iter() {
            for what in [
                What::Narinfo(facts.clone()),
                What::Nar(facts.clone(), None),
                What::Listing(facts.clone()),
                What::Closure(facts.clone()),
            ] {
                let ask = Ask::of(what);
                let (outcome, goes_on) = connection.exchange(world, &ask, Manner::default());
                if !goes_on || outcome.end != End::Whole {
                    let stream = TcpStream::connect(address)?;
                    connection = Connection::over(stream, "the end")?;
                }
            }
        }
    }
    let all = Ask::of(What::Narinfos(stock.graph.clone()));
    connection.exchange(world, &all, Manner::default());
    Ok(())
}
