//! [`Upstream`]: one upstream cache, its connections and its counts.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use samovar_client::http::Http;
use samovar_client::netrc;
use samovar_client::remote::Remote;
use samovar_metrics::{Event, Observer, UpstreamStatus};
use samovar_nix::narinfo::NarInfo;
use samovar_nix::{HashPart, StoreDir};
use samovar_storage::StoredCache;
use samovar_upstream::bulk::Reply;
use samovar_upstream::settings::UpstreamSettings;
use samovar_upstream::via::Pseudonym;

use crate::private_file;
use crate::sync::Locked;
use crate::upstream::many::{self, Wish};
use crate::upstream::pool::Pool;
use crate::upstream::request::{self, Failed, NarFile, Said, Trouble};

/// Number of requests for narinfos that are sent at the same time.
const LOOK_UP_COUNT_MAX: usize = 64;

/// Number of NARs that are received at the same time.
const NAR_COUNT_MAX: usize = 64;

/// Maximum length of a netrc file, in bytes.
const NETRC_LEN_MAX: u64 = 1 << 20;

/// Called with the number of an upstream and the path whose NAR it could not send.
pub(super) type OnFailed = Box<dyn Fn(usize, HashPart, &Failed) + Send + Sync>;

/// One upstream cache.
pub(crate) struct Upstream {
    pub(crate) settings: UpstreamSettings,
    /// The number of the upstream at the director.
    id: usize,
    on_failed: OnFailed,
    observer: Arc<dyn Observer>,
    http: Http,
    pseudonym: Arc<Pseudonym>,
    pub(super) look_ups: Pool,
    pub(super) nars: Pool,
    pub(crate) counts: Counts,
    /// The cache with its kept paths; `None`: no paths are kept.
    pub(crate) kept: Option<StoredCache>,
    /// Why the upstream is not asked at present; empty if it is.
    down: Mutex<String>,
}

/// Counters of an upstream since the start of the server.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Requests for narinfos.
    pub(crate) narinfo_count: AtomicU64,
    /// Narinfos that were received and may be served.
    pub(crate) found_count: AtomicU64,
    /// Answers that the upstream lacks the path.
    pub(crate) absent_count: AtomicU64,
    /// Requests without an answer, and answers that could not be used.
    pub(crate) fault_count: AtomicU64,
    /// NARs that were received completely and are right.
    pub(crate) nar_count: AtomicU64,
    /// Bytes of NARs, as compressed by the upstream.
    pub(crate) nar_len: AtomicU64,
    /// NARs that were sent from kept copies.
    pub(crate) kept_count: AtomicU64,
    /// Bytes of these NARs.
    pub(crate) kept_len: AtomicU64,
    /// The last fault, as a sentence.
    pub(crate) last_fault: Mutex<String>,
}

impl Counts {
    pub(super) fn add(count: &AtomicU64, number: u64) {
        count.fetch_add(number, Ordering::Relaxed);
    }
}

/// A path that an upstream has.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) upstream: Arc<Upstream>,
    /// The narinfo as the upstream has sent it; trusted.
    pub(crate) narinfo: NarInfo,
    /// When the narinfo was received.
    pub(crate) received_at: Instant,
}

/// Time for which a narinfo of an upstream is served without asking the upstream again.
pub(super) const FOUND_TIME: Duration = Duration::from_secs(3600);

impl Upstream {
    /// # Errors
    ///
    /// A sentence: the URL is invalid, or a file cannot be read.
    pub(super) fn new(
        (settings, kept): (UpstreamSettings, Option<StoredCache>),
        (id, on_failed): (usize, OnFailed),
        pseudonym: Arc<Pseudonym>,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, String> {
        let http = Self::client(&settings)?;
        let name = &settings.name;
        Ok(Self {
            id,
            on_failed,
            observer,
            http,
            pseudonym,
            look_ups: Pool::new(format!("ask-{name}"), LOOK_UP_COUNT_MAX),
            nars: Pool::new(format!("get-{name}"), NAR_COUNT_MAX),
            counts: Counts::default(),
            kept,
            down: Mutex::default(),
            settings,
        })
    }

    /// Returns a client of an upstream with its login. Sends no request.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub(super) fn client(settings: &UpstreamSettings) -> Result<Http, String> {
        let name = &settings.name;
        let failed = |error: &dyn fmt::Display| format!("the upstream {name:?}: {error}");
        let mut remote = Remote::of_folder(&settings.url).map_err(|error| failed(&error))?;
        if let Some(file) = &settings.netrc_file {
            let (text, _mode) = private_file::read(file, NETRC_LEN_MAX)
                .map_err(|error| failed(&format!("netrc-file {file:?} cannot be read: {error}")))?;
            let host = remote.host().to_owned();
            let login = netrc::login(&text, &host).ok_or_else(|| {
                failed(&format!(
                    "netrc-file {file:?} has no entry for the host {host:?}"
                ))
            })?;
            remote.authorize(login.authorization(), format!("the login in {file:?}"));
        }
        Http::guarded(remote, settings.timeout).map_err(|error| failed(&error))
    }

    /// Returns a client of this upstream. `via`: the `Via` field of the request that is passed on.
    fn http(&self, via: &[u8]) -> Http {
        self.http.with_header("Via", self.pseudonym.appended(via))
    }

