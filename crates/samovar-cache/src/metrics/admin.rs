//! What an operator, a monitor and a manager of services ask.
//!
//! A [`Router`] for a server of its own, on listeners of its own: it answers when the server it is
//! about has no thread left, and nobody else reaches it.
//!
//! | path | answer |
//! | --- | --- |
//! | `/metrics` | all figures, for Prometheus |
//! | `/healthz` | 200: the server's I/O threads answer; 503 if not |
//! | `/readyz` | 200: it would answer well; 503 and why not |
//! | `/version` | what this is, as JSON |
//! | `/status` | the same as a page, which is live where there is a script |
//! | `/status.json` | a [`Status`](super::Status) |
//! | `/status/live` | the same every second, as WebSocket messages |

use std::net::IpAddr;
use std::sync::Arc;

use samovar_http::http::Status;
use samovar_http::ws::{Closed, Handler, Message, Socket, Upgrade};
use samovar_http::{Next, Request, Response, Route, Router};

use super::registry::Metrics;
use super::sampler::{Sampler, Shared};
use super::text::CONTENT_TYPE;
use crate::pages;

/// Serves the figures of `metrics`, whom `sampler` looks after.
#[must_use]
pub fn admin(metrics: &Arc<Metrics>, sampler: &Sampler) -> Router {
    let of = |answer: fn(&Metrics) -> Response| {
        let metrics = Arc::clone(metrics);
        move |_: &mut Request| answer(&metrics)
    };
    let (live, shared) = (Arc::clone(metrics), sampler.shared());
    let live = move |request: &mut Request| {
        let watcher = Watcher {
            metrics: Arc::clone(&live),
            shared: Arc::clone(&shared),
        };
        Upgrade::new(watcher).accept(request)
    };
    Router::new()
        .get(
            "/metrics",
            of(|metrics| plain(CONTENT_TYPE, metrics.exposition())),
        )
        .get("/healthz", of(healthz))
        .get("/readyz", of(readyz))
        .get("/version", of(version))
        .route(Route::get("/status.json", of(status)).wrap(only_by_own_names))
        .route(Route::get("/status/live", live).wrap(only_by_own_names))
        .route(Route::get("/status", of(page)).wrap(only_by_own_names))
        .get("/", |_: &mut Request| {
            Response::redirect(Status::FOUND, "./status")
        })
        .get("/-/assets/{name}", |request: &mut Request| {
            let asset = request.param("name").and_then(pages::asset);
            asset.unwrap_or_else(|| text(Status::NOT_FOUND, "no such file\n"))
        })
}

/// Whether the I/O threads of the server answer.
pub(crate) fn healthz(metrics: &Metrics) -> Response {
    match metrics.is_alive() {
        true => text(Status::OK, "ok\n"),
        false => text(
            Status::SERVICE_UNAVAILABLE,
            "the I/O threads do not answer\n",
        ),
    }
}

/// Whether it would answer well.
pub(crate) fn readyz(metrics: &Metrics) -> Response {
    let reasons = metrics.not_ready();
    match reasons.is_empty() {
        true => text(Status::OK, "ready\n"),
        false => text(
            Status::SERVICE_UNAVAILABLE,
            &format!("{}\n", reasons.join("\n")),
        ),
    }
}

/// What this is.
pub(crate) fn version(metrics: &Metrics) -> Response {
    let config = metrics.config.get();
    json(&serde_json::json!({
        "name": config.map_or("", |config| &config.name),
        "version": config.map_or("", |config| &config.version),
        "status": super::VERSION,
        "features": ["closure", "narinfos", "ranges", "listings", "logs", "realisations"],
    }))
}

fn status(metrics: &Metrics) -> Response {
    json(&metrics.status())
}

fn page(metrics: &Metrics) -> Response {
    pages::status_page(&metrics.status())
}

fn json(value: &impl serde::Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(json) => plain("application/json", json),
        Err(_) => text(Status::INTERNAL_SERVER_ERROR, "no figures\n"),
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

/// Refuses requests by a name that is not that of this machine's own: a page from elsewhere whose
/// name was made to lead here must not read these figures. Addresses cannot be made to.
fn only_by_own_names(request: &mut Request, next: Next<'_>) -> Response {
    let host = request.head().header_text("Host").unwrap_or("");
    match is_own_name(host, own_name().as_deref()) {
        true => next.run(request),
        false => text(
            Status::FORBIDDEN,
            "ask by address, as localhost, or by the name of this machine\n",
        ),
    }
}

fn own_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned())
}

fn is_own_name(host: &str, own: Option<&str>) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    // A client of a unix socket may say nothing.
    if name.is_empty() || name.parse::<IpAddr>().is_ok() {
        return true;
    }
    let name = name.to_ascii_lowercase();
    let is_named = |own: &str| {
        let own = own.to_ascii_lowercase();
        // Without the domain, and with it.
        !own.is_empty()
            && (name == own
                || name
                    .strip_prefix(&own)
                    .is_some_and(|rest| rest.starts_with('.')))
    };
    name == "localhost" || name.ends_with(".localhost") || own.is_some_and(is_named)
}

/// Somebody who watches live.
struct Watcher {
    metrics: Arc<Metrics>,
    shared: Arc<Shared>,
}

impl Handler for Watcher {
    fn open(&mut self, socket: &Socket) {
        // At once, so that a page does not stay empty for a second.
        if let Ok(json) = serde_json::to_string(&self.metrics.status()) {
            socket.send(&json);
        }
        self.shared.add(socket.clone());
    }

    fn message(&mut self, _: &Socket, _: Message<'_>) {}

    fn close(&mut self, socket: &Socket, _: &Closed) {
        self.shared.remove(socket.id());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_are_refused() {
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
        ] {
            assert!(is_own_name(host, Some("cache")), "{host}");
        }
        for host in [
            "evil.example",
            "cachee",
            "cache-evil.example:5001",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[evil]",
        ] {
            assert!(!is_own_name(host, Some("cache")), "{host}");
        }
        assert!(!is_own_name("cache", None));
        assert!(!is_own_name("x", Some("")));
    }
}
