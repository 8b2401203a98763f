//! One binary cache: decides about a request, and which thread makes the response.
//!
//! A request takes the same steps on an I/O thread ([`Cache::inline`]) and, if it is dispatched,
//! again on a worker ([`Cache::handle`]): access control, routing, policy, response.
//! [`Site`](crate::Site) describes which responses are made on which thread.

use std::sync::Arc;
use std::time::Instant;

use samovar_http::http::{Method, Status};
use samovar_http::{Head, Inline, Reply, Request, Response, Turn};
use samovar_metrics::{Metrics, ServedCache};
use samovar_nix::narinfo::NarCoding;
use samovar_nix::{HashPart, StorePath};
use samovar_storage::StoredCache;
use samovar_storage::metadata::StoredPath;

use crate::access::{self, Access, Verdict};
use crate::answer::build_log;
use crate::answer::bulk;
use crate::answer::bulk::closure;
use crate::answer::listing;
use crate::answer::nar;
use crate::answer::realisation;
use crate::debug_info;
use crate::known::fresh::Fresh;
use crate::known::nar_cache::Form;
use crate::known::shared_store::SharedStore;
use crate::narinfo::form::NarinfoForm;
use crate::narinfo::narinfos::{NarinfoMemory, Narinfos};
use crate::oidc::Oidc;
use crate::pages::{self, PagedCache, PagesConfig};
use crate::prepared::may_go_inline;
use crate::reader::Reader;
use crate::refusal::{Absence, Fixed, Refusal};
use crate::route::upload::UploadRoute;
use crate::route::{Route, path};
use crate::site::about::{About, Facts};
use crate::site::config::CacheConfig;
use crate::upload::{self, Context, Uploaded};
use crate::upstream::{CacheUpstreams, Upstreams, references};

/// The header line of all answers of a cache that is not public: a shared cache, for example in a
/// reverse proxy, must not give them to other clients.
const PRIVATE_LINE: &[u8] = b"Cache-Control: private\r\n";

/// One binary cache of a store.
#[derive(Debug)]
pub(crate) struct Cache {
    shared: Arc<SharedStore>,
    pub(crate) name: String,
    /// The cache's number in the metrics: see [`ServedCache::number`].
    pub(crate) number: u16,
    pub(crate) path_prefix: Box<[u8]>,
    /// The prefix, decoded.
    prefix: Box<[u8]>,
    pub(crate) narinfos: Arc<Narinfos>,
    pub(crate) access: Option<Access>,
    about: About,
    priority: u32,
    pub(crate) pages: Option<PagesConfig>,
    uploads: Option<StoredCache>,
    pub(crate) oidc: Option<Arc<Oidc>>,
    upstreams: Option<Arc<CacheUpstreams>>,
    /// Whether the server has no other cache.
    is_only: bool,
}

