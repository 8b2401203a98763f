//! `samovar push`: uploads paths of the local store to a binary cache.
//!
//! The requests are those of a stock Nix client, over many connections, so any HTTP cache that
//! takes PUT will do. Which paths the cache lacks is found by a bulk query if the server supports
//! that.
//!
//! # Modules
//!
//! * `options`: the command line. `credentials`: tokens and logins.
//! * `closure`: selects the paths. `upload`: compresses and sends them. `ledger`: their states.
//! * `exec`, `watch`, `spool`: other sources of paths than the command line.
//! * `progress`, `report`: the output.

mod cache_dir;
mod closure;
mod credentials;
mod exec;
mod ledger;
mod options;
mod progress;
mod report;
mod spool;
mod upload;
mod watch;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use clap::ArgMatches;
use samovar_nix::{HashPart, PathInfo};
use samovar_store::Store;

use crate::cache::{Cache, INFO_PATH};
use crate::http::{Http, Patience, refusal};
use crate::outcome::Outcome;
use crate::roots::{self, Root};
use closure::{Paths, Selection};
use ledger::Summary;
use options::{Options, Source};
use progress::{Progress, eprint};
use report::Report;
use upload::{Compressing, Upload};

pub(crate) use options::command;

/// Bounds of the pause before a push is repeated.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// Pushes the paths that the command line selects.
///
/// # Errors
///
/// The store or the cache is unavailable, or `out` cannot be written.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let options = Options::of(matches)?;
    let mut pusher = Pusher::new(&options)?;
    let (code, report) = match &options.source {
        Source::Watch => return watch::run(&mut pusher, &options, out),
        Source::Paths(words) => {
            let roots = roots::read(words, pusher.store.store_dir(), io::stdin().lock())?;
            (None, pusher.push_roots(&roots)?)
        }
        Source::Command(words) => exec::run(&mut pusher, words, options.with_substituted)?,
        Source::Spool(dir) => (None, spool::drain(&mut pusher, dir)?),
    };
    report.print(out, options.is_json)?;
    Ok(code.unwrap_or_else(|| report.outcome().code()))
}

/// Pushes paths of one store to one cache.
struct Pusher {
    store: Box<dyn Store>,
    /// The cache, without `/upload`.
    http: Http,
    selection: Selection,
    is_dry: bool,
    compressing: Compressing,
    /// The cache that is queried and written, once it is open.
    cache: Option<Cache>,
}

impl Pusher {
    fn new(options: &Options) -> anyhow::Result<Self> {
        let settings = samovar_store::Settings::from_process()?;
        let store = samovar_store::open(options.store.as_deref(), &settings)?;
        let mut remote = options.remote.clone();
        options.credentials.authorize(&mut remote)?;
        Ok(Self {
            store,
            http: Http::new(remote, Patience::UPLOAD)?,
            selection: options.selection.clone(),
            is_dry: options.is_dry,
            compressing: options.compressing,
            cache: None,
        })
    }

    /// Pushes paths that must be in the store.
    fn push_roots(&mut self, roots: &[Root]) -> anyhow::Result<Report> {
        let hash_parts: Vec<HashPart> = roots.iter().map(|root| root.hash_part).collect();
        let paths = self.find(&hash_parts)?;
        if let Some(absent) = paths.absent.first() {
            let root = roots.iter().find(|root| root.hash_part == *absent);
            let text = root.map_or_else(|| absent.to_string(), |root| root.text.clone());
            bail!("{text} is not in the store: build it first, or correct the path");
        }
        self.push(&paths)
    }

    /// Finds paths in the store, with their closures, as the command line selects them.
    fn find(&self, roots: &[HashPart]) -> anyhow::Result<Paths> {
        Paths::find(&*self.store, roots, &self.selection)
    }

