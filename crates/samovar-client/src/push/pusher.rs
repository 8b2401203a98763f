//! [`Pusher`]: pushes paths of the local store to a cache.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use samovar_nix::{HashPart, PathInfo, StorePath};
use samovar_protocol::push::{OPEN_COUNT_MAX, Opened};
use samovar_store::{OpenError, Store, Unavailable};

use super::closure::{Paths, Selection};
use super::compress::{Compressing, StoreNars};
use super::ledger::{self, Lack, Ledger, Summary, progress_of};
use super::pin::{PinOptions, PinReport};
use super::report::Report;
use super::resume::Unfinished;
use super::session::{self, Opening, Session};
use super::stock::{self, Stock};
use crate::cache::{Cache, INFO_PATH};
use crate::credentials::Sources;
use crate::failed::Failed;
use crate::http::{Http, Patience};
use crate::notice::notice;
use crate::remote::Remote;
use crate::roots::Root;

/// Minimum and maximum pause before a failed push is repeated.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// Maximum number of sessions for the same paths, if the cache loses NARs meanwhile.
const ROUND_COUNT_MAX: usize = 3;

/// Returns whether the login of `http` gives the right to push to the cache at its URL. Returns
/// `None` if the server does not support the push protocol.
///
/// # Errors
///
/// The server cannot be reached, or refuses the login.
pub fn may_push(http: &Http) -> anyhow::Result<Option<bool>> {
    let http = session::client(&http.at(format!("{}/upload", http.remote())));
    Ok(match session::open_as("the token", &http, &[])? {
        Opening::Opened(opened, _) => {
            session::end(&http, &opened);
            Some(true)
        }
        Opening::NotPermitted(_) => Some(false),
        Opening::Unsupported => None,
    })
}

/// Fails if the login gives no right to push. `below`: client for the URL below which uploads are.
fn may_push_below(below: &Http) -> anyhow::Result<()> {
    let http = session::client(below);
    match session::open(&http, &[])? {
        Opening::Opened(opened, _) => session::end(&http, &opened),
        Opening::NotPermitted(error) => return Err(error),
        Opening::Unsupported => {}
    }
    Ok(())
}

/// Returns the error of opening the store. If the store does not exist, it names the option.
fn cannot_open(error: OpenError) -> anyhow::Error {
    match error {
        OpenError::Unavailable {
            database,
            socket,
            reason: Unavailable::DatabaseMissing,
            ..
        } => anyhow!(
            "the Nix database {database:?} does not exist, and no nix-daemon answers at \
             {socket:?}: name the store that has the paths by --store"
        ),
        error => error.into(),
    }
}

/// The settings of pushes to one cache.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The URL of the cache, without `/upload`.
    pub remote: Remote,
    /// URI of the store that has the paths. `None`: the store that Nix uses.
    pub store: Option<String>,
    /// Which paths of the closures are pushed.
    pub selection: Selection,
    /// Whether only to find out which paths the cache lacks.
    pub is_dry: bool,
    /// The compression of the NARs.
    pub compressing: Compressing,
}

/// Pushes paths of one store to one cache, in one or several pushes.
#[derive(Debug)]
pub struct Pusher {
    store: Box<dyn Store>,
    /// Client for the URL of the cache, without `/upload`.
    http: Http,
    settings: Settings,
    /// The opened cache. `None` until the first push.
    target: Option<Target>,
}

/// A cache that paths are pushed to.
#[derive(Debug)]
struct Target {
    /// Client for the URL to which stock Nix clients push.
    cache: Cache,
    /// Client for the URLs of the push protocol. `None` if the server does not support the
    /// protocol.
    protocol: Option<Http>,
    /// Client for the URL below which paths can be pinned. `None` if the server is not Samovar.
    pins: Option<Http>,
}

impl Pusher {
    /// Opens the store. The cache is opened by the first push. `credentials`: of the cache.
    ///
    /// # Errors
    ///
    /// The store cannot be opened, or there are no credentials where there should be.
    pub fn new(settings: Settings, credentials: &Sources) -> anyhow::Result<Self> {
        let of_process = samovar_store::Settings::from_process()?;
        let store = samovar_store::open(settings.store.as_deref(), &of_process);
        let store = store.map_err(cannot_open)?;
        let mut remote = settings.remote.clone();
        let authorized = credentials.authorize(&mut remote);
        authorized.map_err(|error| Failed::Usage.because(error))?;
        Ok(Self {
            store,
            http: Http::new(remote, Patience::UPLOAD)?,
            settings,
            target: None,
        })
    }

    /// Returns the store that has the paths.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Returns the URI of the store as the user has stated it, or an empty one.
    pub(super) fn store_uri(&self) -> &str {
        self.settings.store.as_deref().unwrap_or_default()
    }

    /// Returns the URL of the cache, without `/upload`.
    pub(super) fn url(&self) -> &str {
        self.http.remote().url()
    }

