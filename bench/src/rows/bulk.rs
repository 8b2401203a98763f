//! Measures downloads of large NARs: MB per second, and CPU time per GB.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::Bench;
use crate::contender::{Contender, Setting};
use crate::figures::{Gap, Quantity, Values, failed, to_f64};
use crate::http::Client;
use crate::load::on_threads;
use crate::machine;
use crate::process::{self, Server};
use crate::store::Store;

/// Requests the NAR of `path` repeatedly, on `connections` connections.
pub(super) fn measure(
    bench: &Bench<'_>,
    contender: &Contender,
    path: &str,
    connections: usize,
    takes_zstd: bool,
) -> Result<Values, Gap> {
    let server = &contender.standing(Setting::Plain)?.server;
    failed(repeated_nar(bench, server, path, connections, takes_zstd))
}

fn repeated_nar(
    bench: &Bench<'_>,
    server: &Server,
    path: &str,
    connections: usize,
    takes_zstd: bool,
) -> Result<Values> {
    let nar_size = bench.store.info(path)?.nar_size;
    let url = &crate::check::nar_url(&mut Client::new(server.address), path)?;
    let (server_before, client_before) = (server.cpu(), process::own_cpu());
    let started = Instant::now();
    let count = on_threads(connections, || {
        let mut client = Client::new(server.address);
        if takes_zstd {
            client = client.taking_zstd();
        }
        let mut count = 0;
        let started = Instant::now();
        while count == 0 || started.elapsed().as_secs_f64() < bench.seconds {
            fetch_nar(&mut client, url, nar_size)?;
            count += 1;
        }
        Ok(count)
    })?;
    let elapsed = started.elapsed();
    let server_cpu = server.cpu().saturating_sub(server_before);
    let client_cpu = process::own_cpu().saturating_sub(client_before);
    Ok(values(count * nar_size, elapsed, server_cpu, client_cpu))
}

/// Requests the NAR of the tree from a server that has not read it before. Work that the server
/// does after the response counts, too.
pub(super) fn first_tree(bench: &Bench<'_>, contender: &Contender) -> Result<Values, Gap> {
    let running = contender.start(Setting::Plain)?;
    running.server.rest();
    failed(machine::free_pages(bench.scratch).map_err(Into::into))?;
    failed(first_nar(bench.store, &bench.store.tree, &running.server))
}

fn first_nar(store: &Store, path: &str, server: &Server) -> Result<Values> {
    let nar_size = store.info(path)?.nar_size;
    let mut client = Client::new(server.address);
    let url = crate::check::nar_url(&mut client, path)?;
    let (server_before, client_before) = (server.cpu(), process::own_cpu());
    let started = Instant::now();
    fetch_nar(&mut client, &url, nar_size)?;
    let elapsed = started.elapsed();
    let client_cpu = process::own_cpu().saturating_sub(client_before);
    server.rest();
    let server_cpu = server.cpu().saturating_sub(server_before);
    Ok(values(nar_size, elapsed, server_cpu, client_cpu))
}

fn fetch_nar(client: &mut Client, url: &str, nar_size: u64) -> Result<()> {
    let answer = client.get(url, |_| ())?;
    // A compressed body has another length. It was verified by [`crate::check`].
    if answer.status != 200 || (answer.body_len != nar_size && !answer.is_zstd) {
        bail!(
            "{url}: status {}, {} of {nar_size} bytes",
            answer.status,
            answer.body_len
        );
    }
    Ok(())
}

fn values(nar_len: u64, elapsed: Duration, server: Duration, client: Duration) -> Values {
    let gb = to_f64(nar_len) / 1e9;
    Values::from([
        (Quantity::MbPerSecond, gb * 1e3 / elapsed.as_secs_f64()),
        (Quantity::ServerCpuPerGb, server.as_secs_f64() / gb),
        (Quantity::BothCpuPerGb, (server + client).as_secs_f64() / gb),
    ])
}
