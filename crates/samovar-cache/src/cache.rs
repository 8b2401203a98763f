//! The service: which answer a request gets, and on which thread.
//!
//! # Theory of operation
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
use std::sync::{Arc, OnceLock};

use samovar_http::http::{Method, Status};
use samovar_http::{Body, Head, Inline, Intake, Prepared, Reply, Request, Response, Service, Turn};
use samovar_nix::{HashPart, PathInfo, SecretKey};
use samovar_store::{RealisationId, Snapshot, Store, StoreError};

use crate::ahead::Ahead;
use crate::answers::{
    NO_PATH, NOT_ALLOWED, NOT_FOUND, ONLY_POST, RETRY_AFTER, TEXT, UNAVAILABLE, WRONG_HASH,
    damaged, json_response, no_path, unavailable, wrong_hash,
};
use crate::bulk;
use crate::closure::Closures;
use crate::health::{Health, Trust, Watch};
use crate::hold::{Hold, Holds};
use crate::kept::{KeptNars, KeptSpace};
use crate::narinfos::{Answer, Narinfos};
use crate::observer::Observer;
use crate::plans::Plans;
use crate::prepared_body::{PreparedBody, may_go_inline};
use crate::route::{Route, route};
use crate::small_nars::SmallNars;
use crate::under_way::UnderWay;

/// What a cache is made of.
#[derive(Debug)]
pub struct Config {
    /// `Priority` in `nix-cache-info`: clients prefer caches with a lower one. nix-serve's is 30.
    pub priority: u32,
    /// URL path that the cache is mounted under, as it is sent, without a slash at its end; empty
    /// for the root.
    pub path_prefix: String,
    /// The key to sign with.
    pub key: Option<SecretKey>,
    /// Memory for rendered narinfos, in bytes.
    pub rendered_memory_len: usize,
    /// Memory for small NARs, in bytes.
    pub small_nar_memory_len: usize,
    /// Where NARs of many small files are kept; `None`: nowhere.
    pub kept_space: Option<KeptSpace>,
    /// Holding paths against garbage collection; `None`: not at all.
    pub hold: Option<Hold>,
    /// How far files are trusted.
    pub trust: Trust,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            priority: 30,
            path_prefix: String::new(),
            key: None,
            rendered_memory_len: 32 << 20,
            small_nar_memory_len: 32 << 20,
            kept_space: None,
            hold: None,
            trust: Trust::default(),
        }
    }
}

/// A binary cache of one store.
#[derive(Debug)]
pub struct Cache {
    pub(crate) store: Arc<dyn Store>,
    path_prefix: Box<[u8]>,
    pub(crate) narinfos: Arc<Narinfos>,
    /// Ends its thread when dropped.
    ahead: OnceLock<Ahead>,
    pub(crate) plans: Plans,
    pub(crate) small_nars: Arc<SmallNars>,
    pub(crate) health: Arc<Health>,
    /// Ends its threads when dropped.
    watch: OnceLock<Watch>,
    pub(crate) kept_nars: Option<KeptNars>,
    pub(crate) closures: Closures,
    pub(crate) under_way: Arc<UnderWay>,
    pub(crate) observer: Arc<dyn Observer>,
    cache_info: Prepared,
    no_path: Prepared,
    wrong_hash: Prepared,
    not_found: Prepared,
    not_allowed: Prepared,
    only_post: Prepared,
    unavailable: Prepared,
}

impl std::fmt::Debug for dyn Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Observer")
    }
}

/// What an I/O thread knows of the store.
#[derive(Debug)]
pub struct Local {
    snapshot: Option<Arc<Snapshot>>,
    /// The turn in which the snapshot was last looked at, and whether it was the truth.
    checked: Option<(Turn, bool)>,
}