    /// Requests a narinfo. Blocks.
    pub(super) fn narinfo(
        self: &Arc<Self>,
        dir: &StoreDir,
        hash_part: HashPart,
        via: &[u8],
    ) -> Result<Said<Arc<Found>>, Trouble> {
        let counts = &self.counts;
        Counts::add(&counts.narinfo_count, 1);
        let said = request::narinfo(&self.http(via), &self.settings, dir, hash_part);
        match &said {
            Ok(Said::Found(_)) => Counts::add(&counts.found_count, 1),
            Ok(Said::Absent) => Counts::add(&counts.absent_count, 1),
            Err(trouble) => self.note(trouble.text()),
        }
        said.map(|said| self.said(said))
    }

    /// Finds out whether the upstream answers requests for many narinfos. Blocks.
    pub(super) fn detect_bulk(&self) -> Reply {
        many::detect(&self.http(b""))
    }

    /// Requests many narinfos, and passes on what the upstream says. Blocks.
    pub(super) fn narinfos(
        self: &Arc<Self>,
        dir: &StoreDir,
        wish: &Wish,
        tell: impl Fn(Vec<(HashPart, Said<Arc<Found>>)>) + Sync,
    ) -> Reply {
        let counts = &self.counts;
        let pass_on = |answers: many::Answers| {
            if answers.is_empty() {
                return;
            }
            let is_found = |one: &&(HashPart, Said<NarInfo>)| matches!(one.1, Said::Found(_));
            let found_count = answers.iter().filter(is_found).count();
            Counts::add(&counts.narinfo_count, answers.len() as u64);
            Counts::add(&counts.found_count, found_count as u64);
            Counts::add(&counts.absent_count, (answers.len() - found_count) as u64);
            let answers = answers.into_iter();
            tell(
                answers
                    .map(|(hash_part, said)| (hash_part, self.said(said)))
                    .collect(),
            );
        };
        let to = (&self.settings, dir);
        many::narinfos(&self.http(b""), to, wish, &pass_on)
    }

    /// Adds the upstream and the time to the narinfo in an answer.
    fn said(self: &Arc<Self>, said: Said<NarInfo>) -> Said<Arc<Found>> {
        match said {
            Said::Absent => Said::Absent,
            Said::Found(narinfo) => Said::Found(Arc::new(Found {
                upstream: Arc::clone(self),
                narinfo,
                received_at: Instant::now(),
            })),
        }
    }

    /// Requests the file of a NAR. Blocks.
    pub(super) fn nar(
        &self,
        url: &str,
        is_abandoned: Box<dyn Fn() -> bool + Send>,
    ) -> Result<Said<NarFile>, Trouble> {
        NarFile::open(self.http(b""), &self.settings, url, is_abandoned)
    }

    /// Checks whether the upstream answers. Blocks.
    pub(super) fn probe(&self) -> Result<(), Trouble> {
        request::probe(&self.http(b""), &self.settings)
    }

    /// Records why the upstream is not asked at present; `None`: it is.
    pub(super) fn set_down(&self, reason: Option<&str>) {
        reason
            .unwrap_or_default()
            .clone_into(&mut self.down.locked());
    }

    /// Whether the upstream is not asked at present.
    pub(super) fn is_down(&self) -> bool {
        !self.down.locked().is_empty()
    }

    /// Returns the status, for the metrics.
    pub(super) fn status(&self) -> UpstreamStatus {
        let counts = &self.counts;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let down = self.down.locked().clone();
        UpstreamStatus {
            name: self.settings.name.clone(),
            url: self.http.remote().url().to_owned(),
            down: (!down.is_empty()).then_some(down),
            narinfo_count: of(&counts.narinfo_count),
            found_count: of(&counts.found_count),
            absent_count: of(&counts.absent_count),
            fault_count: of(&counts.fault_count),
            last_fault: counts.last_fault.locked().clone(),
            nar_count: of(&counts.nar_count),
            nar_len: of(&counts.nar_len),
            kept_count: of(&counts.kept_count),
            kept_len: of(&counts.kept_len),
        }
    }

    /// Counts and reports that a NAR could not be passed on.
    pub(super) fn nar_failed(&self, narinfo: &NarInfo, failed: &Failed) {
        self.note(failed.reason());
        self.observer.event(&Event::UpstreamFault {
            upstream: &self.settings.name,
            path: &narinfo.store_path.base_name(),
            reason: failed.reason(),
        });
        (self.on_failed)(self.id, narinfo.store_path.hash_part(), failed);
    }

    /// Reports that a path of the upstream is passed on and not kept.
    pub(super) fn not_kept(&self, narinfo: &NarInfo, reason: &dyn fmt::Display) {
        self.observer.event(&Event::NotKept {
            upstream: &self.settings.name,
            path: &narinfo.store_path.base_name(),
            reason,
        });
    }

    /// Returns the number of the upstream at the director.
    pub(super) fn id(&self) -> usize {
        self.id
    }

    /// Counts a fault.
    pub(super) fn note(&self, fault: &str) {
        Counts::add(&self.counts.fault_count, 1);
        fault.clone_into(&mut self.counts.last_fault.locked());
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("name", &self.settings.name)
            .finish_non_exhaustive()
    }
}