    /// Pushes the closures of `roots`.
    ///
    /// # Errors
    ///
    /// The store lacks one of the roots, or the store or the cache is unavailable.
    pub fn push_roots(&mut self, roots: &[Root]) -> anyhow::Result<Report> {
        let hash_parts: Vec<HashPart> = roots.iter().map(|root| root.hash_part).collect();
        let paths = self.find(&hash_parts)?;
        if let Some(absent) = paths.absent.first() {
            let root = roots.iter().find(|root| root.hash_part == *absent);
            let text = root.map_or_else(|| absent.to_string(), Root::shown);
            let error = anyhow!("{text} is not in the store: build it, or correct the path");
            return Err(Failed::Refused.because(error));
        }
        let found = paths.infos.iter().map(|info| (info.path.hash_part(), info));
        let found: HashMap<HashPart, &PathInfo> = found.collect();
        let dir = self.store.store_dir();
        let misnamed = |root: &Root| {
            let info = found.get(&root.hash_part)?;
            root.misnamed(&info.path, dir, "the store")
        };
        if let Some(text) = roots.iter().find_map(misnamed) {
            return Err(Failed::Refused.because(anyhow!(text)));
        }
        self.push(&paths)
    }

    /// Pins the path that the command line names, after it was pushed. `report`: of that push.
    pub fn pin(&self, options: &PinOptions, root: &Root, report: &Report) -> PinReport {
        let summary = &report.summary;
        let path = |text: &String| {
            let path = StorePath::parse(self.store.store_dir(), text).ok()?;
            (path.hash_part() == root.hash_part).then_some(path)
        };
        let found = summary.pushed.iter().chain(&summary.present).find_map(path);
        let has_failed = summary.failed.iter().any(|(text, _)| path(text).is_some());
        let pins = self.target.as_ref().and_then(|target| target.pins.as_ref());
        PinReport {
            name: options.name.clone(),
            path: root.text.clone(),
            generation: match found {
                Some(path) => options.pin(pins, &path),
                None if has_failed => Err("the path was not pushed".to_owned()),
                None => Err("the options exclude the path".to_owned()),
            },
        }
    }

    /// Finds the closures of `roots` in the store, without the paths that the options exclude.
    ///
    /// # Errors
    ///
    /// The store is unavailable.
    pub fn find(&self, roots: &[HashPart]) -> anyhow::Result<Paths> {
        Paths::find(&*self.store, roots, &self.settings.selection)
    }