impl Cache {
    /// A cache of `store`.
    pub fn new(store: Box<dyn Store>, config: Config, observer: Arc<dyn Observer>) -> Self {
        let cache_info = format!(
            "StoreDir: {}\nWantMassQuery: 1\nPriority: {}\n",
            store.store_dir(),
            config.priority
        );
        let text = |status, body: &str| Prepared::new(status, &[TEXT], body.as_bytes());
        let refused = |allowed, body: &str| {
            let fields = [TEXT, ("Allow", allowed)];
            Prepared::new(Status::METHOD_NOT_ALLOWED, &fields, body.as_bytes())
        };
        let store: Arc<dyn Store> = store.into();
        // Without a thread, without holding.
        let holds = config
            .hold
            .and_then(|hold| Holds::start(hold, Arc::clone(&store), Arc::clone(&observer)).ok());
        let narinfos = Arc::new(Narinfos::new(
            Arc::clone(&store),
            config.key,
            config.rendered_memory_len,
            holds.unwrap_or_default(),
            Arc::clone(&observer),
        ));
        let small_nars = Arc::new(SmallNars::new(config.small_nar_memory_len));
        let health = Health::new(
            Arc::clone(&store),
            Arc::clone(&observer),
            config.trust,
            Arc::clone(&narinfos),
            Arc::clone(&small_nars),
        );
        Self {
            narinfos,
            health: Arc::new(health),
            watch: OnceLock::new(),
            store,
            path_prefix: config.path_prefix.into_bytes().into_boxed_slice(),
            ahead: OnceLock::new(),
            plans: Plans::default(),
            small_nars,
            kept_nars: config
                .kept_space
                .map(|space| KeptNars::new(space, Arc::clone(&observer))),
            closures: Closures::default(),
            under_way: Arc::default(),
            observer,
            cache_info: text(Status::OK, &cache_info),
            no_path: text(Status::NOT_FOUND, NO_PATH),
            wrong_hash: text(Status::NOT_FOUND, WRONG_HASH),
            not_found: text(Status::NOT_FOUND, NOT_FOUND),
            not_allowed: refused("GET, HEAD", NOT_ALLOWED),
            only_post: refused("POST", ONLY_POST),
            unavailable: Prepared::new(
                Status::SERVICE_UNAVAILABLE,
                &[TEXT, RETRY_AFTER],
                UNAVAILABLE.as_bytes(),
            ),
        }
    }

    /// Changes the key that narinfos are signed with, from the next answer on.
    pub fn change_key(&self, key: Option<SecretKey>) {
        self.narinfos.change_key(key);
    }

    /// Renders and signs ahead of need from now on, on a thread of low priority that lives as long
    /// as this cache.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started. Everything is served all the same.
    pub fn render_ahead(&self) -> io::Result<()> {
        if self.ahead.get().is_none() {
            let ahead = Ahead::start(Arc::clone(&self.narinfos))?;
            drop(self.ahead.set(ahead));
        }
        Ok(())
    }

    /// Looks a second time at files that were found wrong, writes down what is known of files, and
    /// verifies what nobody asks for, as far as [`Trust`] says so: on threads of low priority that
    /// live as long as this cache.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started. Everything is served all the same.
    pub fn watch_files(&self) -> io::Result<()> {
        if self.watch.get().is_none() {
            let watch = Watch::start(&self.health)?;
            drop(self.watch.set(watch));
        }
        Ok(())
    }

    /// Ends what [`watch_files`](Self::watch_files) began: what is known of files is written down.
    /// Waits two seconds at most.
    pub fn stop_watching(&self) {
        if let Some(watch) = self.watch.get() {
            watch.stop();
        }
    }

    /// The store that is served.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Begins to load the catalog, so that the first requests find it. Not needed: they would.
    pub fn warm_up(&self) {
        if let Some(catalog) = self.store.catalog() {
            // A store that cannot be read now, or only by way of the daemon, is asked again by the
            // first request, and that says so if it fails.
            catalog.refresh().ok();
        }
    }

    fn route(&self, head: Head<'_>) -> Route {
        match head.path().strip_prefix(&*self.path_prefix) {
            Some(path) => route(path, head.query()),
            None => Route::Unknown,
        }
    }

    /// The state of the store, if the snapshot of this thread is the truth.
    fn fresh<'local>(&self, local: &'local mut Local, turn: Turn) -> Option<&'local Snapshot> {
        let (catalog, snapshot) = (self.store.catalog()?, local.snapshot.as_mut()?);
        let is_fresh = match local.checked {
            Some((checked, is_fresh)) if checked == turn => is_fresh,
            _ => catalog.check(snapshot),
        };
        local.checked = Some((turn, is_fresh));
        is_fresh.then_some(snapshot)
    }

    /// Leaves a request to a worker: what is answered out of files may wait for a disk, and what is
    /// answered out of the database does not wait behind it. Unless it is known what the worker
    /// would say.
    fn pass_on(&self, route: &Route, reply: Reply<'_>) -> Inline {
        // There are logs whatever the database says.
        if !matches!(route, Route::Log(_))
            && let Some(error) = self.store.down()
        {
            self.narinfos.note(error);
            return reply.prepared(&self.unavailable);
        }
        match route {
            Route::Nar { .. } | Route::Listing(_) | Route::Log(_) => reply.dispatch_slow(),
            _ => reply.dispatch(),
        }
    }

    // On workers.

    fn narinfo(&self, hash_part: HashPart) -> Result<Response, StoreError> {
        let prepared = match self.narinfos.one(hash_part)? {
            Answer::Found { prepared, .. } => prepared,
            Answer::Absent => return Ok(no_path()),
            Answer::Damaged => {
                self.observer.path_kept_out();
                return Ok(damaged());
            }
            Answer::Failed => return Ok(unavailable()),
        };
        // A short one is copied for less than it costs to pull it.
        let body = match may_go_inline(&prepared) {
            true => Body::Bytes(prepared.body().to_vec().into()),
            false => PreparedBody::whole(prepared),
        };
        let response = Response::new(Status::OK, body);
        Ok(response.header("Content-Type", "text/x-nix-narinfo"))
    }

    pub(crate) fn lookup(&self, hash_part: HashPart) -> Result<Option<PathInfo>, StoreError> {
        let info = self.store.lookup(hash_part)?;
        self.narinfos.recovered();
        Ok(info)
    }

    fn realisation(&self, id: &RealisationId) -> Result<Response, StoreError> {
        Ok(match self.store.realisation(id)? {
            Some(json) => json_response(Body::Bytes(json.into_bytes().into())),
            None => Response::text(Status::NOT_FOUND, NOT_FOUND),
        })
    }
}

