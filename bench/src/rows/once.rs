//! Bulk queries: each path is requested once, on as many connections as Nix opens.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail};

use super::{Bench, micros, millis, narinfo_target};
use crate::contender::{Contender, Setting};
use crate::figures::{Gap, Quantity, Values, failed, to_f64};
use crate::http::Client;
use crate::process::Server;
use crate::store::{BigStore, hash_part};

/// Maximum number of connections that Nix opens to a server (`http-connections`).
const CONNECTIONS: usize = 25;

/// Upper bound of the length of a closure response's last line.
const TAIL_LEN: usize = 100;

/// Requests all narinfos of the store from a server that has not signed them before. A server may
/// sign in advance, so its CPU time counts from exec until it is at rest.
pub(super) fn cold_signed(bench: &Bench<'_>, contender: &Contender) -> Result<Values, Gap> {
    let running = contender.start(Setting::Signing)?;
    let asked = failed(ask_all(running.server.address, &bench.narinfos))?;
    running.server.rest();
    Ok(values(bench.narinfos.len(), asked, running.server.cpu()))
}

/// Requests the narinfos of a large closure of the big store from a server that was just started.
pub(super) fn cold_mass_query(bench: &Bench<'_>, contender: &Contender) -> Result<Values, Gap> {
    let targets = mass_targets(bench.big_store)?;
    let running = contender.start(Setting::Big)?;
    running.server.rest();
    mass_query(&running.server, &targets)
}

/// Requests the same narinfos as [`cold_mass_query`] a second time.
pub(super) fn warm_mass_query(bench: &Bench<'_>, contender: &Contender) -> Result<Values, Gap> {
    let targets = mass_targets(bench.big_store)?;
    let server = &contender.standing(Setting::Big)?.server;
    failed(ask_all(server.address, &targets))?;
    mass_query(server, &targets)
}

fn mass_targets(big_store: Option<&BigStore>) -> Result<Vec<String>, Gap> {
    let closure = big_closure(big_store)?.iter();
    Ok(closure.map(|path| narinfo_target(path)).collect())
}

/// Requests the narinfos of the same closure in one response, if the server supports it.
pub(super) fn whole_closure(bench: &Bench<'_>, contender: &Contender) -> Result<Values, Gap> {
    let closure = big_closure(bench.big_store)?;
    let server = &contender.standing(Setting::Big)?.server;
    let mut client = Client::new(server.address);
    let target = closure.last().map(|top| hash_part(top));
    let target = format!("/closure/{}", target.unwrap_or_default());
    let mut tail = Vec::new();
    let before = server.cpu();
    let started = Instant::now();
    let answer = client.get(&target, |piece| {
        tail.extend_from_slice(piece);
        tail.drain(..tail.len().saturating_sub(TAIL_LEN));
    });
    let asked = started.elapsed();
    let cpu = server.cpu().saturating_sub(before);
    let answer = failed(answer.map_err(Error::from))?;
    let end = format!("\nend {} 0 0\n", closure.len());
    if answer.status == 404 {
        Err(Gap::NotAsked(
            "does not send closures in one response".into(),
        ))
    } else if answer.status != 200 || !tail.ends_with(end.as_bytes()) {
        Err(Gap::Failed(format!("{target}: incomplete closure")))
    } else {
        Ok(values(closure.len(), asked, cpu))
    }
}

fn big_closure(big_store: Option<&BigStore>) -> Result<&[String], Gap> {
    let no = |why: &str| Gap::NotAsked(why.into());
    let big = big_store.ok_or_else(|| no("no --big-store"))?;
    if big.closure.is_empty() {
        return Err(no("the big store has no closure"));
    }
    Ok(&big.closure)
}

fn mass_query(server: &Server, targets: &[String]) -> Result<Values, Gap> {
    let before = server.cpu();
    let asked = failed(ask_all(server.address, targets))?;
    // The work that a server does ahead of the next request is part of the cost.
    server.rest();
    let cpu = server.cpu().saturating_sub(before);
    Ok(values(targets.len(), asked, cpu))
}

fn values(count: usize, asked: Duration, cpu: Duration) -> Values {
    Values::from([
        (Quantity::WallMs, millis(asked)),
        (Quantity::ServerCpuUs, micros(cpu) / to_f64(count as u64)),
    ])
}

/// Requests each target once, with one request in flight per connection; returns the time taken.
fn ask_all(address: SocketAddr, targets: &[String]) -> Result<Duration> {
    let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| Client::new(address)).collect();
    let started = Instant::now();
    for index in 0..targets.len() + CONNECTIONS {
        let client = clients
            .get_mut(index % CONNECTIONS)
            .context("one of them")?;
        let before = index.checked_sub(CONNECTIONS);
        if let Some(target) = before.and_then(|index| targets.get(index)) {
            let answer = client.receive(|_| ())?;
            if answer.status != 200 {
                bail!("{target}: status {}", answer.status);
            }
        }
        if let Some(target) = targets.get(index) {
            client.send(target)?;
        }
    }
    Ok(started.elapsed())
}
