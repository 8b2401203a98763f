//! State shared by all actors: the expected state of store and server, events, causes and findings.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, VerifyingKey};

use crate::content::Version;
use crate::timeline::{Moment, Spans, Timeline};

/// Time, in microseconds, for which a cause still excuses failures after its end.
pub(crate) const SLACK: Moment = 1_000_000;
/// The same time for damaged files. It is longer, because the server rechecks only from time to
/// time whether they were repaired.
pub(crate) const DAMAGE_SLACK: Moment = 3_000_000;
/// Maximum time to receive the head of a response when nothing delays it, on a loaded machine.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Maximum number of events that a report shows.
const EVENTS_SHOWN: usize = 40;
/// Maximum number of states of one path that a report shows.
const HISTORY_SHOWN: usize = 4;
/// Number of findings after which the run ends.
const FINDINGS_MAX: usize = 5;

/// A fault that excuses a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// The server was killed or is not running yet.
    Down,
    /// The server received TERM: it refuses new connections, and aborts responses after a grace
    /// time.
    Stopping,
    /// A zero-downtime upgrade is in progress: connections are closed between requests.
    Upgrading,
    /// The server process is stopped (SIGSTOP).
    Halted,
    /// The database is unreadable.
    Unreadable,
    /// The database file was replaced, which the server may notice with a delay.
    Replaced,
    /// The server's limit of open files is low.
    FewDescriptors,
    /// There is no daemon, or its worker processes were killed: no path is leased.
    NoDaemon,
    /// The server runs under a tool that makes it many times slower, so that it considers the disk
    /// hung.
    Slowed,
}

/// The expected state of one store path: what is registered, and whether its files are damaged.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) store_path: String,
    pub(crate) registered: Mutex<Timeline<Option<Arc<Version>>>>,
    /// Times in which the files differed from the registered content.
    pub(crate) damage: Mutex<Spans>,
    /// Those times of `damage` in which only reading reveals the damage, because the root is the
    /// same and the NAR size is unchanged.
    pub(crate) hidden: Mutex<Spans>,
}

/// A public signing key: its name and the key.
#[derive(Debug, Clone)]
pub(crate) struct Key(Arc<(String, VerifyingKey)>);

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Addresses on which the current server process listens.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Addresses {
    pub(crate) plain: Option<SocketAddr>,
    pub(crate) tls: Option<SocketAddr>,
}

/// State shared by all actors.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) seed: u64,
    start: Instant,
    time: Duration,
    /// Whether the database uses a WAL, in which readers and writers do not block each other.
    has_wal: bool,
    /// End of the run; set when the actors start, because the time for the setup does not count.
    end: OnceLock<Instant>,
    paths: RwLock<Arc<Vec<Arc<Facts>>>>,
    /// Texts of narinfos whose signatures were verified, and the key that verified each.
    signed: RwLock<HashMap<String, Key>>,
    causes: Mutex<BTreeMap<Cause, Spans>>,
    pub(crate) keys: Mutex<Timeline<Key>>,
    /// The server's certificate in use over time, as DER.
    pub(crate) certificates: Mutex<Timeline<Arc<Vec<u8>>>>,
    pub(crate) addresses: Mutex<Addresses>,
    /// Taken for reading by changes of the store through Nix, for writing by operations that must
    /// not run beside one.
    pub(crate) gate: RwLock<()>,
    /// Taken while a daemon runs, because a daemon creates a missing database, and while the
    /// database is removed or replaced. Lock order: before `gate`.
    pub(crate) database_opens: Mutex<()>,
    /// Taken for reading while files are damaged, for writing while Nix hard-links equal files
    /// (`--optimise`). Lock order: before `gate`.
    pub(crate) links: RwLock<()>,
    events: Mutex<Vec<(Moment, String)>>,
    findings: Mutex<Vec<String>>,
    counts: Mutex<BTreeMap<String, u64>>,
    is_over: AtomicBool,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Facts {
    pub(crate) fn new(store_path: String) -> Arc<Self> {
        Arc::new(Self {
            store_path,
            registered: Mutex::new(Timeline::new(None)),
            damage: Mutex::default(),
            hidden: Mutex::default(),
        })
    }

    pub(crate) fn base_name(&self) -> &str {
        self.store_path.trim_start_matches("/nix/store/")
    }

    pub(crate) fn hash_part(&self) -> &str {
        &self.base_name()[..32]
    }

    /// Returns all states that are possible at some moment of an interval; `None` is absent.
    pub(crate) fn possible(&self, from: Moment, until: Moment) -> Vec<Option<Arc<Version>>> {
        let registered = lock(&self.registered);
        let possible = registered.possible(from, until);
        possible.into_iter().cloned().collect()
    }

    pub(crate) fn change_count(&self, from: Moment, until: Moment) -> usize {
        lock(&self.registered).change_count(from, until)
    }

    pub(crate) fn latest(&self) -> Option<Arc<Version>> {
        lock(&self.registered).latest().cloned().flatten()
    }

    /// Describes the recent states of this path for a report.
    pub(crate) fn history(&self) -> String {
        let time = |moment: Option<Moment>| match moment {
            Some(moment) => format!("{:.6}", seconds(moment)),
            None => "not yet".to_owned(),
        };
        let mut text = format!("\n  {}:", self.base_name());
        for (version, from, certain) in lock(&self.registered).recent(HISTORY_SHOWN) {
            let what = match version {
                Some(version) => &version.nar_hash[..8],
                None => "absent",
            };
            let from = seconds(from);
            text.push_str(&format!(
                " [{what} from {from:.6}, surely {}]",
                time(certain)
            ));
        }
        for &(begin, end) in lock(&self.damage).recent(HISTORY_SHOWN) {
            let begin = seconds(begin);
            text.push_str(&format!(" [damaged {begin:.6} to {}]", time(end)));
        }
        text
    }

    pub(crate) fn is_damaged(&self, from: Moment, until: Moment) -> bool {
        lock(&self.damage).touch(from, until, DAMAGE_SLACK)
    }

    /// Returns whether the files were damaged in the interval in a way that only reading reveals.
    pub(crate) fn is_hidden(&self, from: Moment, until: Moment) -> bool {
        lock(&self.hidden).touch(from, until, 0)
    }

    /// Returns whether the files were damaged in the interval, without slack.
    pub(crate) fn is_wrong(&self, from: Moment, until: Moment) -> bool {
        lock(&self.damage).touch(from, until, 0)
    }
}

