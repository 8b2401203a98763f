//! The four rows of nix-serve-ng's README, and a fifth one, as its benchmark defines them: one
//! connection, one request at a time; the URL of each NAR is taken from its narinfo.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{Bench, first_of, micros, millis, narinfo_target};
use crate::contender::{Contender, Setting};
use crate::figures::{Gap, Quantity, Values, failed, to_f64};
use crate::http::Client;
use crate::process::{Server, on_one_core};

/// Number of requests for NARs, or narinfos, in one iteration.
const REPEATS: usize = 10;

/// A row: requests that are repeated.
pub(super) struct Iteration {
    pub(super) name: &'static str,
    /// Whether the row needs the files of mixed sizes, which only the benchmark's store has.
    needs_mixed: bool,
    iterate: fn(&Bench<'_>, &mut Client) -> Result<()>,
}

pub(super) static ITERATIONS: [Iteration; 5] = [
    Iteration {
        name: "fetch present NAR info ×10",
        needs_mixed: true,
        iterate: |bench, client| {
            let mut paths = bench.store.mixed.iter();
            paths.try_for_each(|path| narinfo(client, path).map(drop))
        },
    },
    Iteration {
        name: "fetch absent NAR info ×1",
        needs_mixed: false,
        iterate: |bench, client| {
            let target = first_of(&bench.absent)?;
            let answer = client.get(target, |_| ())?;
            ensure!(answer.status == 404, "{target}: status {}", answer.status);
            Ok(())
        },
    },
    Iteration {
        name: "fetch empty NAR ×10",
        needs_mixed: false,
        iterate: |bench, client| {
            (0..REPEATS).try_for_each(|_| bench.nar(client, &bench.store.empty))
        },
    },
    Iteration {
        name: "fetch 10 MB NAR ×10",
        needs_mixed: false,
        iterate: |bench, client| (0..REPEATS).try_for_each(|_| bench.nar(client, &bench.store.big)),
    },
    Iteration {
        name: "fetch NARs of mixed sizes ×10",
        needs_mixed: true,
        iterate: |bench, client| {
            let mut paths = bench.store.mixed.iter();
            paths.try_for_each(|path| bench.nar(client, path))
        },
    },
];

impl Bench<'_> {
    pub(super) fn iteration(
        &self,
        iteration: &Iteration,
        contender: &Contender,
    ) -> Result<Values, Gap> {
        if iteration.needs_mixed && self.store.mixed.is_empty() {
            return Err(Gap::NotAsked("the store names no mixed files".into()));
        }
        let server = &contender.standing(Setting::Plain)?.server;
        failed(on_one_core(server, || self.iterations(iteration, server)))
    }

    fn iterations(&self, iteration: &Iteration, server: &Server) -> Result<Values> {
        let mut client = Client::new(server.address);
        (iteration.iterate)(self, &mut client)?;
        let mut times: Vec<Duration> = Vec::new();
        let before = server.cpu();
        let started = Instant::now();
        while times.len() < 3 || started.elapsed().as_secs_f64() < self.seconds {
            let asked = Instant::now();
            (iteration.iterate)(self, &mut client)?;
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

    fn nar(&self, client: &mut Client, path: &str) -> Result<()> {
        let narinfo = narinfo(client, path)?;
        let url = narinfo
            .split(|&byte| byte == b'\n')
            .find_map(|line| line.strip_prefix(b"URL: "))
            .context("a narinfo without a URL")?;
        let url = format!("/{}", std::str::from_utf8(url)?);
        let answer = client.get(&url, |_| ())?;
        let nar_size = self.store.info(path)?.nar_size;
        if answer.status != 200 || answer.body_len != nar_size {
            bail!(
                "{url}: status {}, {} of {nar_size} bytes",
                answer.status,
                answer.body_len
            );
        }
        Ok(())
    }
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
