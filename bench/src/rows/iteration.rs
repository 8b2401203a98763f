//! The four rows of nix-serve-ng's README, and a fifth one, as its benchmark defines them: one
//! connection, one request at a time; the URL of each NAR is taken from its narinfo.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Bench, first_of, micros, millis, narinfo_target};
use crate::figures::{Gap, Quantity, Values, failed, to_f64};
use crate::http::Client;
use crate::process::{Server, on_one_core};

/// Number of requests for NARs, or narinfos, in one iteration.
const REPEATS: usize = 10;

/// Requests of one iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Iteration {
    PresentNarinfos,
    AbsentNarinfo,
    EmptyNars,
    BigNars,
    MixedNars,
}

impl Iteration {
    pub(super) const ALL: [Self; 5] = [
        Self::PresentNarinfos,
        Self::AbsentNarinfo,
        Self::EmptyNars,
        Self::BigNars,
        Self::MixedNars,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::PresentNarinfos => "fetch present NAR info ×10",
            Self::AbsentNarinfo => "fetch absent NAR info ×1",
            Self::EmptyNars => "fetch empty NAR ×10",
            Self::BigNars => "fetch 10 MB NAR ×10",
            Self::MixedNars => "fetch NARs of mixed sizes ×10",
        }
    }
}

impl Bench<'_> {
    pub(super) fn iteration(&self, what: Iteration, server: &Server) -> Result<Values, Gap> {
        let needs_mixed = matches!(what, Iteration::PresentNarinfos | Iteration::MixedNars);
        if needs_mixed && self.store.mixed.is_empty() {
            return Err(Gap::NotAsked("the store names no mixed files".into()));
        }
        failed(on_one_core(server, || self.iterations(what, server)))
    }

    fn iterations(&self, what: Iteration, server: &Server) -> Result<Values> {
        let mut client = Client::new(server.address);
        self.iterate(what, &mut client)?;
        let mut times: Vec<Duration> = Vec::new();
        let before = server.cpu();
        let started = Instant::now();
        while times.len() < 3 || started.elapsed().as_secs_f64() < self.seconds {
            let asked = Instant::now();
            self.iterate(what, &mut client)?;
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

    fn iterate(&self, what: Iteration, client: &mut Client) -> Result<()> {
        let store = self.store;
        match what {
            Iteration::PresentNarinfos => {
                for path in &store.mixed {
                    narinfo(client, path)?;
                }
            }
            Iteration::AbsentNarinfo => {
                let target = first_of(&self.absent)?;
                let answer = client.get(target, |_| ())?;
                if answer.status != 404 {
                    bail!("{target}: status {}", answer.status);
                }
            }
            Iteration::EmptyNars | Iteration::BigNars => {
                let path = if what == Iteration::EmptyNars {
                    &store.empty
                } else {
                    &store.big
                };
                for _ in 0..REPEATS {
                    self.nar(client, path)?;
                }
            }
            Iteration::MixedNars => {
                for path in &store.mixed {
                    self.nar(client, path)?;
                }
            }
        }
        Ok(())
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
