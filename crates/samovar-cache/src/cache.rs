//! The service: which answer a request gets, and on which thread.
//!
//! # Theory of operation
//!
//! An I/O thread answers what is in memory: a hash part that is certainly not in the store, a
//! narinfo that was rendered in this state of the store, and everything that does not depend on the
//! store. Before it says anything about the store it asks the catalog whether its snapshot is still
//! the truth; once for each read from a socket, since requests of one read were sent before it. In
//! every other case a worker answers, asks the database, and leaves what it rendered for the next
//! one who asks.

use std::sync::Arc;
use std::time::Instant;

use samovar_http::http::{Method, Status};
use samovar_http::{Body, Head, Inline, Intake, Prepared, Reply, Request, Response, Service, Turn};
use samovar_nix::{HashPart, PathInfo, SecretKey};
use samovar_store::{RealisationId, Snapshot, Store, StoreError};

use crate::answers::{
    NO_PATH, NOT_ALLOWED, NOT_FOUND, TEXT, json_response, no_path, unavailable, wrong_hash,
};
use crate::listings::Listings;
use crate::narinfo::Signer;
use crate::observer::Observer;
use crate::rendered::{RenderedCache, Stamp};
use crate::route::{Route, route};
use crate::trouble::Trouble;

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
}

impl Default for Config {
    fn default() -> Self {
        Self {
            priority: 30,
            path_prefix: String::new(),
            key: None,
            rendered_memory_len: 32 << 20,
        }
    }
}

/// A binary cache of one store.
#[derive(Debug)]
pub struct Cache {
    pub(crate) store: Arc<dyn Store>,
    path_prefix: Box<[u8]>,
    signer: Signer,
    rendered: RenderedCache,
    pub(crate) listings: Listings,
    trouble: Trouble,
    pub(crate) observer: Arc<dyn Observer>,
    cache_info: Prepared,
    no_path: Prepared,
    not_found: Prepared,
    not_allowed: Prepared,
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
        Self {
            store: store.into(),
            path_prefix: config.path_prefix.into_bytes().into_boxed_slice(),
            signer: Signer::new(config.key),
            rendered: RenderedCache::new(config.rendered_memory_len),
            listings: Listings::default(),
            trouble: Trouble::default(),
            observer,
            cache_info: text(Status::OK, &cache_info),
            no_path: text(Status::NOT_FOUND, NO_PATH),
            not_found: text(Status::NOT_FOUND, NOT_FOUND),
            not_allowed: Prepared::new(
                Status::METHOD_NOT_ALLOWED,
                &[TEXT, ("Allow", "GET, HEAD")],
                NOT_ALLOWED.as_bytes(),
            ),
        }
    }

    /// Changes the key that narinfos are signed with, from the next answer on.
    pub fn change_key(&self, key: Option<SecretKey>) {
        self.signer.change(key);
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

    // On workers.

    fn narinfo(&self, hash_part: HashPart) -> Result<Response, StoreError> {
        let mut epoch = None;
        // If the catalog cannot be brought up to date, or not at once, the store answers by other
        // means.
        if let Some(Ok(Some(snapshot))) = self.store.catalog().map(samovar_store::Catalog::refresh)
        {
            if !snapshot.may_contain(&hash_part) {
                self.recovered();
                return Ok(no_path());
            }
            epoch = Some(snapshot.epoch);
        }
        let before = self.rendered.find(&hash_part);
        let Some(info) = self.lookup(hash_part)? else {
            self.rendered.remove(&hash_part);
            return Ok(no_path());
        };
        let rendered = self
            .signer
            .render(&info, self.store.store_dir(), epoch, before.as_ref());
        let body = rendered.prepared.body().to_vec();
        self.rendered.insert(hash_part, rendered);
        let response = Response::new(Status::OK, Body::Bytes(body.into()));
        Ok(response.header("Content-Type", "text/x-nix-narinfo"))
    }

    pub(crate) fn lookup(&self, hash_part: HashPart) -> Result<Option<PathInfo>, StoreError> {
        let info = self.store.lookup(hash_part)?;
        self.recovered();
        Ok(info)
    }

    fn realisation(&self, id: &RealisationId) -> Result<Response, StoreError> {
        Ok(match self.store.realisation(id)? {
            Some(json) => json_response(Body::Bytes(json.into_bytes().into())),
            None => Response::text(Status::NOT_FOUND, NOT_FOUND),
        })
    }

    fn note(&self, error: StoreError) {
        if self.trouble.note(error, Instant::now()) {
            self.observer.store_failed(error);
        }
    }

    fn recovered(&self) {
        if self.trouble.clear() {
            self.observer.store_recovered();
        }
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
            return reply.prepared(&self.not_allowed);
        }
        let hash_part = match self.route(head) {
            Route::Narinfo(hash_part) => hash_part,
            Route::CacheInfo => return reply.prepared(&self.cache_info),
            Route::NoPath => return reply.prepared(&self.no_path),
            Route::Unknown => return reply.prepared(&self.not_found),
            _ => return reply.dispatch(),
        };
        let Some(snapshot) = self.fresh(local, turn) else {
            return reply.dispatch();
        };
        if !snapshot.may_contain(&hash_part) {
            return reply.prepared(&self.no_path);
        }
        let now = Stamp {
            epoch: snapshot.epoch,
            key: self.signer.generation(),
        };
        match self.rendered.find(&hash_part) {
            Some(rendered) if rendered.stamp == Some(now) => reply.prepared(&rendered.prepared),
            _ => reply.dispatch(),
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
            // Answered on the I/O thread, all three.
            Route::CacheInfo | Route::NoPath | Route::Unknown => {
                Ok(Response::text(Status::NOT_FOUND, NOT_FOUND))
            }
        };
        outcome.unwrap_or_else(|error| {
            if is_about_one_path(error) {
                self.observer.path_failed(&format_args!("{head:?}"), &error);
            } else {
                self.note(error);
            }
            unavailable()
        })
    }

    /// A GET may have a body; it means nothing (RFC 9110, 9.3.1).
    fn intake(&self, _: Head<'_>) -> Intake {
        Intake::Buffered(64 * 1024)
    }

    fn observer(&self) -> &dyn samovar_http::Observer {
        &*self.observer
    }
}

/// Whether an error is about one row of the database, and all others may be well.
fn is_about_one_path(error: StoreError) -> bool {
    use samovar_store::Corruption as Row;
    matches!(
        error,
        StoreError::Corrupt(Row::StorePath | Row::NarHash | Row::NarSize | Row::Realisation)
    )
}