impl Cache {
    /// Creates a cache. `before` is the cache that is replaced; its narinfos are kept if they would
    /// be the same. `is_only`: the server has no other cache.
    pub(crate) fn new(
        shared: &Arc<SharedStore>,
        config: CacheConfig,
        number: u16,
        memory: NarinfoMemory,
        before: Option<&Self>,
        upstreams: Option<&Arc<Upstreams>>,
        is_only: bool,
    ) -> Self {
        // The closures of deny rules contain uploaded paths.
        let name = |stored: &StoredCache| stored.name().to_owned();
        let has_same_uploads =
            |before: &&Self| before.uploads.as_ref().map(name) == config.uploads.as_ref().map(name);
        let before = before.filter(has_same_uploads);
        let narinfos = match before.map(|before| &before.narinfos) {
            Some(same) if same.are_made_of(&config.signing, &config.policy, memory) => {
                Arc::clone(same)
            }
            before => {
                let new = Narinfos::new(shared, config.signing, config.policy, memory);
                if let Some(before) = before {
                    new.reader.policy.inherit(&before.reader.policy);
                }
                Arc::new(new)
            }
        };
        let uploads = config
            .uploads
            .map(|stored| match narinfos.reader.policy.is_open() {
                true => stored,
                false => {
                    let narinfos = Arc::clone(&narinfos);
                    let hides =
                        move |path: &StoredPath| narinfos.reader.admit_uploaded(path).is_err();
                    stored.hiding(hides)
                }
            });
        let upstreams = upstreams.and_then(|all| {
            CacheUpstreams::new(all, config.upstreams, &narinfos, uploads.clone()).map(Arc::new)
        });
        let about = About::new(&Facts {
            store_dir: shared.store.store_dir(),
            priority: config.priority,
            public_keys: narinfos.signing.public_keys(),
            upstream_keys: upstreams
                .as_deref()
                .map(CacheUpstreams::client_keys)
                .unwrap_or_default(),
            coding: narinfos.signing.coding,
            has_uploads: uploads.is_some(),
            program: &shared.program.version,
        });
        Self {
            shared: Arc::clone(shared),
            name: config.name,
            number,
            prefix: path::prefix(&config.path_prefix),
            path_prefix: config.path_prefix.into_bytes().into_boxed_slice(),
            narinfos,
            access: config.access,
            about,
            priority: config.priority,
            pages: config.pages,
            uploads,
            oidc: config.oidc,
            upstreams,
            is_only,
        }
    }

    /// Returns the response to a method that a URL of this cache does not have.
    fn of_method(&self, method: Method) -> Fixed {
        Fixed::of_method(method, self.uploads.is_some())
    }

    pub(crate) fn uploads(&self) -> Option<&StoredCache> {
        self.uploads.as_ref()
    }

    /// Describes the cache for the metrics.
    pub(crate) fn served(&self) -> ServedCache {
        ServedCache {
            name: self.name.clone(),
            number: self.number,
            path_prefix: String::from_utf8_lossy(&self.path_prefix).into_owned(),
        }
    }

    /// Writes the narinfos that are missing in the directory of the storage.
    pub(crate) fn repair_mirror(&self) {
        if let Some(stored) = &self.uploads {
            upload::repair_mirror(self.context(stored));
        }
    }