impl Service for Cache {
    type Local = Local;

    fn local(&self) -> Local {
        let snapshot = self.store.catalog().map(samovar_store::Catalog::current);
        Local {
            snapshot,
            checked: None,
        }
    }

    fn inline(&self, local: &mut Local, turn: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        if !matches!(head.method(), Method::Get | Method::Head) {
            let is_bulk = head.method() == Method::Post && self.route(head) == Route::Narinfos;
            return match is_bulk {
                true => reply.dispatch(),
                false => reply.prepared(&self.not_allowed),
            };
        }
        let route = self.route(head);
        let hash_part = match route {
            Route::Narinfo(hash_part) => hash_part,
            Route::Nar { hash_part, .. } if head.header("Range").is_none() => hash_part,
            Route::CacheInfo => return reply.prepared(&self.cache_info),
            Route::NoPath => return reply.prepared(&self.no_path),
            Route::Unknown => return reply.prepared(&self.not_found),
            Route::Narinfos => return reply.prepared(&self.only_post),
            _ => return self.pass_on(&route, reply),
        };
        let Some(snapshot) = self.fresh(local, turn) else {
            return self.pass_on(&route, reply);
        };
        if !snapshot.may_contain(&hash_part) {
            return reply.prepared(&self.no_path);
        }
        if let Route::Nar { nar_hash, .. } = &route {
            return match self.small_nars.find(&hash_part) {
                Some(nar) if nar.epoch != Some(snapshot.epoch) => self.pass_on(&route, reply),
                Some(nar) if nar_hash.is_some_and(|nar_hash| nar_hash != nar.nar_hash) => {
                    reply.prepared(&self.wrong_hash)
                }
                Some(nar) if may_go_inline(&nar.prepared) => reply.prepared(&nar.prepared),
                _ => self.pass_on(&route, reply),
            };
        }
        match self.narinfos.find(snapshot, &hash_part) {
            Some(rendered)
                if may_go_inline(&rendered.prepared) && self.narinfos.is_held(&rendered) =>
            {
                reply.prepared(&rendered.prepared)
            }
            // Its directories may have to be looked at.
            _ if self.health.is_marked(&hash_part) => reply.dispatch_slow(),
            _ => self.pass_on(&route, reply),
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        let head = request.head();
        let outcome = match self.route(head) {
            Route::Narinfo(hash_part) => self.narinfo(hash_part),
            Route::Nar {
                hash_part,
                nar_hash,
            } => self.nar(head, hash_part, nar_hash),
            Route::NarOfNoHash(hash_part) => self.lookup(hash_part).map(|info| match info {
                Some(_) => wrong_hash(),
                None => no_path(),
            }),
            Route::Listing(hash_part) => self.listing(hash_part),
            Route::Log(path) => self.log(head, &path),
            Route::Realisation(id) => self.realisation(&id),
            Route::Closure(hash_part) => self.closure(hash_part),
            Route::Narinfos => Ok(self.bulk(request)),
            // Answered on the I/O thread, all three.
            Route::CacheInfo | Route::NoPath | Route::Unknown => {
                Ok(Response::text(Status::NOT_FOUND, NOT_FOUND))
            }
        };
        outcome.unwrap_or_else(|error| {
            if error.is_about_one_path() {
                self.observer.path_failed(&format_args!("{head:?}"), &error);
            } else {
                self.narinfos.note(error);
            }
            unavailable()
        })
    }

    /// A GET may have a body; it means nothing (RFC 9110, 9.3.1).
    fn intake(&self, head: Head<'_>) -> Intake {
        Intake::Buffered(match head.method() {
            Method::Post => bulk::BODY_LEN_MAX,
            _ => 64 * 1024,
        })
    }

    fn observer(&self) -> &dyn samovar_http::Observer {
        &*self.observer
    }
}
