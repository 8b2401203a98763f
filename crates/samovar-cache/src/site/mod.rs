//! The service: the caches of one store, and the server's own URLs.
//!
//! # Theory of operation
//!
//! A request belongs to the [`Cache`] with the longest prefix of its path, in whole segments. Each
//! cache has its own narinfos, because keys and policies differ; everything else about the store is
//! shared ([`SharedStore`]). If a cache is hidden from a client, the next shorter prefix applies,
//! as if that cache did not exist. If only a worker can find that out, the worker reads nothing of
//! the body and sends the request back to its I/O thread, which then handles it as if the cache did
//! not exist. So only the time of the response can reveal that a hidden cache exists.
//! [`Site::reconfigure`] replaces the caches between two requests.
//!
//! An I/O thread answers from memory: a hash part that is certainly not in the store, a narinfo or
//! a small NAR cached in the present epoch, and everything that does not depend on the store.
//! Before it answers about the store, it checks that its snapshot of the catalog is current. One
//! check per turn of the engine is enough, because all requests of a turn were sent before it. All
//! other requests go to a worker, which reads the database, answers, and caches the result. During
//! an outage of the database, one request at a time tries to read it; the others get 503 from the
//! I/O thread.

mod about;
mod admission;
mod background;
pub(crate) mod cache;
pub(crate) mod config;
pub(crate) mod current;
mod front;
mod metrics;
pub(crate) mod reconfigure;
mod storage_status;

use std::io;
use std::sync::{Arc, Mutex};

use samovar_http::http::Method;
use samovar_http::{Head, Inline, Intake, Reply, Request, Response, Service, Turn};
use samovar_metrics::{Event, Metrics, Observer, Routed};
use samovar_storage::Storage;
use samovar_store::Store;

use crate::answer::bulk;
use crate::known::fresh::Fresh;
use crate::known::gc_lease::LeaseConfig;
use crate::known::health::{Trust, Watch};
use crate::known::nar_cache::NarCacheDirectory;
use crate::known::program::Program;
use crate::known::shared_store::{SharedConfig, SharedStore};
use crate::narinfo::narinfos::NarinfoMemory;
use crate::oidc::Oidc;
use crate::refusal::Fixed;
use crate::route::upload::UploadRoute;
use crate::route::{Route, path};
use crate::site::background::Background;
use crate::site::cache::Cache;
use crate::site::config::CacheConfig;
use crate::site::current::{Caches, Clients, Current, LocalCaches};
use crate::sync::Locked;
use crate::upload;
use crate::upstream::Upstreams;

/// The configuration of a site.
#[derive(Debug)]
pub struct SiteConfig {
    /// The caches. No two may have the same prefix.
    pub caches: Vec<CacheConfig>,
    /// Memory for narinfos, in bytes. The caches share it equally.
    pub narinfo_memory_len: usize,
    /// Memory for the small-NAR cache, in bytes.
    pub small_nar_memory_len: usize,
    /// The directory and size of the NAR cache; `None` if it is off.
    pub nar_cache: Option<NarCacheDirectory>,
    /// The configuration of GC leases; `None` if they are off.
    pub gc_lease: Option<LeaseConfig>,
    /// When the files of paths are verified, and where that is recorded.
    pub trust: Trust,
    /// The program's name and version, as shown at `/version`.
    pub program: Program,
    /// The metrics, if the caches serve `/metrics`, `/health`, `/healthz` and `/readyz`.
    pub shown_metrics: Option<Arc<Metrics>>,
    /// The upload storage; `None` if uploads are off. A reload takes [`CacheConfig::uploads`] of
    /// new caches from it.
    pub storage: Option<Arc<Storage>>,
    /// The upstream caches, which [`Upstreams::start`] has prepared; `None` if there are none.
    pub upstreams: Option<Arc<Upstreams>>,
}

impl Default for SiteConfig {
    fn default() -> Self {
        Self {
            caches: vec![CacheConfig::default()],
            narinfo_memory_len: NarinfoMemory::RENDERED_LEN_MAX,
            small_nar_memory_len: 32 << 20,
            nar_cache: None,
            gc_lease: None,
            trust: Trust::default(),
            program: Program::default(),
            shown_metrics: None,
            storage: None,
            upstreams: None,
        }
    }
}

/// The binary caches of one store.
#[derive(Debug)]
pub struct Site {
    pub(crate) shared: Arc<SharedStore>,
    pub(crate) current: Arc<Current>,
    /// Background threads. Locked while the caches are replaced.
    pub(crate) background: Mutex<Background>,
    pub(crate) narinfo_memory_len: usize,
    storage: Option<Arc<Storage>>,
    /// The upstreams of the present caches.
    pub(crate) upstreams: Mutex<Option<Arc<Upstreams>>>,
    /// Whether the observer wants to know of each request.
    is_observed: bool,
}

/// The state of one I/O thread: its copies of the caches and the catalog.
#[derive(Debug)]
pub struct Local {
    local_caches: LocalCaches,
    fresh: Fresh,
}

