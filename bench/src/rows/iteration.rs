//! The rows of nix-serve-ng's own benchmark, four of which its README shows: one connection, one
//! request at a time; the URL of each NAR is taken from its narinfo.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{Bench, micros, millis, narinfo_target};
use crate::contender::{Contender, Setting};
use crate::figures::{Gap, Quantity, Values, failed, to_f64};
use crate::http::Client;
use crate::process::{Server, on_one_core};
use crate::store::Store;

/// Number of requests for NARs or narinfos in one iteration.
const REPEATS: usize = 10;

/// Sends the requests of one iteration.
pub(super) type Iterate = fn(&Bench<'_>, &mut Client) -> Result<()>;

/// Names of the rows, each with the function that sends the requests of one iteration.
pub(super) static ITERATIONS: [(&str, Iterate); 5] = [
    ("fetch present NAR info ×10", |bench, client| {
        let mut paths = bench.store.mixed.iter();
        paths.try_for_each(|path| narinfo(client, path).map(drop))
    }),
    ("fetch absent NAR info ×1", |bench, client| {
        let target = bench.absent.first().context("there is an absent path")?;
        let answer = client.get(target, |_| ())?;
        ensure!(answer.status == 404, "{target}: status {}", answer.status);
        Ok(())
    }),
    ("fetch empty NAR ×10", |bench, client| {
        (0..REPEATS).try_for_each(|_| nar(bench.store, client, &bench.store.empty))
    }),
    ("fetch 10 MB NAR ×10", |bench, client| {
        (0..REPEATS).try_for_each(|_| nar(bench.store, client, &bench.store.big))
    }),
    ("fetch NARs of mixed sizes ×10", |bench, client| {
        let mut paths = bench.store.mixed.iter();
        paths.try_for_each(|path| nar(bench.store, client, path))
    }),
];

pub(super) fn measure(
    bench: &Bench<'_>,
    iterate: Iterate,
    contender: &Contender,
) -> Result<Values, Gap> {
    let server = &contender.standing(Setting::Plain)?.server;
    failed(on_one_core(server, || iterations(bench, iterate, server)))
}

fn iterations(bench: &Bench<'_>, iterate: Iterate, server: &Server) -> Result<Values> {
    let mut client = Client::new(server.address);
    iterate(bench, &mut client)?;
    let mut times: Vec<Duration> = Vec::new();
    let before = server.cpu();
    let started = Instant::now();
    while times.len() < 3 || started.elapsed().as_secs_f64() < bench.seconds {
        let asked = Instant::now();
        iterate(bench, &mut client)?;
        times.push(asked.elapsed());
    }
    let cpu = server.cpu().saturating_sub(before);
    let count = times.len() as u64;
    times.sort();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    Ok(Values::from([
        (Quantity::WallMs, millis(median)),
        (Quantity::ServerCpuUs, micros(cpu) / to_f64(count)),
    ]))
}

fn nar(store: &Store, client: &mut Client, path: &str) -> Result<()> {
    let narinfo = narinfo(client, path)?;
    let url = narinfo
        .split(|&byte| byte == b'\n')
        .find_map(|line| line.strip_prefix(b"URL: "))
        .context("a narinfo without a URL")?;
    let url = format!("/{}", std::str::from_utf8(url)?);
    let answer = client.get(&url, |_| ())?;
    let nar_size = store.info(path)?.nar_size;
    if answer.status != 200 || answer.body_len != nar_size {
        bail!(
            "{url}: status {}, {} of {nar_size} bytes",
            answer.status,
            answer.body_len
        );
    }
    Ok(())
}

fn narinfo(client: &mut Client, path: &str) -> Result<Vec<u8>> {
    let mut body = Vec::with_capacity(1000);
    let target = narinfo_target(path);
    let answer = client.get(&target, |piece| body.extend_from_slice(piece))?;
    if answer.status != 200 {
        bail!("{target}: status {}", answer.status);
    }
    Ok(body)
}
