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

use samovar_http::http::{Method, Status, range};
use samovar_http::{Body, Head, Inline, Intake, Prepared, Reply, Request, Response, Service, Turn};
use samovar_nix::{HashPart, NarHash, PathInfo, SecretKey, StorePath};
use samovar_store::{RealisationId, Snapshot, Store, StoreError, Tree, TreeError};

use crate::listings::Listings;
use crate::log_body::{LogFile, LogText};
use crate::nar_body::NarBody;
use crate::narinfo::Signer;
use crate::observer::Observer;
use crate::registration::Registration;
use crate::rendered::{RenderedCache, Stamp};
use crate::route::{Route, route};
use crate::trouble::Trouble;

/// nix-serve's words.
const NO_PATH: &str = "No such path.\n";
const NOT_FOUND: &str = "File not found.\n";
const WRONG_HASH: &str = "Incorrect NAR hash. Maybe the path has been recreated.\n";
const NOT_ALLOWED: &str = "This cache can only be read: GET and HEAD are understood.\n";
const UNAVAILABLE: &str = "The store cannot be read at the moment. Try again.\n";

const TEXT: (&str, &str) = ("Content-Type", "text/plain");
/// What Nix says when it uploads a NAR. Not `text/plain`, as nix-serve: proxies compress texts on
/// their way, and a compressed download cannot be resumed.
const NAR_TYPE: &str = "application/x-nix-nar";

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
    store: Arc<dyn Store>,
    path_prefix: Box<[u8]>,
    signer: Signer,
    rendered: RenderedCache,
    listings: Listings,
    trouble: Trouble,
    observer: Arc<dyn Observer>,
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

    /// Loads the catalog, so that the first requests find it. Not needed: they would do it.
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
        // If the catalog cannot be brought up to date, the store may still answer by other means.
        if let Some(Ok(snapshot)) = self.store.catalog().map(samovar_store::Catalog::refresh) {
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

    fn lookup(&self, hash_part: HashPart) -> Result<Option<PathInfo>, StoreError> {
        let info = self.store.lookup(hash_part)?;
        self.recovered();
        Ok(info)
    }

    /// What is known of a path, in a form that can tell later whether it still holds.
    fn registration(&self, hash_part: HashPart) -> Result<Option<Registration>, StoreError> {
        let snapshot = self.store.catalog().map(samovar_store::Catalog::current);
        let info = self.lookup(hash_part)?;
        Ok(info.map(|info| Registration {
            info,
            snapshot,
            store: Arc::clone(&self.store),
            observer: Arc::clone(&self.observer),
        }))
    }

    fn nar(
        &self,
        head: Head<'_>,
        hash_part: HashPart,
        nar_hash: Option<NarHash>,
    ) -> Result<Response, StoreError> {
        let Some(registration) = self.registration(hash_part)? else {
            return Ok(no_path());
        };
        let info = &registration.info;
        if nar_hash.is_some_and(|nar_hash| nar_hash != info.nar_hash) {
            return Ok(Response::text(Status::NOT_FOUND, WRONG_HASH));
        }
        let size = info.nar_size;
        let outcome = match head.header("Range") {
            // Ranges are defined for GET alone (RFC 9110, 14.2). An `If-Range` cannot match: there
            // are no validators here to compare with (13.1.5).
            Some(value) if head.method() == Method::Get && head.header("If-Range").is_none() => {
                range::resolve(value, size)
            }
            _ => range::RangeOutcome::Whole,
        };
        let (status, start, end) = match outcome {
            range::RangeOutcome::Whole => (Status::OK, 0, size),
            range::RangeOutcome::Part { start, end } => (Status::PARTIAL_CONTENT, start, end),
            range::RangeOutcome::Unsatisfiable => {
                let response = Response::text(Status::RANGE_NOT_SATISFIABLE, "Beyond the end.\n");
                return Ok(response.header("Content-Range", format!("bytes */{size}")));
            }
        };
        let opened = self.store.tree(&info.path)?.nar().and_then(|mut reader| {
            reader.skip_to(start)?;
            Ok(reader)
        });
        let reader = match opened {
            Ok(reader) => reader,
            Err(error) => return self.unreadable(&registration, error),
        };
        let body = NarBody::new(reader, (start, end), size, registration);
        let response = Response::new(status, Body::Source(Box::new(body)))
            .header("Content-Type", NAR_TYPE)
            .header("Accept-Ranges", "bytes");
        Ok(match status {
            Status::PARTIAL_CONTENT => {
                response.header("Content-Range", format!("bytes {start}-{}/{size}", end - 1))
            }
            _ => response,
        })
    }

    fn listing(&self, hash_part: HashPart) -> Result<Response, StoreError> {
        let Some(registration) = self.registration(hash_part)? else {
            return Ok(no_path());
        };
        let nar_hash = registration.info.nar_hash;
        if let Some(listing) = self.listings.find(&nar_hash) {
            return Ok(json_response(Body::Shared(listing)));
        }
        let tree: Tree = self.store.tree(&registration.info.path)?;
        match tree.listing() {
            Ok(json) if registration.holds()? => {
                let listing: Arc<[u8]> = json.into_bytes().into();
                self.listings.insert(&nar_hash, &listing);
                Ok(json_response(Body::Shared(listing)))
            }
            // What was read may be of two registrations.
            Ok(_) => Ok(unavailable()),
            Err(error) => self.unreadable(&registration, error),
        }
    }

    /// The files of a path cannot be read, and nothing was sent yet. If the path is gone, that is
    /// the answer; if not, something is wrong that is not the client's doing.
    fn unreadable(
        &self,
        registration: &Registration,
        error: TreeError,
    ) -> Result<Response, StoreError> {
        let was = &registration.info;
        match self.lookup(was.path.hash_part())? {
            Some(now) if now.nar_hash == was.nar_hash => {
                registration.report(&error.into());
                Ok(unavailable())
            }
            Some(_) => Ok(Response::text(Status::NOT_FOUND, WRONG_HASH)),
            None => Ok(no_path()),
        }
    }

    fn log(&self, head: Head<'_>, path: &StorePath) -> Result<Response, StoreError> {
        let Some(log) = self.store.log(path)? else {
            return Ok(no_path());
        };
        let respond = |body| {
            Response::new(Status::OK, body)
                .header("Content-Type", "text/plain")
                .header("Vary", "Accept-Encoding")
        };
        let log = if log.is_bzip2() && accepts_bzip2(head) {
            match log.into_bzip2() {
                Ok((file, len)) => {
                    let body = LogFile {
                        file: Arc::new(file),
                        len,
                    };
                    return Ok(
                        respond(Body::Source(Box::new(body))).header("Content-Encoding", "bzip2")
                    );
                }
                Err(log) => log,
            }
        } else {
            log
        };
        Ok(respond(Body::Source(Box::new(LogText(log)))))
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
                Some(_) => Response::text(Status::NOT_FOUND, WRONG_HASH),
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

fn no_path() -> Response {
    Response::text(Status::NOT_FOUND, NO_PATH)
}

/// 404 is said only when the database said so: clients remember a miss for an hour.
fn unavailable() -> Response {
    Response::text(Status::SERVICE_UNAVAILABLE, UNAVAILABLE).header("Retry-After", "1")
}

fn json_response(body: Body) -> Response {
    Response::new(Status::OK, body).header("Content-Type", "application/json")
}

/// Whether the client lists `bzip2` and does not give it weight 0 (RFC 9110, 12.5.3).
fn accepts_bzip2(head: Head<'_>) -> bool {
    head.headers()
        .filter(|(name, _)| name.eq_ignore_ascii_case(b"accept-encoding"))
        .any(|(_, value)| {
            let value = String::from_utf8_lossy(value);
            value.split(',').any(|item| {
                let (coding, weight) = item.split_once(';').unwrap_or((item, ""));
                let weight = weight.trim().trim_start_matches(['q', 'Q']).trim_start();
                let is_zero = weight
                    .strip_prefix('=')
                    .is_some_and(|number| number.trim().bytes().all(|b| matches!(b, b'0' | b'.')));
                coding.trim().eq_ignore_ascii_case("bzip2") && !is_zero
            })
        })
}
