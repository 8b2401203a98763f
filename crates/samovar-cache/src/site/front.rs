//! The server's own URLs, if a cache has a web interface: health, and a list of caches if none is
//! at `/`.
//!
//! | path | answer |
//! | --- | --- |
//! | `/healthz` | 200: an I/O thread answers |
//! | `/readyz` | 200: the store can be read and the roots of all policies are known; else 503 |
//! | `/version` | name and version of the program, as JSON |
//! | `/` | the caches that the client may read; 404 if none |
//!
//! A client that may read no cache learns only the health of the server.

use std::time::Instant;

use samovar_http::http::{Method, Status};
use samovar_http::{Head, Inline, Reply, Request, Response};

use crate::access::Verdict;
use crate::known::shared_store::SharedStore;
use crate::pages;
use crate::refusal::Fixed;
use crate::route::page::PageRoute;
use crate::site::cache::Cache;
use crate::site::current::Caches;

/// Whether an I/O thread answers.
pub(crate) const HEALTHZ: &[u8] = b"/healthz";

/// Whether the server can answer about the store.
pub(crate) const READYZ: &[u8] = b"/readyz";

/// The answer to a URL of no cache and no page. A cache gives the same to a URL without a meaning.
pub(crate) fn unknown(head: Head<'_>) -> Fixed {
    match head.method() {
        Method::Get | Method::Head => Fixed::NotFound,
        _ => Fixed::NotAllowed,
    }
}

/// Answers a request that belongs to no cache on an I/O thread.
pub(crate) fn inline(
    shared: &SharedStore,
    caches: &Caches,
    head: Head<'_>,
    reply: Reply<'_>,
) -> Inline {
    let is_page = matches!(
        PageRoute::of(head.path()),
        Some(PageRoute::Landing | PageRoute::Version | PageRoute::Asset(_))
    );
    let is_read = matches!(head.method(), Method::Get | Method::Head);
    if !caches.have_pages() || !is_page || !is_read {
        return reply.prepared(shared.fixed.get(unknown(head)));
    }
    // A password may have to be hashed.
    let asks = |cache: &Cache| cache.may_still_refuse(head);
    if head.path() == b"/" && caches.iter().any(asks) {
        reply.dispatch_costly()
    } else {
        reply.dispatch()
    }
}

/// Answers a request that belongs to no cache on a worker.
pub(crate) fn handle(shared: &SharedStore, caches: &Caches, request: &Request) -> Response {
    let head = request.head();
    let page = match PageRoute::of(head.path()) {
        // A single cache may be behind a proxy that passes on its prefix only.
        Some(PageRoute::Landing) if caches.len() < 2 => None,
        Some(PageRoute::Landing) => overview(caches, head),
        Some(PageRoute::Version) => Some(shared.program.response()),
        Some(PageRoute::Asset(name)) => pages::asset(&name),
        _ => None,
    };
    page.unwrap_or_else(|| Fixed::NotFound.response())
}

/// Whether the server could answer now. May block as long as a disk does.
pub(crate) fn readyz(shared: &SharedStore, caches: &Caches) -> Response {
    let (status, text) = match shared.store.probe() {
        Ok(()) if caches.know_policies() => (Status::OK, "ready\n"),
        Ok(()) => (
            Status::SERVICE_UNAVAILABLE,
            "the roots of a policy are not known\n",
        ),
        Err(_) => (Status::SERVICE_UNAVAILABLE, "the store cannot be read\n"),
    };
    Response::text(status, text).header("Cache-Control", "no-store")
}

/// The page of the caches that the client may read.
fn overview(caches: &Caches, head: Head<'_>) -> Option<Response> {
    let may_read = |cache: &&Cache| {
        cache.guard().is_none_or(|access| {
            let verdict = access.authenticate(head, Instant::now());
            matches!(verdict, Verdict::Granted(_))
        })
    };
    let readable = caches.iter().filter(may_read);
    let mut caches: Vec<_> = readable.filter_map(Cache::paged).collect();
    caches.sort_by_key(|cache| cache.path_prefix);
    (!caches.is_empty()).then(|| pages::overview(&caches))
}
