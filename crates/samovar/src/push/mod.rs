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
//! * `exec`, `spool`: other sources of paths than the command line.
//! * `progress`, `report`: the output.

mod closure;
mod credentials;
mod exec;
mod ledger;
mod options;
mod progress;
mod report;
mod spool;
mod upload;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{bail, ensure};
use clap::ArgMatches;
use samovar_nix::{HashPart, PathInfo};
use samovar_store::Store;

use crate::cache::Cache;
use crate::http::{Http, Patience, refusal};
use crate::outcome::Outcome;
use crate::roots::{self, Root};
use closure::Paths;
use ledger::Summary;
use options::{Options, Source};
use progress::Progress;
use report::Report;
use upload::{Compressing, Upload};

pub(crate) use options::command;

/// Pushes the paths that the command line selects.
///
/// # Errors
///
/// The store or the cache is unavailable, or `out` cannot be written.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let options = Options::of(matches)?;
    let mut pusher = Pusher::new(&options)?;
    let (code, report) = match &options.source {
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
    with_references: bool,
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
            with_references: options.with_references,
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

    /// Finds paths in the store, with their closures unless the command line excludes them.
    fn find(&self, roots: &[HashPart]) -> anyhow::Result<Paths> {
        Paths::find(&*self.store, roots, self.with_references)
    }

    /// Pushes paths, or in a dry run only finds out which ones the cache lacks.
    fn push(&mut self, paths: &Paths) -> anyhow::Result<Report> {
        let started_at = Instant::now();
        let mut report = Report::new(self.http.remote().url(), self.is_dry);
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
        let response = below.get("/nix-cache-info")?;
        let http = match response.status().as_u16() {
            200 => below,
            401 => bail!("the cache refused the push: {}", refusal(response)),
            _ => self.http.clone(),
        };
        if !self.is_dry && http.get("/nix-cache-info")?.status() == 404 {
            upload::create_cache(&http, &*self.store)?;
        }
        let cache = Cache::over(http)?;
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