    /// Pushes paths of the store; returns the absent ones, too. Waits while the cache or the store is
    /// unavailable; the pauses double after each failed attempt.
    fn push_persistently(
        &mut self,
        roots: &[HashPart],
        attempt_count_max: u32,
    ) -> anyhow::Result<(Report, Vec<HashPart>)> {
        let mut pause = PAUSE_MIN;
        let mut attempt = 1;
        loop {
            let paths = self.find(roots);
            let pushed = paths.and_then(|paths| Ok((self.push(&paths)?, paths.absent)));
            let error = match pushed {
                Err(error) if attempt < attempt_count_max => error,
                last => return last,
            };
            let pause_now = pause.mul_f64(1.0 + fastrand::f64() / 4.0);
            let error = crate::without_logins(&format!("{error:#}"));
            eprint(&format!(
                "{error}; trying again in {} s",
                pause_now.as_secs()
            ));
            std::thread::sleep(pause_now);
            pause = (pause * 2).min(PAUSE_MAX);
            attempt += 1;
        }
    }

    /// Pushes paths, or in a dry run only finds out which ones the cache lacks.
    fn push(&mut self, paths: &Paths) -> anyhow::Result<Report> {
        let started_at = Instant::now();
        let mut report = Report::new(self.http.remote().url(), self.is_dry);
        report.excluded_count = paths.excluded_count;
        if !paths.infos.is_empty() {
            report.summary = self.push_missing(&paths.infos)?;
        }
        report.request_count = self.http.request_count();
        report.time = started_at.elapsed();
        Ok(report)
    }

    fn push_missing(&mut self, infos: &[PathInfo]) -> anyhow::Result<Summary> {
        let cache = match self.cache.take() {
            Some(cache) => cache,
            None => self.open()?,
        };
        let cache = self.cache.insert(cache);
        let hash_parts: Vec<HashPart> = infos.iter().map(|info| info.path.hash_part()).collect();
        let narinfos = cache.narinfos(&hash_parts)?;
        let is_missing: Vec<bool> = narinfos.iter().map(Option::is_none).collect();
        if self.is_dry {
            return Ok(self.would_push(infos, &is_missing));
        }
        let missing = infos
            .iter()
            .zip(&is_missing)
            .filter(|(_, missing)| **missing);
        let progress = Progress::start(missing.map(|(info, _)| info.nar_size).sum());
        let upload = Upload {
            http: cache.http(),
            store: &*self.store,
            infos,
            progress: &progress,
        };
        let summary = upload.push(&is_missing, self.compressing);
        progress.end();
        summary
    }

    /// Opens the cache: below `/upload` on Samovar, where only uploaded paths exist. Creates
    /// `nix-cache-info` in an empty cache of another server.
    fn open(&self) -> anyhow::Result<Cache> {
        let below = self.http.at(format!("{}/upload", self.http.remote()));
        let response = below.get(INFO_PATH)?;
        let cache = match response.status().as_u16() {
            200 => Cache::with_info(below, response)?,
            401 => bail!("the cache refused the push: {}", refusal(response)),
            _ => {
                let http = self.http.clone();
                let response = http.get(INFO_PATH)?;
                if !self.is_dry && response.status() == 404 {
                    upload::create_cache(&http, &*self.store)?;
                    Cache::with_store_dir(http, self.store.store_dir().clone())
                } else {
                    Cache::with_info(http, response)?
                }
            }
        };
        ensure!(
            cache.store_dir() == self.store.store_dir(),
            "the cache has paths in {}, this store in {}: they cannot be pushed there",
            cache.store_dir(),
            self.store.store_dir()
        );
        Ok(cache)
    }

    /// Returns the result of a dry run. Paths that would be pushed count as pushed.
    fn would_push(&self, infos: &[PathInfo], is_missing: &[bool]) -> Summary {
        let mut summary = Summary::default();
        for (info, is_missing) in infos.iter().zip(is_missing) {
            let path = info.path.full(self.store.store_dir());
            if *is_missing {
                summary.pushed.push(path);
                summary.nar_len += info.nar_size;
            } else {
                summary.present.push(path);
            }
        }
        summary
    }
}

impl Report {
    fn outcome(&self) -> Outcome {
        match self.summary.failed.is_empty() {
            true => Outcome::Complete,
            false => Outcome::Incomplete,
        }
    }
}
