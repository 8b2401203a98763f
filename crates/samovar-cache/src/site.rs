//! The service: one server, one store, and the caches of it that stand beside each other.
//!
//! # Theory of operation
//!
//! A request belongs to the cache with the longest prefix that its path begins with, whole segments
//! alone; that cache says whatever is said ([`Cache`]). A cache has narinfos of its own, because
//! keys and policies differ; all that is dear and the same for all is shared ([`Origin`]).
//!
//! An I/O thread answers what is in memory: a hash part that is certainly not in the store, a
//! narinfo that was rendered or a small NAR that was asked for in this state of the store, and
//! everything that does not depend on the store. Before it says anything about the store it asks
//! the catalog whether its snapshot is still the truth; once for each turn of the
//! engine, since all requests of a turn were sent before. In every other case a worker answers,
//! asks the database, and leaves what it rendered for the next one who asks. While the database
//! fails, one request at a time finds out whether it still does; the others get their 503 on the
//! I/O thread.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use samovar_http::http::Method;
use samovar_http::{Head, Inline, Intake, Reply, Request, Response, Service, Turn};
use samovar_store::{Snapshot, Store};

use crate::access::{Access, AccessConfig, AccessError, Client};
use crate::bulk;
use crate::cache::{Cache, CacheConfig};
use crate::front::{Front, Program};
use crate::health::{Trust, Watch};
use crate::hold::Hold;
use crate::kept::KeptSpace;
use crate::observer::Observer;
use crate::origin::Origin;
use crate::policy::RootsWatch;
use crate::rendered::RenderedCache;
use crate::signing::Signing;

/// What a site is made of.
#[derive(Debug)]
pub struct SiteConfig {
    /// The caches; no two with the same prefix.
    pub caches: Vec<CacheConfig>,
    /// Memory for rendered narinfos, in bytes: each cache has its share.
    pub rendered_memory_len: usize,
    /// Memory for small NARs, in bytes.
    pub small_nar_memory_len: usize,
    /// Where NARs of many small files are kept; `None`: nowhere.
    pub kept_space: Option<KeptSpace>,
    /// Holding paths against garbage collection; `None`: not at all.
    pub hold: Option<Hold>,
    /// How far files are trusted.
    pub trust: Trust,
    /// What it is part of.
    pub program: Program,
}

impl Default for SiteConfig {
    fn default() -> Self {
        Self {
            caches: vec![CacheConfig::default()],
            rendered_memory_len: 32 << 20,
            small_nar_memory_len: 32 << 20,
            kept_space: None,
            hold: None,
            trust: Trust::default(),
            program: Program::default(),
        }
    }
}

/// The binary caches of one store.
#[derive(Debug)]
pub struct Site {
    pub(crate) origin: Arc<Origin>,
    /// The longest prefix first.
    pub(crate) caches: Box<[Cache]>,
    /// Where a cache has pages.
    pub(crate) front: Option<Front>,
    /// Ends its thread when dropped.
    _roots: Option<RootsWatch>,
}

/// What an I/O thread knows of the store.
#[derive(Debug)]
pub struct Local {
    snapshot: Option<Arc<Snapshot>>,
    /// The turn in which the snapshot was last looked at, and whether it was the truth.
    checked: Option<(Turn, bool)>,
}

impl Local {
    /// The state of the store, if the snapshot of this thread is the truth.
    pub(crate) fn fresh(&mut self, store: &dyn Store, turn: Turn) -> Option<&Snapshot> {
        let (catalog, snapshot) = (store.catalog()?, self.snapshot.as_mut()?);
        let is_fresh = match self.checked {
            Some((checked, is_fresh)) if checked == turn => is_fresh,
            _ => catalog.check(snapshot),
        };
        self.checked = Some((turn, is_fresh));
        is_fresh.then_some(snapshot)
    }
}

impl Site {
    /// The caches of `store`.
    pub fn new(store: Box<dyn Store>, mut config: SiteConfig, observer: Arc<dyn Observer>) -> Self {
        let mut configs = std::mem::take(&mut config.caches);
        configs.sort_by_key(|cache| std::cmp::Reverse(cache.path_prefix.len()));
        let share = config.rendered_memory_len / configs.len().max(1);
        let rendered: Vec<_> = configs
            .iter()
            .map(|_| Arc::new(RenderedCache::new(share)))
            .collect();
        let origin = Arc::new(Origin::new(store, &mut config, &rendered, observer));
        let caches = configs
            .into_iter()
            .zip(rendered)
            .map(|(config, rendered)| Cache::new(&origin, config, rendered));
        let caches: Box<[Cache]> = caches.collect();
        let policed = caches.iter().map(|cache| &cache.narinfos);
        let policed: Vec<_> = policed
            .filter(|narinfos| narinfos.policy.roots().is_used())
            .cloned()
            .collect();
        // Without a thread nothing is known of roots, and nothing served under them.
        let roots = match policed.is_empty() {
            true => None,
            false => RootsWatch::start(policed).ok(),
        };
        let has_pages = caches.iter().any(|cache| cache.pages().is_some());
        Self {
            origin,
            caches,
            front: has_pages.then(Front::new),
            _roots: roots,
        }
    }

    /// Changes how a cache signs, all of it at once, from the next answer on. `path_prefix`: which
    /// cache.
    pub fn change_signing(&self, path_prefix: &str, signing: Signing) {
        let is_meant = |cache: &&Cache| cache.path_prefix() == path_prefix.as_bytes();
        if let Some(cache) = self.caches.iter().find(is_meant) {
            cache.narinfos.change_signing(signing);
        }
    }