    /// Returns the rest of a path below the cache's prefix; `None` if the path is not below it.
    pub(crate) fn below_prefix<'path>(&self, path: &'path [u8]) -> Option<&'path [u8]> {
        path::below(path, &self.prefix)
    }

    /// Returns the route of a path without the cache's prefix.
    pub(crate) fn route(&self, path: &[u8], query: Option<&[u8]>) -> Route {
        Route::parse(path, query, self.uploads.is_some())
    }

    pub(crate) fn reader(&self) -> &Reader {
        &self.narinfos.reader
    }

    /// Returns the access rules; `None` if all clients may read.
    pub(crate) fn guard(&self) -> Option<&Access> {
        self.access.as_ref().filter(|access| !access.is_open())
    }

    /// Returns the metrics, if this cache serves them. They are about all caches, and are shown to
    /// the readers of the one at the root.
    fn shown_metrics(&self) -> Option<&Metrics> {
        let is_root = self.prefix.is_empty();
        self.shared.shown_metrics.as_deref().filter(|_| is_root)
    }

    /// Returns this cache for its web interface; `None` if that is off.
    pub(crate) fn paged(&self) -> Option<PagedCache<'_>> {
        Some(PagedCache {
            narinfos: &self.narinfos,
            config: self.pages.as_ref()?,
            path_prefix: &self.path_prefix,
            priority: self.priority,
            stored: self.uploads.as_ref(),
            upstreams: self.upstreams.as_deref(),
        })
    }

    /// Returns the store path with this hash part, if it is in memory.
    pub(crate) fn name_of(&self, hash_part: HashPart) -> Option<StorePath> {
        let name = self.narinfos.name_of(&hash_part);
        name.or_else(|| self.shared.names.peek(&hash_part))
    }

    /// Answers a request on an I/O thread, or dispatches it. If the cache is hidden from the
    /// client, returns the unused reply.
    pub(crate) fn inline<'r>(
        &self,
        fresh: &mut Fresh,
        turn: Turn,
        head: Head<'_>,
        route: &Route,
        reply: Reply<'r>,
    ) -> Result<Inline, Reply<'r>> {
        let mut reply = reply;
        if let Some(access) = self.guard() {
            // A token of the storage counts as one client, if it was valid before. Forged tokens
            // count as their address.
            let token = match (&self.uploads, access.has_rate_limit()) {
                (Some(stored), true) => upload::seen_token(stored, head),
                _ => None,
            };
            match access.admit(head, Instant::now(), token) {
                Verdict::Granted => {}
                Verdict::Unverified => return Ok(access.dispatch(head, reply)),
                Verdict::Refused(access::Refusal::Denied) if self.may_admit_token(head, route) => {
                    return Ok(self.dispatch_upload(head, route, reply));
                }
                Verdict::Refused(access::Refusal::Denied)
                    if self.asks_for_token(access, head, route) =>
                {
                    return Ok(reply.dispatch_slow());
                }
                Verdict::Refused(refusal) => {
                    self.shared.observer.event(&refusal.event());
                    return match self.sign_in(access, refusal, head) {
                        Some(page) => Ok(reply.response(page)),
                        None => access.refuse(refusal, reply),
                    };
                }
            }
            if !access.lets_everybody_in() {
                reply = reply.with_lines(PRIVATE_LINE);
            }
        }
        if self.uploads.is_some() && upload::needs_worker(head.method(), route) {
            return Ok(self.dispatch_upload(head, route, reply));
        }
        Ok(self.inline_admitted(fresh, turn, head, route, reply))
    }

    /// Dispatches a request that may be about uploads.
    fn dispatch_upload(&self, head: Head<'_>, route: &Route, reply: Reply<'_>) -> Inline {
        match self.may_write(head, route) {
            true => reply.dispatch_writing(),
            false => reply.dispatch_slow(),
        }
    }

    /// Returns whether a request may wait until the disk of the uploads is written.
    pub(super) fn may_write(&self, head: Head<'_>, route: &Route) -> bool {
        let uploads = self.uploads.as_ref();
        uploads.is_some_and(|stored| upload::writes(stored, head.method(), route))
    }

    // Long: one case per route. Splitting it would hide which routes are answered on the I/O
    // thread.
    fn inline_admitted(
        &self,
        fresh: &mut Fresh,
        turn: Turn,
        head: Head<'_>,
        route: &Route,
        reply: Reply<'_>,
    ) -> Inline {
        let (shared, fixed) = (&*self.shared, &self.shared.fixed);
        if !matches!(head.method(), Method::Get | Method::Head) {
            let is_bulk = head.method() == Method::Post && *route == Route::Narinfos;
            return match is_bulk {
                true if self.uploads.is_some() => reply.dispatch_slow(),
                true => reply.dispatch(),
                false => reply.prepared(fixed.get(self.of_method(head.method()))),
            };
        }
        let hash_part = match route {
            Route::Narinfo(_) if NarinfoForm::of(head) != NarinfoForm::Text => {
                return self.pass_on(route, reply);
            }
            Route::Narinfo(hash_part) => *hash_part,
            Route::Nar {
                hash_part, coding, ..
            } if *coding == NarCoding::Zstd || head.header("Range").is_none() => *hash_part,
            Route::CacheInfo => return reply.prepared(self.about.cache_info()),
            Route::About(about) => return reply.prepared(self.about.prepared(*about)),
            Route::NoPath(_) => return reply.prepared(fixed.get(Fixed::NoPath)),
            Route::Metrics if self.shown_metrics().is_some() => return reply.dispatch_slow(),
            // The URL is not part of the cache protocol, but may belong to a page.
            Route::UpstreamNar { hash_part, .. } if let Some(upstreams) = &self.upstreams => {
                return upstreams.inline(route, hash_part, reply);
            }
            Route::Page(_)
            | Route::Upload(_)
            | Route::DebugInfo(None)
            | Route::Metrics
            | Route::UpstreamNar { .. }
            | Route::Unknown(_) => {
                return match self.pages.is_some() && pages::is_answered(head, route) {
                    true => reply.dispatch_slow(),
                    false => reply.prepared(fixed.get(self.unknown(route))),
                };
            }
            Route::Narinfos => return reply.prepared(fixed.get(Fixed::OnlyPost)),
            _ => return self.pass_on(route, reply),
        };
        let Some(snapshot) = fresh.snapshot(&*shared.store, turn) else {
            return self.pass_on(route, reply);
        };
        let policy = &self.reader().policy;
        let is_absent = match policy.is_open() {
            true => !snapshot.may_contain(&hash_part),
            false => policy.rules_out(&hash_part),
        };
        if is_absent {
            if let Some(stored) = &self.uploads
                && (stored.may_contain(hash_part) || stored.deleted_at(hash_part).is_some())
            {
                return self.pass_on(route, reply);
            }
            let Some(upstreams) = &self.upstreams else {
                return reply.prepared(fixed.get(Fixed::NoPath));
            };
            return upstreams.inline(route, &hash_part, reply);
        }
        if let Route::Nar {
            nar_hash, coding, ..
        } = route
        {
            if *coding == NarCoding::Zstd {
                let key = nar_hash.map(|nar_hash| (nar_hash, Form::Zstd));
                let cache = shared.nar_cache.as_ref();
                return match key.is_some_and(|key| cache.is_some_and(|cache| cache.has(&key))) {
                    true => self.pass_on(route, reply),
                    false => reply.dispatch_costly(),
                };
            }
            // Other caches share the small-NAR cache, so the NAR is sent only if this cache has
            // found the path readable.
            if !policy.is_open() && self.narinfos.find(snapshot, &hash_part).is_none() {
                return self.pass_on(route, reply);
            }
            return match shared.small_nars.find(&hash_part) {
                Some(nar) if nar.epoch != Some(snapshot.epoch) => self.pass_on(route, reply),
                Some(nar) if nar_hash.is_some_and(|nar_hash| nar_hash != nar.nar_hash) => {
                    reply.prepared(fixed.get(Fixed::WrongHash))
                }
                Some(nar) if may_go_inline(&nar.prepared) => reply.prepared(&nar.prepared),
                _ => self.pass_on(route, reply),
            };
        }
        match self.narinfos.find(snapshot, &hash_part) {
            Some(rendered)
                if may_go_inline(&rendered.narinfo.prepared)
                    && self.narinfos.is_leased(&rendered) =>
            {
                reply.prepared(&rendered.narinfo.prepared)
            }
            // A marked path: its files may have to be checked.
            _ if shared.health.is_marked(&hash_part) => reply.dispatch_slow(),
            _ => self.pass_on(route, reply),
        }
    }

    /// Dispatches a request to a worker. If the store is known to be down, sends a 503 instead.
    fn pass_on(&self, route: &Route, reply: Reply<'_>) -> Inline {
        // Build logs are files and do not depend on the database.
        if !matches!(route, Route::Log(_))
            && let Some(error) = self.shared.store.down()
        {
            self.shared.note(error);
            return reply.prepared(self.shared.fixed.get(Fixed::Unavailable));
        }
        match upload::reads_files(self.uploads.as_ref(), route) {
            true => reply.dispatch_slow(),
            false => reply.dispatch(),
        }
    }

    /// Answers a request on a worker; `None` if the cache is hidden from the client.
    pub(crate) fn handle(&self, request: &mut Request) -> Option<Response> {
        let response = self.answer(request)?;
        // A second field adds to the first one, as to the `no-cache` of a page.
        Some(match self.is_private() {
            false => response,
            true => response.header("Cache-Control", "private"),
        })
    }

    /// Whether not all clients may read.
    fn is_private(&self) -> bool {
        !self.guard().is_none_or(Access::lets_everybody_in)
    }

    fn answer(&self, request: &mut Request) -> Option<Response> {
        let head = request.head();
        let path = self.below_prefix(head.path()).unwrap_or_default();
        let route = &self.route(path, head.query());
        let uploads = self.uploads.as_ref();
        if let Some(access) = self.guard()
            && !self.asks_for_token(access, head, route)
            && !self.admits_token(head, route)
            && let Err(response) = self.ask(access, head, route)
        {
            return response;
        }
        let context = uploads.map(|stored| Context {
            is_reader: self.lets_read(head),
            ..self.context_of(stored, head)
        });
        if let Some(context) = context
            && let Some(response) = upload::handle(context, request, route)
        {
            let (head, is_private) = (request.head(), self.is_private());
            let upstreams = self.referable();
            return Some(references::or_narinfo(
                upstreams, head, route, is_private, response,
            ));
        }
        let head = request.head();
        Some(match (head.method(), route) {
            (Method::Get | Method::Head, _) => self.read(context, head, route),
            (_, Route::Narinfos) => {
                let uploaded = self.uploaded().map(|uploaded| Box::new(uploaded) as Box<_>);
                let others = match &self.upstreams {
                    Some(upstreams) => Some(upstreams.beside(uploaded, head)),
                    None => uploaded,
                };
                bulk::respond(&self.narinfos, request, others)
            }
            // The I/O thread could not refuse the method, because the client was not
            // authenticated yet.
            (method, _) => self.of_method(method).response(),
        })
    }

    /// Returns the upstreams, if uploads may refer to paths that only these have.
    pub(crate) fn referable(&self) -> Option<&Arc<CacheUpstreams>> {
        self.upstreams
            .as_ref()
            .filter(|upstreams| upstreams.has_references())
    }

    /// Answers a GET or HEAD from the store, and if that has nothing with this URL, from uploaded
    /// paths.
    fn read(&self, context: Option<Context<'_>>, head: Head<'_>, route: &Route) -> Response {
        let (uploads, upstreams) = (self.uploads.as_ref(), self.upstreams.as_deref());
        let found = debug_info::respond(self.reader(), uploads, upstreams, (head, route));
        if let Some(response) = found {
            return response;
        }
        let of_store = match route {
            Route::File(_, of_store) => of_store,
            route => route,
        };
        let found = self.respond(head, of_store);
        let is_absent = match &found {
            Ok(found) => found.is_none(),
            Err(refusal) => refusal.is_absence(),
        };
        if is_absent
            && let Some(context) = context
            && let Some(response) = match route {
                Route::Closure(hash_part) => self.uploads.as_ref().map(|stored| {
                    let upstreams = self.upstreams.as_ref();
                    Uploaded::new(&self.narinfos, stored, upstreams).closure(*hash_part)
                }),
                _ => upload::find(context, head, route),
            }
        {
            return response;
        }
        let refusal = found.as_ref().err().map(|refusal| refusal.answer());
        let own = Absence::new(refusal, upload::deleted_at(uploads, of_store));
        if is_absent
            && let Some(upstreams) = &self.upstreams
            && let Some(response) = upstreams.find(head, route, own.clone(), self.is_private())
        {
            return response;
        }
        match found {
            Ok(Some(response)) => response,
            _ if is_absent && own.is_deletion() => own.response(),
            Ok(None) => self.nothing(head, of_store),
            Err(refusal) => {
                self.shared.report(&format_args!("{head:?}"), refusal);
                refusal.answer().response()
            }
        }
    }

    /// Answers a GET or HEAD from the store; `None` if no URL of the store has this route, or none
    /// of its paths.
    fn respond(&self, head: Head<'_>, route: &Route) -> Result<Option<Response>, Refusal> {
        let response = match route {
            // The I/O thread gives the same response.
            Route::Narinfos => Fixed::OnlyPost.response(),
            Route::CacheInfo => {
                let text = String::from_utf8_lossy(self.about.cache_info().body());
                Response::text(Status::OK, text.into_owned())
            }
            Route::About(about) => self.about.response(*about),
            Route::Metrics => return Ok(self.shown_metrics().map(samovar_metrics::exposition)),
            Route::Narinfo(hash_part) => {
                let narinfo = self.narinfos.one(*hash_part)?.narinfo;
                NarinfoForm::of(head).response(self.shared.store.store_dir(), narinfo)
            }
            Route::Nar {
                hash_part,
                nar_hash,
                coding,
            } => nar::respond(&self.narinfos, head, *hash_part, (*nar_hash, *coding))?,
            Route::NarOfNoHash(hash_part) => {
                let readable = self.reader().readable(*hash_part);
                return readable.and(Err(Refusal::WrongHash));
            }
            Route::Listing(hash_part) => listing::respond(self.reader(), *hash_part)?,
            Route::Log(path) => build_log::respond(self.reader(), head, path)?,
            Route::Realisation(id) => {
                return realisation::respond(self.reader(), &self.narinfos.signing, id);
            }
            Route::Closure(hash_part) => closure::respond(&self.narinfos, *hash_part)?,
            Route::File(..)
            | Route::UpstreamNar { .. }
            | Route::DebugInfo(_)
            | Route::Artifact(..)
            | Route::Upload(_)
            | Route::Page(_)
            | Route::NoPath(_)
            | Route::Unknown(_) => return Ok(None),
        };
        Ok(Some(response))
    }

    /// Answers a GET or HEAD of a URL with which neither the store nor uploads have anything: with
    /// a page, or 404.
    fn nothing(&self, head: Head<'_>, route: &Route) -> Response {
        match (route, self.paged()) {
            (Route::NoPath(_), _) => Fixed::NoPath.response(),
            (Route::Realisation(_), _) => Fixed::NotFound.response(),
            // If clients need passwords, workers also get requests that are not for pages.
            (_, Some(cache)) if pages::is_answered(head, route) => {
                let uploads = self.uploads.as_ref();
                let shows_pins = uploads.is_some_and(|stored| upload::may_read_pins(stored, head));
                let path = self.below_prefix(head.path()).unwrap_or_default();
                pages::answer(cache, head, (path, route), shows_pins)
            }
            _ => self.unknown(route).response(),
        }
    }

    /// Returns the response to a URL that is neither part of the cache protocol nor of a page.
    fn unknown(&self, route: &Route) -> Fixed {
        match route {
            // The first URL that clients request to push to a cache.
            Route::Upload(UploadRoute::Of(route))
                if **route == Route::CacheInfo && self.uploads.is_none() =>
            {
                Fixed::NoUploadUrl
            }
            _ => Fixed::NotFound,
        }
    }

    /// Returns the cache's uploaded paths, for bulk responses; `None` if the cache is read-only.
    fn uploaded(&self) -> Option<Uploaded> {
        let stored = self.uploads.as_ref()?;
        Some(Uploaded::new(&self.narinfos, stored, None))
    }

    /// Returns the parts of this cache that uploads need.
    pub(super) fn context<'a>(&'a self, stored: &'a StoredCache) -> Context<'a> {
        Context {
            stored,
            narinfos: &self.narinfos,
            store_dir: self.shared.store.store_dir(),
            cache_info: self.about.cache_info().body(),
            is_reader: false,
            address: None,
            oidc: self.oidc.as_deref(),
            cache: (!self.is_only).then_some(&*self.name),
            upstreams: self.referable(),
        }
    }
}
