//! [`Upstreams`]: the upstreams of a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::{fmt, io, thread};

use samovar_metrics::{Observer, UpstreamStatus};
use samovar_nix::StoreDir;
use samovar_storage::{Storage, StorageError, StoredCache, kept};
use samovar_upstream::settings::UpstreamSettings;
use samovar_upstream::via::Pseudonym;

use crate::sys;
use crate::upstream::director::Director;
use crate::upstream::message::{Ask, Message};
use crate::upstream::one::{OnFailed, Upstream};
use crate::upstream::request::Failed;
use crate::upstream::transfer::Transfers;

/// The upstreams of a server, which its caches share.
pub struct Upstreams {
    all: Vec<Arc<Upstream>>,
    /// As they were configured, to see whether a reload changes them.
    settings: Vec<UpstreamSettings>,
    memory_len: usize,
    director: Sender<Message>,
    /// Number of times that something known about a path has turned out to be wrong.
    changes: Arc<AtomicU64>,
    pseudonym: Arc<Pseudonym>,
    /// Random bytes, which no client knows.
    secret: [u8; 16],
    transfers: Arc<Transfers>,
}

impl Upstreams {
    /// Prepares the upstreams. Sends no request. `memory_len`: memory for NARs that are passed on,
    /// in bytes. `storage`: the storage for kept paths.
    ///
    /// # Errors
    ///
    /// A URL is invalid, a file cannot be read, the storage fails, or a thread cannot be started.
    pub fn start(
        settings: Vec<UpstreamSettings>,
        memory_len: usize,
        dir: StoreDir,
        storage: Option<&Arc<Storage>>,
        observer: Arc<dyn Observer>,
    ) -> io::Result<Arc<Self>> {
        let (mut random, mut secret) = ([0; 8], [0; 16]);
        sys::random(&mut random)?;
        sys::random(&mut secret)?;
        let pseudonym = Arc::new(Pseudonym::new(u64::from_le_bytes(random)));
        let (director, messages) = mpsc::channel();
        let changes = Arc::new(AtomicU64::new(0));
        let one = |(id, settings): (usize, &UpstreamSettings)| {
            let number = (id, on_failed(director.clone(), Arc::clone(&changes)));
            let (pseudonym, observer) = (Arc::clone(&pseudonym), Arc::clone(&observer));
            let kept = kept_cache(settings, storage).map_err(io::Error::other)?;
            let own = (settings.clone(), kept);
            let one = Upstream::new(own, number, pseudonym, observer);
            one.map(Arc::new).map_err(io::Error::other)
        };
        let all: Vec<_> = settings
            .iter()
            .enumerate()
            .map(one)
            .collect::<Result<_, _>>()?;
        let conducting = Director::new(&all, director.clone(), dir, observer);
        thread::Builder::new()
            .name("upstreams".to_owned())
            .spawn(move || conducting.run(&messages))?;
        Ok(Arc::new(Self {
            all,
            settings,
            memory_len,
            director,
            changes,
            pseudonym,
            secret,
            transfers: Arc::new(Transfers::new(memory_len as u64)),
        }))
    }

    /// Checks what [`start`](Self::start) needs, without a start.
    ///
    /// # Errors
    ///
    /// A URL is invalid, or a file cannot be read.
    pub fn check(settings: &[UpstreamSettings]) -> io::Result<()> {
        let check = |one| Upstream::client(one).map(drop);
        settings
            .iter()
            .try_for_each(check)
            .map_err(io::Error::other)
    }

    /// Whether these are the upstreams of a configuration.
    #[must_use]
    pub fn are_of(&self, settings: &[UpstreamSettings], memory_len: usize) -> bool {
        // A `netrc` file may have changed, so an upstream that has one counts as changed.
        let is_fixed = |one: &UpstreamSettings| one.netrc_file.is_none();
        self.settings == settings && self.memory_len == memory_len && settings.iter().all(is_fixed)
    }

    /// Returns the status of each upstream, for the metrics.
    pub(crate) fn status(&self) -> Vec<UpstreamStatus> {
        self.all.iter().map(|one| one.status()).collect()
    }

    pub(crate) fn list(&self) -> &[Arc<Upstream>] {
        &self.all
    }

    pub(super) fn tell(&self, message: Message) {
        // The director ends after this is dropped.
        self.director.send(message).ok();
    }

    /// Returns the number of times that something known about a path has turned out to be wrong.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(super) fn pseudonym(&self) -> &Pseudonym {
        &self.pseudonym
    }

    pub(super) fn secret(&self) -> &[u8] {
        &self.secret
    }

    pub(super) fn transfers(&self) -> &Arc<Transfers> {
        &self.transfers
    }

    pub(super) fn ask(&self, ask: Ask) {
        self.tell(Message::Ask(ask));
    }
}

/// Returns the cache of the storage in which the paths of an upstream are kept.
fn kept_cache(
    settings: &UpstreamSettings,
    storage: Option<&Arc<Storage>>,
) -> Result<Option<StoredCache>, StorageError> {
    let (Some(storage), Some(len)) = (storage, settings.keep) else {
        return Ok(None);
    };
    let stored = storage.cache(&kept::cache_name(&settings.name), false)?;
    Ok(Some(stored.with_quota(Some(len))))
}

/// Returns the function that tells the director of a NAR that an upstream could not send.
fn on_failed(director: Sender<Message>, changes: Arc<AtomicU64>) -> OnFailed {
    Box::new(move |id, hash_part, failed| {
        let message = match failed {
            Failed::Gone => Message::Gone(id, hash_part),
            Failed::Wrong(_) => Message::Wrong(id, hash_part),
            Failed::Trouble(reason) => Message::NarFailed(id, reason.clone()),
        };
        // The director may have ended.
        director.send(message).ok();
        if !matches!(failed, Failed::Trouble(_)) {
            changes.fetch_add(1, Ordering::Release);
        }
    })
}

impl Drop for Upstreams {
    fn drop(&mut self) {
        self.tell(Message::Stop);
    }
}

impl fmt::Debug for Upstreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstreams")
            .field("all", &self.all)
            .finish_non_exhaustive()
    }
}