impl Site {
    /// Creates the caches of `store`.
    pub fn new(store: Box<dyn Store>, config: SiteConfig, observer: Arc<dyn Observer>) -> Self {
        if let Some(storage) = &config.storage {
            storage.set_lend_slot(|wait| samovar_http::lend_slot(wait));
            let observer = Arc::clone(&observer);
            storage.set_on_lost(move |file| observer.event(&Event::FileLost(file)));
        }
        let narinfo_memory_len = config.narinfo_memory_len;
        let settings = SharedConfig {
            small_nar_memory_len: config.small_nar_memory_len,
            nar_cache: config.nar_cache,
            gc_lease: config.gc_lease,
            trust: config.trust,
            program: config.program,
            shown_metrics: config.shown_metrics,
        };
        let is_observed = observer.observes();
        let shared = Arc::new(SharedStore::new(store, settings, observer));
        if let Some(storage) = &config.storage {
            let watch = Arc::downgrade(&shared.pin_watch);
            let changed = move || watch.upgrade().iter().for_each(|watch| watch.change());
            storage.set_on_pins_changed(changed);
        }
        let caches = {
            let upstreams = config.upstreams.as_ref();
            Caches::build(&shared, config.caches, narinfo_memory_len, None, upstreams)
        };
        shared.health.watch(caches.path_caches().collect());
        caches.announce(&*shared.observer);
        let background = Background::start(&caches);
        Self {
            shared,
            current: Arc::new(Current::new(caches)),
            background: Mutex::new(background),
            narinfo_memory_len,
            storage: config.storage,
            upstreams: Mutex::new(config.upstreams),
            is_observed,
        }
    }

    /// Returns a function that writes the narinfos of uploaded paths that are missing in the
    /// storage directory. It does nothing after the site is dropped.
    pub fn mirror_repair(&self) -> impl Fn() + Send + 'static {
        let current = Arc::downgrade(&self.current);
        move || {
            if let Some(current) = current.upgrade() {
                current.get().iter().for_each(Cache::repair_mirror);
            }
        }
    }

    /// Returns the storage for uploads, if one is configured.
    pub fn storage(&self) -> Option<&Arc<Storage>> {
        self.storage.as_ref()
    }

    /// Returns the upstream caches; `None` if there are none.
    pub fn upstreams(&self) -> Option<Arc<Upstreams>> {
        self.upstreams.locked().clone()
    }

    /// Returns the issuers of ID tokens; `None` if there are none.
    pub fn oidc(&self) -> Option<Arc<Oidc>> {
        self.caches().iter().find_map(|cache| cache.oidc.clone())
    }

    /// Returns the observer of this site's events.
    pub fn observer_of_events(&self) -> &Arc<dyn Observer> {
        &self.shared.observer
    }

    pub(crate) fn caches(&self) -> Arc<Caches> {
        self.current.get()
    }

    /// Returns a handle that looks up clients and store paths of requests, for logs.
    pub fn clients(&self) -> Clients {
        Clients(Arc::downgrade(&self.current))
    }

    /// Whether the roots of all policies are known. Until then, caches with unknown roots answer
    /// 503.
    pub fn knows_policies(&self) -> bool {
        self.caches().know_policies()
    }

    /// Starts one low-priority thread per cache that renders narinfos before they are requested.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started. Requests are served without it.
    pub fn prefetch_narinfos(&self) -> io::Result<()> {
        self.background.locked().prefetch_narinfos()
    }

    /// Starts low-priority threads. As configured by [`Trust`], they read suspect files a second
    /// time, write verification records to the state directory, and verify the store in the
    /// background.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started. Requests are served without it.
    pub fn watch_files(&self) -> io::Result<()> {
        if self.shared.watch.get().is_none() {
            let watch = Watch::start(&self.shared.health)?;
            drop(self.shared.watch.set(watch));
        }
        Ok(())
    }

    /// Ends the threads of [`watch_files`](Self::watch_files) and writes the verification records.
    /// Waits up to two seconds.
    pub fn stop_watching(&self) {
        if let Some(watch) = self.shared.watch.get() {
            watch.stop();
        }
    }

    /// Answers requests that wait for changes of pins, and from now on each further one at once.
    /// Called when the server begins to stop.
    pub fn stop_waiting(&self) {
        self.shared.pin_watch.close();
    }

    /// Returns the store that is served.
    pub fn store(&self) -> &dyn Store {
        &*self.shared.store
    }
}

impl Service for Site {
    type Local = Local;

    fn local(&self) -> Local {
        Local {
            local_caches: LocalCaches::of(&self.current),
            fresh: Fresh::new(&*self.shared.store),
        }
    }

