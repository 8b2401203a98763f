//! Upstreams that do not answer.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Scene;
use super::walk;
use crate::goals::{Figures, row};
use crate::http::Client;
use crate::rows;
use crate::store::hash_part;

/// Number of misses before the upstream counts as down.
const BEFORE_COUNT: usize = 3;

/// Number of misses that are measured after that.
const AFTER_COUNT: usize = 50;

/// Measures misses, and narinfos of the server's own store beside them.
pub(super) fn measure(scene: &Scene<'_>, figures: &mut Figures) -> Result<()> {
    for (upstream, names) in [
        (
            refusing()?,
            [
                "upstream that refuses connections: slowest of the first 3 misses",
                "upstream that refuses connections: slowest of 50 later misses",
            ],
        ),
        (
            silent()?,
            [
                "silent upstream: slowest of the first 3 misses",
                "silent upstream: slowest of 50 later misses",
            ],
        ),
        (
            slow()?,
            [
                "upstream of 1 byte/s: slowest of the first 3 misses",
                "upstream of 1 byte/s: slowest of 50 later misses",
            ],
        ),
    ] {
        let relay = scene.stand.relay(upstream, "")?;
        let mut client = Client::new(relay.address);
        let mut miss = |number: usize| -> Result<f64> {
            let target = format!("/{number:0>32}.narinfo");
            let started = Instant::now();
            let answer = client.get(&target, |_| ())?;
            anyhow::ensure!(answer.status == 404, "{target} gets {}", answer.status);
            Ok(rows::millis(started.elapsed()))
        };
        let mut slowest = |range: std::ops::Range<usize>| -> Result<f64> {
            range
                .map(&mut miss)
                .try_fold(0.0_f64, |most, time| Ok(most.max(time?)))
        };
        let first = slowest(0..BEFORE_COUNT)?;
        figures.add(row("faults", names[0], "ms").at_most(2050.0), "", first);
        let later = slowest(BEFORE_COUNT..BEFORE_COUNT + AFTER_COUNT)?;
        figures.add(row("faults", names[1], "ms").at_most(5.0), "", later);
        let mut hits = Client::new(relay.address);
        let name = hash_part(&scene.stand.local);
        walk::narinfo(&mut hits, name)?;
        let started = Instant::now();
        for _ in 0..1000 {
            walk::narinfo(&mut hits, name)?;
        }
        let name = "narinfo of the own store meanwhile";
        let time = started.elapsed().as_secs_f64() * 1e3;
        figures.add(row("faults", name, "µs"), "", time);
    }
    Ok(())
}

/// Returns an address at which nothing listens.
fn refusing() -> Result<SocketAddr> {
    Ok(SocketAddr::from((
        Ipv4Addr::LOCALHOST,
        testkit::free_port(),
    )))
}

/// Starts a server that accepts connections and sends nothing.
fn silent() -> Result<SocketAddr> {
    serving(|_| ())
}

/// Starts a server that sends a response, one byte each second.
fn slow() -> Result<SocketAddr> {
    serving(|stream| {
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nStorePath: /nix/store/";
        for byte in response {
            if stream.write_all(&[*byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_secs(1));
        }
    })
}

/// Starts a server that treats each connection so, and then keeps it. It runs until this process
/// ends.
fn serving(treat: fn(&mut std::net::TcpStream)) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming().flatten() {
            if let Ok(mut stream) = stream.try_clone() {
                thread::spawn(move || treat(&mut stream));
            }
            kept.push(stream);
        }
    });
    Ok(address)
}
