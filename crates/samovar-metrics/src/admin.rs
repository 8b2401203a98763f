//! Endpoints for operators, monitoring and service managers.
//!
//! The [`Router`] runs in a separate server with separate listeners. So it still answers when the
//! server that it describes has no free thread.
//!
//! | path | answer |
//! | --- | --- |
//! | `/metrics` | all metrics in Prometheus text format |
//! | `/healthz` | 200 if the server's I/O threads answer, otherwise 503 |
//! | `/readyz` | 200 if the server can answer requests, otherwise 503 with the reasons |
//! | `/status.json` | a [`Status`](crate::Status) as JSON |
//! | `/status/live` | a [`Status`](crate::Status) as a WebSocket message, every second |

use std::net::IpAddr;
use std::sync::Arc;

use samovar_http::http::Status;
use samovar_http::ws::{Closed, Handler, Message, Socket, Upgrade};
use samovar_http::{Next, Request, Response, Route, Router};

use crate::registry::Metrics;
use crate::sampler::{Sampler, Shared};
use crate::text::CONTENT_TYPE;

/// Makes the router for `metrics`, which `sampler` updates.
#[must_use]
pub fn admin(metrics: &Arc<Metrics>, sampler: &Sampler) -> Router {
    let of = |answer: fn(&Metrics) -> Response| {
        let metrics = Arc::clone(metrics);
        move |_: &mut Request| answer(&metrics)
    };
    let (live, shared) = (Arc::clone(metrics), sampler.shared());
    let slots = Arc::new(());
    let live = move |request: &mut Request| {
        let slot = Arc::clone(&slots);
        // The closure itself holds one of the references.
        if Arc::strong_count(&slot) > WATCHER_COUNT_MAX + 1 {
            return unavailable("too many watch already");
        }
        let watcher = Watcher {
            metrics: Arc::clone(&live),
            shared: Arc::clone(&shared),
            _slot: slot,
        };
        Upgrade::new(watcher).accept(request)
    };
    Router::new()
        .route(Route::get("/metrics", of(exposition)).wrap(browsers_only_by_own_names))
        .get("/healthz", of(healthz))
        .get("/readyz", of(readyz))
        .route(
            Route::get("/status.json", of(|metrics| json(&metrics.status())))
                .wrap(only_by_own_names),
        )
        .route(Route::get("/status/live", live).wrap(only_by_own_names))
}

/// Answers `/metrics`: all metrics in Prometheus text format.
pub fn exposition(metrics: &Metrics) -> Response {
    plain(CONTENT_TYPE, metrics.exposition())
}

/// Answers `/healthz`: whether the server's I/O threads answer.
fn healthz(metrics: &Metrics) -> Response {
    match metrics.is_alive() {
        true => text(Status::OK, "ok\n"),
        false => unavailable("the I/O threads do not answer"),
    }
}

/// Answers `/readyz`: whether the server can answer requests.
fn readyz(metrics: &Metrics) -> Response {
    let reasons = metrics.not_ready();
    match reasons.is_empty() {
        true => text(Status::OK, "ready\n"),
        false => unavailable(&reasons.join("\n")),
    }
}

fn unavailable(reason: &str) -> Response {
    text(Status::SERVICE_UNAVAILABLE, &format!("{reason}\n"))
}

/// Makes a JSON response that must not be cached.
pub fn json(value: &impl serde::Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(json) => plain("application/json", json),
        Err(_) => text(Status::INTERNAL_SERVER_ERROR, "no metrics\n"),
    }
}

fn plain(content_type: &str, body: String) -> Response {
    Response::new(
        Status::OK,
        samovar_http::Body::Bytes(body.into_bytes().into()),
    )
    .header("Content-Type", content_type)
    .header("Cache-Control", "no-store")
    .header("X-Content-Type-Options", "nosniff")
}

fn text(status: Status, body: &str) -> Response {
    Response::text(status, body.to_owned()).header("Cache-Control", "no-store")
}

/// Refuses requests of browsers as [`only_by_own_names`] does. Monitoring systems may use any name
/// of the server. A browser, unlike them, always sends `Accept-Language`, and no web page can
/// prevent that.
fn browsers_only_by_own_names(request: &mut Request, next: Next<'_>) -> Response {
    match request.head().header("Accept-Language") {
        Some(_) => only_by_own_names(request, next),
        None => next.run(request),
    }
}