    fn inline(&self, local: &mut Local, turn: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        let Local {
            local_caches,
            fresh,
        } = local;
        let caches = local_caches.now(&self.current);
        let fixed = &self.shared.fixed;
        let below = |cache| Some((cache, Cache::below_prefix(cache, head.path())?));
        let mut caches_below = caches.iter().filter_map(below);
        let first = caches_below.next();
        // Whatever happens to the request, it counts for the first cache with a prefix of its URL.
        let mut route = match first {
            Some((cache, path)) => cache.route(path, head.query()),
            None => Route::of(head.path(), head.query()),
        };
        let mut reply = reply;
        if self.is_observed {
            let routed = Routed {
                class: route.class(head.method()),
                cache: first.map(|(cache, _)| cache.number),
                hash_part: route.hash_part(),
            };
            reply = reply.with_tag(routed.tag());
        }
        if !matches!(head.method(), Method::Get | Method::Head) {
            if is_foreign(head) {
                return reply.prepared(fixed.get(Fixed::ForeignOrigin));
            }
        } else if caches.have_health() {
            match path::decode(head.path()).as_deref() {
                Some(front::HEALTHZ) => return reply.prepared(fixed.get(Fixed::Healthy)),
                Some(front::HEALTH) if self.shared.shown_metrics.is_some() => {
                    return reply.prepared(fixed.get(Fixed::Healthy));
                }
                Some(front::READYZ) => return reply.dispatch_slow(),
                _ => {}
            }
        }
        let Some((mut cache, _)) = first else {
            return front::inline(&self.shared, caches, head, &route, reply);
        };
        loop {
            if !head.was_sent_back() || !is_hidden_from(cache, head) {
                match cache.inline(fresh, turn, head, &route, reply) {
                    Ok(inline) => return inline,
                    Err(unused) => reply = unused,
                }
            }
            // The cache is hidden from the client.
            let Some((next, path)) = caches_below.next() else {
                return reply.prepared(fixed.get(front::unknown(head)));
            };
            (cache, route) = (next, next.route(path, head.query()));
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        let caches = self.caches();
        let path = path::decode(request.head().path());
        if caches.have_health() && path.as_deref() == Some(front::READYZ) {
            return front::readyz(&self.shared, &caches, self.storage.as_ref());
        }
        let (mut is_hidden, mut has_asked) = (false, false);
        for cache in caches.iter() {
            let head = request.head();
            if cache.below_prefix(head.path()).is_none() {
                continue;
            }
            let is_pending = is_hidden_from(cache, head) && cache.may_still_refuse(head);
            if is_pending && head.was_sent_back() {
                is_hidden = true;
                continue;
            }
            if has_asked && !is_pending {
                return Response::send_back();
            }
            match cache.handle(request) {
                Some(response) => return response,
                None => (is_hidden, has_asked) = (true, has_asked || is_pending),
            }
        }
        match is_hidden {
            true if has_asked => Response::send_back(),
            true => front::unknown(request.head()).response(),
            false => front::handle(&self.shared, &caches, request),
        }
    }

    /// Decides how to receive the body of a request. The body of a GET has no meaning (RFC 9110,
    /// 9.3.1).
    fn intake(&self, head: Head<'_>) -> Intake {
        let caches = self.caches();
        let found = caches.iter().find_map(|cache| {
            let path = cache.below_prefix(head.path())?;
            let is_hidden = is_hidden_from(cache, head);
            let is_pending = is_hidden && cache.may_still_refuse(head) && !head.was_sent_back();
            (is_pending || !is_hidden).then_some((cache, path, is_pending))
        });
        if let Some((cache, _, true)) = found
            && !cache
                .uploads()
                .is_some_and(|stored| upload::has_seen_token(stored, head))
        {
            return upload::untouched(head);
        }
        if !matches!(head.method(), Method::Post | Method::Put) {
            return Intake::Buffered(64 * 1024);
        }
        let is_push = |path: &[u8]| {
            let route = Route::of(path, head.query());
            matches!(route, Route::Upload(UploadRoute::Push(_)))
        };
        let (cache, path) = found.map(|(cache, path, _)| (cache, path)).unzip();
        let uploads = cache.and_then(Cache::uploads);
        match (head.method(), uploads) {
            (Method::Post, Some(uploads)) if path.is_some_and(is_push) => {
                return upload::intake(uploads, head);
            }
            (Method::Put, Some(uploads)) => return upload::intake(uploads, head),
            (Method::Put, None) => return Intake::Buffered(64 * 1024),
            _ => {}
        }
        match cache.is_some_and(|cache| cache.may_still_refuse(head)) {
            // Do not buffer the bodies of clients that are not authenticated yet.
            true => Intake::Streamed(bulk::BODY_LEN_MAX),
            false => Intake::Buffered(bulk::BODY_LEN_MAX),
        }
    }

    fn observer(&self) -> &dyn samovar_http::Observer {
        &*self.shared.observer
    }
}

/// Whether a cache is hidden from the client, unless a worker finds that a password or a token for
/// uploads admits it.
fn is_hidden_from(cache: &Cache, head: Head<'_>) -> bool {
    cache.guard().is_some_and(|access| access.hides_from(head))
}

/// Whether a browser sends the request for a web page of another origin. A browser adds the stored
/// password of this site to such a request, and the page cannot be trusted with that.
fn is_foreign(head: Head<'_>) -> bool {
    let Some(origin) = head.header("Origin") else {
        return false;
    };
    let host = head.header("Host").unwrap_or_default();
    let mut schemes = [&b"https://"[..], b"http://"].into_iter();
    let own = schemes.find_map(|scheme| origin.strip_prefix(scheme));
    !own.is_some_and(|own| own.eq_ignore_ascii_case(host))
}