    /// Pushes the closures of `roots`. Returns the report, and the roots that the store does not
    /// have. While the cache or the store is unavailable, retries after pauses, which double after
    /// each failed attempt. With `attempt_count_max` `u32::MAX`, also retries a refused push.
    pub(super) fn push_persistently(
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
                // The cache has refused the push and would refuse it again. Only a push without a
                // limit of attempts is repeated: the operator may renew the token meanwhile.
                Err(error)
                    if Failed::of(&error) == Some(Failed::Refused)
                        && attempt_count_max < u32::MAX =>
                {
                    return Err(error);
                }
                Err(error) if attempt < attempt_count_max => error,
                last => return last,
            };
            let pause_now = pause.mul_f64(1.0 + fastrand::f64() / 4.0);
            let error = samovar_text::without_logins(&format!("{error:#}"));
            notice(&format!(
                "{error}; trying again in {} s",
                pause_now.as_secs()
            ));
            std::thread::sleep(pause_now);
            pause = (pause * 2).min(PAUSE_MAX);
            attempt += 1;
        }
    }

    /// Pushes paths. A dry run only finds out which of them the cache lacks.
    ///
    /// # Errors
    ///
    /// The store or the cache is unavailable, or the cache refuses the push.
    pub fn push(&mut self, paths: &Paths) -> anyhow::Result<Report> {
        let started_at = Instant::now();
        let mut report = Report {
            url: self.url().to_owned(),
            is_dry: self.settings.is_dry,
            excluded_count: paths.excluded_count,
            ..Report::default()
        };
        for infos in paths.infos.chunks(OPEN_COUNT_MAX) {
            report.summary.add(self.push_missing(infos)?);
        }
        let protocol = self.target.as_ref().map(|target| target.protocol.is_some());
        report.is_stock = protocol == Some(false);
        report.request_count = self.http.request_count();
        report.time = started_at.elapsed();
        Ok(report)
    }

    fn push_missing(&mut self, infos: &[PathInfo]) -> anyhow::Result<Summary> {
        let target = match self.target.take() {
            Some(target) => target,
            None => self.open()?,
        };
        let target = self.target.insert(target);
        if let Some(http) = target.protocol.clone() {
            match session::open(&http, infos)? {
                Opening::Opened(opened, saved) => {
                    let summary = self.push_by_protocol(&http, opened, infos)?;
                    return Ok(Summary { saved, ..summary });
                }
                Opening::Unsupported => target.protocol = None,
                // A dry run needs no right to push: the narinfos show which paths are there.
                Opening::NotPermitted(_) if self.settings.is_dry => {}
                Opening::NotPermitted(error) => return Err(error),
            }
        }
        let cache = &target.cache;
        let hash_parts: Vec<HashPart> = infos.iter().map(|info| info.path.hash_part()).collect();
        let found = cache.narinfos(&hash_parts)?;
        let lacks = found.iter().map(|found| match found {
            Some(_) => Lack::Nothing,
            None => Lack::Nar,
        });
        let lacks: Vec<Lack> = lacks.collect();
        if self.settings.is_dry {
            let ledger = Ledger::new(infos, &lacks);
            return Ok(ledger.into_prediction(self.store.store_dir()));
        }
        let progress = progress_of(infos, &lacks);
        let stock = Stock {
            http: cache.http(),
            store: &*self.store,
            infos,
            progress: &progress,
        };
        let summary = stock.push(&lacks, self.settings.compressing);
        progress.end();
        summary
    }

    /// Pushes paths by the push protocol. If the cache loses a NAR before its path is published,
    /// pushes the paths that failed again.
    fn push_by_protocol(
        &self,
        http: &Http,
        opened: Opened,
        infos: &[PathInfo],
    ) -> anyhow::Result<Summary> {
        let mut summary = self.push_opened(http, opened, infos)?;
        for _ in 1..ROUND_COUNT_MAX {
            if !summary.has_lost_nar {
                break;
            }
            let dir = self.store.store_dir();
            let failed: HashSet<&str> = summary.failed.iter().map(|(path, _)| &**path).collect();
            let is_failed = |info: &&PathInfo| failed.contains(&*info.path.full(dir));
            let rest: Vec<PathInfo> = infos.iter().filter(is_failed).cloned().collect();
            let Opening::Opened(opened, _) = session::open(http, &rest)? else {
                break;
            };
            let again = self.push_opened(http, opened, &rest)?;
            summary.failed.clear();
            summary.add(again);
        }
        Ok(summary)
    }

    /// Pushes the paths of one session.
    fn push_opened(
        &self,
        http: &Http,
        opened: Opened,
        infos: &[PathInfo],
    ) -> anyhow::Result<Summary> {
        let session = Session {
            http,
            opened,
            unfinished: Unfinished::new(
                http.remote().url(),
                self.settings.compressing,
                session::BUFFER_LEN,
            ),
        };
        let answers = &session.opened.answers;
        if self.settings.is_dry {
            session::end(http, &session.opened);
            let ledger = Ledger::of_answers(infos, answers);
            return Ok(ledger.into_prediction(self.store.store_dir()));
        }
        let progress = progress_of(infos, &ledger::lacks(answers));
        let nars = StoreNars(&*self.store);
        let dir = self.store.store_dir();
        let summary = session.push(&nars, dir, infos, self.settings.compressing, &progress);
        progress.end();
        summary
    }

    /// Checks that the cache accepts the login for pushes, so that a command does not run in vain.
    /// Also succeeds if the cache cannot be reached, because it may be reachable after the command,
    /// and if the cache does not support the push protocol.
    ///
    /// # Errors
    ///
    /// The cache refuses the login.
    pub fn check_login(&self) -> anyhow::Result<()> {
        let below = self
            .http
            .at(format!("{}/upload", self.http.remote()))
            .once();
        let opened = match below.get(INFO_PATH) {
            Ok(response) => match response.status().as_u16() {
                200 => may_push_below(&below),
                401 => Err(below.refused("the push", response)),
                _ => return Ok(()),
            },
            Err(error) => Err(error),
        };
        match opened {
            Err(error) if Failed::of(&error) == Some(Failed::Refused) => Err(error),
            _ => Ok(()),
        }
    }

    /// Opens the cache. On Samovar its URL ends in `/upload`, where only uploaded paths exist.
    /// Another server must be a cache already, or gets a new `nix-cache-info`.
    fn open(&self) -> anyhow::Result<Target> {
        let below = self.http.at(format!("{}/upload", self.http.remote()));
        let response = below.get(INFO_PATH)?;
        let (mut protocol, mut pins) = (None, None);
        let cache = match response.status().as_u16() {
            200 => {
                protocol = Some(session::client(&below));
                pins = Some(below.clone());
                Cache::with_info(below, response)?
            }
            401 => return Err(below.refused("the push", response)),
            // A Samovar without storage: the URL exists, but has no method.
            405 if response
                .headers()
                .get("Allow")
                .is_some_and(|allow| allow.is_empty()) =>
            {
                return Err(below.refused("the push", response));
            }
            _ => {
                let http = self.http.clone();
                let response = http.get(INFO_PATH)?;
                if !self.settings.is_dry && response.status() == 404 {
                    stock::create_cache(&http, &*self.store)?;
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
        Ok(Target {
            cache,
            protocol,
            pins,
        })
    }
}