    /// Changes who may read a cache, from the next request on, and returns remarks about it.
    /// `path_prefix`: which cache.
    ///
    /// # Errors
    ///
    /// As [`Access::change`]; all stays as it was.
    pub fn change_access(
        &self,
        path_prefix: &str,
        config: AccessConfig,
    ) -> Result<Vec<String>, AccessError> {
        let access = self.access_of(path_prefix);
        access.map_or_else(|| Ok(Vec::new()), |access| access.change(config))
    }

    /// Reads again the files that say who may read a cache, and returns remarks about them.
    /// `path_prefix`: which cache.
    ///
    /// # Errors
    ///
    /// As [`Access::reload`]; all stays as it was.
    pub fn reload_access(&self, path_prefix: &str) -> Result<Vec<String>, AccessError> {
        let access = self.access_of(path_prefix);
        access.map_or_else(|| Ok(Vec::new()), Access::reload)
    }

    fn access_of(&self, path_prefix: &str) -> Option<&Access> {
        let mut caches = self.caches.iter();
        let cache = caches.find(|cache| cache.path_prefix() == path_prefix.as_bytes());
        cache.and_then(Cache::access)
    }

    /// Whom a request is from, as far as its cache asks that; for logs.
    pub fn client(&self, head: Head<'_>) -> Client {
        let cache = self.cache_of(head.path());
        let access = cache.and_then(|(cache, _)| cache.access());
        access.map_or_else(Client::default, |access| {
            access.client(head, Instant::now())
        })
    }

    /// Whether it is known what may be read, in all caches: until then those whose policies have
    /// roots answer with 503.
    pub fn knows_policies(&self) -> bool {
        let policies = self.caches.iter().map(|cache| &cache.narinfos.policy);
        policies.into_iter().all(|policy| !policy.is_unknown())
    }

    /// Renders and signs ahead of need from now on, for each cache on a thread of low priority that
    /// lives as long as this site.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started. Everything is served all the same.
    pub fn render_ahead(&self) -> io::Result<()> {
        let count = u32::try_from(self.caches.len()).unwrap_or(u32::MAX);
        self.caches
            .iter()
            .try_for_each(|cache| cache.render_ahead(count))
    }

    /// Looks a second time at files that were found wrong, writes down what is known of files, and
    /// verifies what nobody asks for, as far as [`Trust`] says so: on threads of low priority that
    /// live as long as this site.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started. Everything is served all the same.
    pub fn watch_files(&self) -> io::Result<()> {
        if self.origin.watch.get().is_none() {
            let watch = Watch::start(&self.origin.health)?;
            drop(self.origin.watch.set(watch));
        }
        Ok(())
    }

    /// Ends what [`watch_files`](Self::watch_files) began: what is known of files is written down.
    /// Waits two seconds at most.
    pub fn stop_watching(&self) {
        if let Some(watch) = self.origin.watch.get() {
            watch.stop();
        }
    }

    /// The store that is served.
    pub fn store(&self) -> &dyn Store {
        &*self.origin.store
    }

    /// Begins to load the catalog, so that the first requests find it. Not needed: they would.
    pub fn warm_up(&self) {
        if let Some(catalog) = self.origin.store.catalog() {
            // A store that cannot be read now, or only by way of the daemon, is asked again by the
            // first request, and that says so if it fails.
            catalog.refresh().ok();
        }
    }

    /// The cache that a path belongs to, and the rest of the path.
    fn cache_of<'path>(&self, path: &'path [u8]) -> Option<(&Cache, &'path [u8])> {
        self.caches.iter().find_map(|cache| {
            let rest = path.strip_prefix(cache.path_prefix())?;
            matches!(rest, [] | [b'/', ..]).then_some((cache, rest))
        })
    }
}

impl Service for Site {
    type Local = Local;

    fn local(&self) -> Local {
        let snapshot = self
            .origin
            .store
            .catalog()
            .map(samovar_store::Catalog::current);
        Local {
            snapshot,
            checked: None,
        }
    }

    fn inline(&self, local: &mut Local, turn: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        let reply = match &self.front {
            None => reply,
            Some(front) => match front.inline(head, reply) {
                Ok(inline) => return inline,
                Err(reply) => reply,
            },
        };
        match self.cache_of(head.path()) {
            Some((cache, path)) => cache.inline(local, turn, head, path, reply),
            None => self.no_cache(head, reply),
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        let path = request.head().path();
        if self.front.is_some() && path == b"/readyz" {
            return self.readyz();
        }
        match self.cache_of(path) {
            Some((cache, _)) => cache.handle(request),
            None => self.handle_no_cache(request),
        }
    }

    /// A GET may have a body; it means nothing (RFC 9110, 9.3.1).
    fn intake(&self, head: Head<'_>) -> Intake {
        if head.method() != Method::Post {
            return Intake::Buffered(64 * 1024);
        }
        let cache = self.cache_of(head.path()).map(|(cache, _)| cache);
        match cache.is_some_and(|cache| cache.may_still_refuse(head)) {
            // Nothing is kept for somebody who may be nobody.
            true => Intake::Streamed(bulk::BODY_LEN_MAX),
            false => Intake::Buffered(bulk::BODY_LEN_MAX),
        }
    }

    fn observer(&self) -> &dyn samovar_http::Observer {
        &*self.origin.observer
    }
}