/// Refuses requests whose `Host` is neither a name of this machine nor an IP address. This prevents
/// DNS rebinding, in which a foreign web page whose name resolves to this machine could read the
/// status. Also refuses requests that a browser sends for a page of another origin.
pub fn only_by_own_names(request: &mut Request, next: Next<'_>) -> Response {
    let host = request.head().header_text("Host").unwrap_or("");
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let own = own_names(
        &read("/proc/sys/kernel/hostname"),
        &read("/etc/resolv.conf"),
    );
    let origin = request.head().header_text("Origin");
    if !is_own_name(host, &own) {
        return text(
            Status::FORBIDDEN,
            "ask by address, as localhost, or by the name of this machine\n",
        );
    }
    match origin.is_none_or(|origin| is_own_origin(origin, host)) {
        true => next.run(request),
        false => text(Status::FORBIDDEN, "the page of another site asks\n"),
    }
}

/// Returns whether an origin, such as `http://localhost:5001`, is an origin of this host.
fn is_own_origin(origin: &str, host: &str) -> bool {
    let own = origin.split_once("://").map(|(_scheme, own)| own);
    own.is_some_and(|own| own.eq_ignore_ascii_case(host))
}

/// Returns the names of this machine. A name with a domain is accepted only if it is the machine's
/// own, or in a search domain of the resolver: the same host name may exist in any other domain.
fn own_names(hostname: &str, resolv_conf: &str) -> Vec<String> {
    let full = hostname.trim().to_ascii_lowercase();
    let Some(short) = full.split('.').next().filter(|short| !short.is_empty()) else {
        return Vec::new();
    };
    let mut names = vec![short.to_owned()];
    for line in resolv_conf.lines() {
        let mut words = line.split_ascii_whitespace();
        if matches!(words.next(), Some("search" | "domain")) {
            let domains = words.map(|domain| domain.trim_matches('.').to_ascii_lowercase());
            names.extend(domains.map(|domain| format!("{short}.{domain}")));
        }
    }
    names.push(full);
    names
}

fn is_own_name(host: &str, own: &[String]) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    // A client of a Unix socket may send an empty `Host`.
    if name.is_empty() || name.parse::<IpAddr>().is_ok() {
        return true;
    }
    let name = name.to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || own.contains(&name)
}

/// Maximum number of live WebSockets. They stay open, so connections must be left for monitoring.
const WATCHER_COUNT_MAX: usize = 64;

/// A client that receives live updates.
struct Watcher {
    metrics: Arc<Metrics>,
    shared: Arc<Shared>,
    /// One reference per open WebSocket. The number of references limits the number of WebSockets.
    _slot: Arc<()>,
}

impl Handler for Watcher {
    fn open(&mut self, socket: &Socket) {
        // Send the first status at once, so that the page is not empty for a second.
        if let Ok(json) = serde_json::to_string(&self.metrics.status()) {
            socket.send(&json);
        }
        self.shared.sockets().insert(socket.id(), socket.clone());
    }

    fn message(&mut self, _: &Socket, _: Message<'_>) {}

    fn close(&mut self, socket: &Socket, _: &Closed) {
        self.shared.sockets().remove(&socket.id());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_names_and_addresses_are_accepted_as_host() {
        let own = own_names("cache\n", "nameserver 192.0.2.1\nsearch example.org. lan\n");
        for host in [
            "",
            "localhost",
            "LOCALHOST:5001",
            "status.localhost",
            "127.0.0.1:5001",
            "[::1]:5001",
            "[::1]",
            "cache",
            "Cache.example.org:5001",
            "cache.lan",
        ] {
            assert!(is_own_name(host, &own), "{host}");
        }
        for host in [
            "evil.example",
            "cachee",
            "cache-evil.example:5001",
            "cache.evil.example",
            "cache.example.org.evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[evil]",
            "cache.",
        ] {
            assert!(!is_own_name(host, &own), "{host}");
        }
        let full = own_names("cache.example.org", "");
        assert!(is_own_name("cache.example.org", &full) && is_own_name("cache", &full));
        assert!(!is_own_name("cache.lan", &full));
        assert!(!is_own_name("cache", &own_names("", "search lan")));
    }
}
