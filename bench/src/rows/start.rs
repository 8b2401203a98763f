//! Measures the time from exec to the first response.

use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::{Bench, millis, narinfo_target};
use crate::contender::{Contender, Running, Setting};
use crate::figures::{Gap, Quantity, Values, failed};
use crate::http::Client;

pub(super) fn measure(
    bench: &Bench<'_>,
    contender: &Contender,
    setting: Setting,
) -> Result<Values, Gap> {
    let started = Instant::now();
    let running = contender.start(setting)?;
    failed(first_answer(bench, &running, setting, started))
}

fn first_answer(
    bench: &Bench<'_>,
    running: &Running,
    setting: Setting,
    started: Instant,
) -> Result<Values> {
    let path = match (setting, bench.big_store) {
        (Setting::Big, Some(big)) => big.paths.first().context("a big store has rows")?,
        _ => &bench.store.empty,
    };
    let target = narinfo_target(path);
    let answer = Client::new(running.server.address).get(&target, |_| ())?;
    let elapsed = started.elapsed();
    if answer.status != 200 {
        bail!("{target}: status {}", answer.status);
    }
    running.server.rest();
    Ok(Values::from([
        (Quantity::WallMs, millis(elapsed)),
        (Quantity::ServerCpuMs, millis(running.server.cpu())),
    ]))
}
