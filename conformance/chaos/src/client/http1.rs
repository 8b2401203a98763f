//! HTTP/1.1 clients: fast, slow, and those that abort.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rustls::ClientConfig;

use super::anything;
use super::connection::{Connection, Manner, NARROW, narrow, silent};
use crate::ask::{Ask, End, What};
use crate::oracle::check;
use crate::world::{Facts, World, lock};
use testkit::random::SplitMix64;

/// The behaviour of a client on one connection.
#[derive(Debug, Clone, Copy)]
enum Habit {
    /// Sends each request after the previous response.
    Polite,
    /// Sends several requests at once.
    Pipelined,
    /// Sends its request byte by byte.
    Dripping,
    /// Aborts in the middle of a request or of a response.
    Leaving,
    /// Reads the response slowly.
    Slow,
    /// Resumes an interrupted download.
    Resuming,
}

/// All habits, and their relative frequencies.
const HABITS: [(Habit, u64); 6] = [
    (Habit::Polite, 50),
    (Habit::Pipelined, 20),
    (Habit::Dripping, 6),
    (Habit::Leaving, 10),
    (Habit::Slow, 4),
    (Habit::Resuming, 10),
];

/// Sends random requests with random habits until the run ends.
pub(crate) fn run(world: &World, name: &str, tls: Option<&Arc<ClientConfig>>) -> Result<()> {
    let mut random = SplitMix64::for_actor(world.seed, name);
    while world.goes_on() {
        let habit = random.weighted(&HABITS.map(|(_, weight)| weight));
        let habit = HABITS[habit].0;
        let sent = world.now();
        match connect(world, tls) {
            Ok(connection) => with_habit(world, &mut random, connection, habit),
            Err(error) => {
                let outcome = silent(world, "connect", sent, &error);
                check(world, &Ask::of(What::Info), &outcome);
                world.pause(20);
            }
        }
    }
    Ok(())
}

pub(crate) fn connect(world: &World, tls: Option<&Arc<ClientConfig>>) -> io::Result<Connection> {
    let addresses = *lock(&world.addresses);
    let address = match tls {
        None => addresses.plain,
        Some(_) => addresses.tls,
    };
    let address = address.ok_or_else(|| io::Error::other("no address"))?;
    let began = world.now();
    let stream = TcpStream::connect(address)?;
    match tls {
        None => Connection::over(stream, "HTTP/1.1"),
        Some(config) => Connection::tls(world, stream, began, config),
    }
}

fn with_habit(world: &World, random: &mut SplitMix64, mut connection: Connection, habit: Habit) {
    match habit {
        Habit::Polite => {
            let count = 1 + random.index(60);
            for _ in 0..count {
                let ask = anything(world, random);
                if !world.goes_on() || !connection.exchange(world, &ask, Manner::default()).1 {
                    return;
                }
            }
        }
        Habit::Pipelined => {
            let asks: Vec<Ask> = (0..2 + random.index(30))
                .map(|_| anything(world, random))
                .collect();
            connection.pipeline(world, &asks, None);
        }
        Habit::Dripping => dripping(world, random, &mut connection),
        Habit::Leaving => leaving(world, random, &mut connection),
        Habit::Slow => {
            let manner = Manner {
                pace: Some((4096, Duration::from_millis(1 + random.next() % 5))),
                ..Manner::default()
            };
            connection.exchange(world, &anything(world, random), manner);
        }
        Habit::Resuming => resuming(world, random, connection),
    }
}

fn dripping(world: &World, random: &mut SplitMix64, connection: &mut Connection) {
    let ask = anything(world, random);
    let bytes = ask.bytes();
    // Send the rest of a long request at once; byte by byte it would take a minute.
    let dripping_len = bytes.len().min(120);
    let sent = world.now();
    let pieces = bytes[..dripping_len]
        .chunks(1)
        .chain([&bytes[dripping_len..]]);
    for piece in pieces {
        if let Err(error) = connection.send(piece) {
            check(world, &ask, &silent(world, "sending", sent, &error));
            return;
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    let (outcome, _) = connection.answer(world, &ask, sent, Manner::default());
    check(world, &ask, &outcome);
}

fn leaving(world: &World, random: &mut SplitMix64, connection: &mut Connection) {
    let ask = anything(world, random);
    let bytes = ask.bytes();
    if random.percent(40) {
        let len = random.index(bytes.len());
        // An incomplete request has no response to check.
        drop(connection.send(&bytes[..len]));
        world.count("left in a request");
        return;
    }
    let leave_at = 1 + random.index(1_000_000);
    let manner = Manner {
        leave_at: Some(leave_at),
        ..Manner::default()
    };
    connection.exchange(world, &ask, manner);
}

/// Downloads a NAR with interruptions, and resumes it by ranges.
fn resuming(world: &World, random: &mut SplitMix64, mut connection: Connection) {
    let paths = world.all();
    let facts = Arc::clone(&paths[random.index(paths.len())]);
    let Some(version) = facts.latest() else {
        return;
    };
    let what = What::Nar(facts, Some(version.nar_hash.clone()));
    let mut ask = Ask::of(what);
    let mut have = 0;
    while have < version.nar.len() && world.goes_on() {
        let manner = Manner {
            leave_at: random
                .percent(70)
                .then(|| 1 + random.index(version.nar.len())),
            ..Manner::default()
        };
        let (outcome, _) = connection.exchange(world, &ask, manner);
        if !matches!(outcome.status, 200 | 206) {
            return;
        }
        have += outcome.body.len();
        if outcome.end == End::Whole {
            return;
        }
        world.count("resumed");
        ask.range = Some((have as u64, None));
        match connect(world, None) {
            Ok(next) => connection = next,
            Err(_) => return,
        }
    }
}

/// Reads NARs of twins so slowly that they change during the download.
pub(crate) fn run_slow(world: &World, name: &str, twins: &[Arc<Facts>]) -> Result<()> {
    let mut random = SplitMix64::for_actor(world.seed, name);
    while world.goes_on() {
        // Numbers beyond the last twin select the first one, whose NAR is the longest, so that it
        // is requested most often.
        let number = random.index(2 * twins.len());
        let facts = Arc::clone(twins.get(number).unwrap_or(&twins[0]));
        let mut ask = Ask::of(What::Nar(facts, None));
        if random.percent(10) {
            ask.range = Some((random.between(0, 1_000_000), None));
        }
        let manner = Manner {
            pace: Some((8192, Duration::from_micros(500 + random.next() % 2000))),
            is_quick_at_last: random.percent(60),
            leave_at: None,
        };
        let Some(address) = lock(&world.addresses).plain else {
            continue;
        };
        let sent = world.now();
        match narrow(address).and_then(|stream| Connection::over(stream, NARROW)) {
            Ok(mut connection) => {
                connection.exchange(world, &ask, manner);
            }
            Err(error) => {
                check(world, &ask, &silent(world, "connect", sent, &error));
                world.pause(20);
            }
        }
        world.pause(20);
    }
    Ok(())
}
