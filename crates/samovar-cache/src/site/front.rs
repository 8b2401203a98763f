//! The server's own URLs: health, version, and a list of caches. They exist if a cache has a web
//! interface, those about health also if the caches serve metrics; the list is at `/` if no cache
//! is there.
//!
//! | path | answer |
//! | --- | --- |
//! | `/healthz` | 200 if an I/O thread can answer |
//! | `/health` | the same, if the caches serve metrics: harmonia's URL |
//! | `/readyz` | 200 if the store and the storage can be read and the roots of all policies are known, else 503 |
//! | `/version` | name and version of the program, as JSON |
//! | `/` | the caches that the client may read or that ask it for credentials, or 404 |
//!
//! Other clients see only the server's health and version.

use std::sync::Arc;
use std::time::{Duration, Instant};

use samovar_http::http::{Method, Status};
use samovar_http::{Head, Inline, Reply, Request, Response};

use samovar_storage::Storage;
use samovar_storage::readiness::is_ready;

use crate::access::Verdict;
use crate::known::shared_store::SharedStore;
use crate::pages;
use crate::refusal::Fixed;
use crate::route::Route;
use crate::route::page::PageRoute;
use crate::site::cache::Cache;
use crate::site::current::Caches;

/// URL that shows whether an I/O thread answers.
pub(crate) const HEALTHZ: &[u8] = b"/healthz";

/// harmonia's URL for the same.
pub(crate) const HEALTH: &[u8] = b"/health";

/// URL that shows whether the server can answer about the store.
pub(crate) const READYZ: &[u8] = b"/readyz";

/// Returns the response to a URL that belongs to no cache and no page. A cache sends the same one
/// for an unknown URL.
pub(crate) fn unknown(head: Head<'_>) -> Fixed {
    match head.method() {
        Method::Get | Method::Head => Fixed::NotFound,
        method => Fixed::of_method(method, false),
    }
}

/// Answers, on an I/O thread, a request whose URL belongs to no cache.
#[cold]
pub(crate) fn inline(
    shared: &SharedStore,
    caches: &Caches,
    head: Head<'_>,
    route: &Route,
    reply: Reply<'_>,
) -> Inline {
    let is_page = matches!(
        route,
        Route::Page(PageRoute::Landing | PageRoute::Version | PageRoute::Asset(_))
    );
    let is_read = matches!(head.method(), Method::Get | Method::Head);
    if !caches.have_pages() || !is_page || !is_read {
        return reply.prepared(shared.fixed.get(unknown(head)));
    }
    // A password may have to be verified before it is known which caches the client may read.
    let asks = |cache: &Cache| cache.may_still_refuse(head);
    let asking = caches
        .iter()
        .filter(|_| head.path() == b"/")
        .find(|cache| asks(cache));
    match asking.and_then(Cache::guard) {
        Some(access) => access.dispatch(head, reply),
        None => reply.dispatch(),
    }
}

/// Answers, on a worker, a request whose URL belongs to no cache.
pub(crate) fn handle(shared: &SharedStore, caches: &Caches, request: &Request) -> Response {
    let head = request.head();
    let page = match Route::of(head.path(), head.query()) {
        // No list for a single cache: a proxy may forward only the prefix of that cache, and its
        // clients could not reach this page.
        Route::Page(PageRoute::Landing) if caches.len() < 2 => None,
        Route::Page(PageRoute::Landing) => overview(caches, head),
        Route::Page(PageRoute::Version) => Some(shared.program.response()),
        Route::Page(PageRoute::Asset(name)) => pages::asset(&name),
        _ => None,
    };
    page.unwrap_or_else(|| Fixed::NotFound.response())
}

/// The reason why a server is not ready before the roots of a policy are known.
pub(crate) const UNKNOWN_POLICY: &str = "the roots of a policy are not known";

/// The reason why a server is not ready while its storage is missing or damaged.
pub(crate) const UNUSABLE_STORAGE: &str = "the storage of uploads cannot be read";

/// Maximum time to find out whether the storage can be read. A load balancer waits not much longer.
const PROBE_TIME: Duration = Duration::from_secs(3);

/// Answers whether the store and the storage can be read now. May block as long as the disk of the
/// store does.
pub(crate) fn readyz(
    shared: &SharedStore,
    caches: &Caches,
    storage: Option<&Arc<Storage>>,
) -> Response {
    let (status, text) = match shared.store.probe() {
        Ok(()) if storage.is_some_and(|storage| !is_ready(storage, PROBE_TIME)) => {
            (Status::SERVICE_UNAVAILABLE, UNUSABLE_STORAGE)
        }
        Ok(()) if caches.know_policies() => (Status::OK, "ready"),
        Ok(()) => (Status::SERVICE_UNAVAILABLE, UNKNOWN_POLICY),
        Err(_) => (Status::SERVICE_UNAVAILABLE, "the store cannot be read"),
    };
    Response::text(status, format!("{text}\n")).header("Cache-Control", "no-store")
}

/// Renders the list of caches that the client may read, or may ask for; `None` if there are none.
///
/// A cache that asks for credentials tells every client so at its own URL, and browsers send
/// credentials only below that URL, so the list would never have it otherwise.
fn overview(caches: &Caches, head: Head<'_>) -> Option<Response> {
    let is_locked = |cache: &Cache| match cache.guard() {
        None => Some(false),
        Some(access) => match access.authenticate(head, Instant::now()) {
            Verdict::Granted => Some(false),
            _ => access.challenge().map(|_| true),
        },
    };
    let entries = caches
        .iter()
        .filter_map(|cache| Some((cache.paged()?, is_locked(cache)?)));
    let mut caches: Vec<_> = entries.collect();
    caches.sort_by_key(|(cache, _)| cache.path_prefix);
    (!caches.is_empty()).then(|| pages::overview(&caches))
}