impl Key {
    /// Parses a public key in Nix's form `name:base64`.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let (name, bytes) = text.split_once(':').context("a key has a name")?;
        let bytes = STANDARD.decode(bytes)?;
        let key = VerifyingKey::try_from(bytes.as_slice())?;
        Ok(Self(Arc::new((name.to_owned(), key))))
    }

    /// Returns whether `signature`, written as `name:base64`, was made with this key.
    pub(crate) fn verifies(&self, message: &[u8], signature: &str) -> bool {
        let bytes = signature
            .strip_prefix(self.0.0.as_str())
            .and_then(|rest| STANDARD.decode(rest.strip_prefix(':')?).ok());
        let signature = bytes.and_then(|bytes| Signature::from_slice(&bytes).ok());
        signature.is_some_and(|signature| self.0.1.verify_strict(message, &signature).is_ok())
    }
}

impl World {
    pub(crate) fn new(seed: u64, time: Duration, has_wal: bool, key: Key, cert: Vec<u8>) -> Self {
        let start = Instant::now();
        Self {
            seed,
            start,
            time,
            has_wal,
            end: OnceLock::new(),
            paths: RwLock::default(),
            signed: RwLock::default(),
            causes: Mutex::default(),
            keys: Mutex::new(Timeline::new(key)),
            certificates: Mutex::new(Timeline::new(Arc::new(cert))),
            addresses: Mutex::default(),
            gate: RwLock::default(),
            database_opens: Mutex::default(),
            links: RwLock::default(),
            events: Mutex::default(),
            findings: Mutex::default(),
            counts: Mutex::default(),
            is_over: AtomicBool::new(false),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(Moment::MAX)
    }

    /// Sets the end of the run, now that its actors start.
    pub(crate) fn begin_acting(&self) {
        self.end.get_or_init(|| Instant::now() + self.time);
    }

    /// Returns whether 503 is possible at any time: in SQLite's rollback-journal modes a reader may
    /// mistake a transaction that just begins for an interrupted one.
    pub(crate) fn may_be_unsure(&self) -> bool {
        !self.has_wal && self.goes_on()
    }

    /// Returns whether the run is still in progress.
    pub(crate) fn goes_on(&self) -> bool {
        let is_late = self.end.get().is_some_and(|end| Instant::now() >= *end);
        !is_late && !self.is_over.load(Ordering::Relaxed)
    }

    /// Ends the run.
    pub(crate) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Sleeps for at most `ms` milliseconds; returns early at the end of the run.
    pub(crate) fn pause(&self, ms: u64) {
        let until = Instant::now() + Duration::from_millis(ms);
        while self.goes_on() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(ms.min(10)));
        }
    }

    pub(crate) fn add(&self, facts: Arc<Facts>) -> Arc<Facts> {
        let mut paths = self.paths.write().unwrap_or_else(PoisonError::into_inner);
        Arc::make_mut(&mut paths).push(Arc::clone(&facts));
        facts
    }

    pub(crate) fn all(&self) -> Arc<Vec<Arc<Facts>>> {
        let paths = self.paths.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&paths)
    }

    pub(crate) fn facts(&self, hash_part: &str) -> Option<Arc<Facts>> {
        let paths = self.paths.read().unwrap_or_else(PoisonError::into_inner);
        paths
            .iter()
            .find(|facts| facts.hash_part() == hash_part)
            .cloned()
    }

    /// Returns whether a narinfo is signed with a key that may have been in use at that time.
    pub(crate) fn is_signed(&self, narinfo: &str, fingerprint: &str, at: (Moment, Moment)) -> bool {
        let keys = lock(&self.keys);
        let possible = keys.possible(at.0, at.1);
        let signed = self.signed.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = signed.get(narinfo) {
            return possible.contains(&known);
        }
        drop(signed);
        let Some((_, signature)) = narinfo.split_once("\nSig: ") else {
            return false;
        };
        let signature = signature.trim_end_matches('\n');
        let verifies = |key: &&&Key| key.verifies(fingerprint.as_bytes(), signature);
        let Some(key) = possible.iter().find(verifies) else {
            return false;
        };
        let mut signed = self.signed.write().unwrap_or_else(PoisonError::into_inner);
        signed.insert(narinfo.to_owned(), (*key).clone());
        true
    }

    /// Runs `during`, recording `cause` for its duration.
    pub(crate) fn cause<T>(&self, cause: Cause, during: impl FnOnce() -> T) -> T {
        self.begin(cause);
        let done = during();
        self.end(cause);
        done
    }

    pub(crate) fn begin(&self, cause: Cause) {
        let now = self.now();
        lock(&self.causes).entry(cause).or_default().begin(now);
        self.note(format_args!("{cause:?} begins"));
    }

    pub(crate) fn end(&self, cause: Cause) {
        let now = self.now();
        lock(&self.causes).entry(cause).or_default().end(now);
        self.note(format_args!("{cause:?} ends"));
    }

    pub(crate) fn had(&self, any: &[Cause], from: Moment, until: Moment) -> bool {
        self.had_within(any, from, until, SLACK)
    }

    /// Like [`Self::had`], with `slack` instead of [`SLACK`].
    pub(crate) fn had_within(
        &self,
        any: &[Cause],
        from: Moment,
        until: Moment,
        slack: Moment,
    ) -> bool {
        let causes = lock(&self.causes);
        any.iter()
            .filter_map(|cause| causes.get(cause))
            .any(|spans| spans.touch(from, until, slack))
    }

    /// Records an event, which reports list.
    pub(crate) fn note(&self, what: impl fmt::Display) {
        lock(&self.events).push((self.now(), what.to_string()));
    }

    /// Returns all events, one per line.
    pub(crate) fn events(&self) -> String {
        let events = lock(&self.events);
        let lines = events.iter();
        let lines = lines.map(|(at, event)| format!("{:.6} {event}\n", seconds(*at)));
        lines.collect()
    }

    pub(crate) fn count(&self, what: &str) {
        *lock(&self.counts).entry(what.to_owned()).or_default() += 1;
    }

    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        lock(&self.counts).clone()
    }

    /// Reports a finding together with the recent events.
    pub(crate) fn finding(&self, what: impl fmt::Display) {
        let events = lock(&self.events);
        let mut report = format!("{:.6} {what}\n", seconds(self.now()));
        for (at, event) in &events[events.len().saturating_sub(EVENTS_SHOWN)..] {
            report.push_str(&format!("    {:.6} {event}\n", seconds(*at)));
        }
        drop(events);
        let mut findings = lock(&self.findings);
        findings.push(report);
        if findings.len() >= FINDINGS_MAX {
            self.is_over.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn findings(&self) -> Vec<String> {
        lock(&self.findings).clone()
    }

    /// Runs an actor; an error it returns is a finding.
    pub(crate) fn act(&self, name: &str, actor: impl FnOnce() -> anyhow::Result<()>) {
        if let Err(error) = actor() {
            self.finding(format_args!("{name} cannot go on: {error:#}"));
            self.is_over.store(true, Ordering::Relaxed);
        }
    }
}

pub(crate) fn seconds(moment: Moment) -> f64 {
    Duration::from_micros(moment).as_secs_f64()
}
