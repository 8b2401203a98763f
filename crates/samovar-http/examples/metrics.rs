//! Counters and the server load at `/metrics`, and graceful shutdown.
//!
//! ```text
//! cargo run --example metrics
//! curl http://127.0.0.1:8080/
//! curl http://127.0.0.1:8080/metrics
//! ```
//!
//! The server stops on SIGTERM or Ctrl-C. `Router::serve_until` does the same in one call, but its
//! handlers have no access to the server.

#![expect(clippy::print_stderr, reason = "a terminal is all that an example has")]

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::{
    End, Exchange, Incident, Listener, Observer, Request, Response, Router, Server, stop_signal,
};

/// The server, whose load the handlers read. A static, because handlers are created before the
/// server.
static SERVER: OnceLock<Server<Router>> = OnceLock::new();

/// Request counters. Observers must not block: atomic additions do not, and the lock is held for a
/// moment only.
#[derive(Default)]
struct Counters {
    /// Number of responses of each route. A client cannot add a key: the patterns are those of the
    /// program.
    answers: Mutex<BTreeMap<String, u64>>,
    failures: AtomicU64,
    bytes: AtomicU64,
    incidents: AtomicU64,
}

impl Counters {
    fn answers(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Counting(Arc<Counters>);

impl Observer for Counting {
    fn observes(&self) -> bool {
        true
    }

    fn exchanged(&self, exchange: &Exchange<'_>) {
        let counters = &self.0;
        let route = exchange.pattern.unwrap_or("none").to_owned();
        *counters.answers().entry(route).or_default() += 1;
        let is_failure = exchange.status.code() >= 500 || exchange.end != End::Complete;
        counters
            .failures
            .fetch_add(u64::from(is_failure), Ordering::Relaxed);
        counters
            .bytes
            .fetch_add(exchange.body_len, Ordering::Relaxed);
    }

    fn incident(&self, _: &Incident<'_>) {
        self.0.incidents.fetch_add(1, Ordering::Relaxed);
    }
}

/// Renders the metrics in the Prometheus text format.
fn metrics(_: &mut Request, counters: &Counters) -> Option<Response> {
    let load = SERVER.get()?.load();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let lines = [
        ("http_failures_total", count(&counters.failures)),
        ("http_body_bytes_total", count(&counters.bytes)),
        ("http_incidents_total", count(&counters.incidents)),
        ("http_connections", load.connection_count as u64),
        ("http_requests_queued", load.queued_count as u64),
        ("http_workers_running", load.running_count as u64),
    ];
    let lines = lines.map(|(name, value)| format!("{name} {value}\n"));
    let answers = counters.answers();
    let by_route = answers
        .iter()
        .map(|(route, count)| format!("http_answers_total{{route=\"{route}\"}} {count}\n"));
    let text: String = by_route.chain(lines).collect();
    Some(Response::text(Status::OK, text).set_header("Content-Type", "text/plain; version=0.0.4"))
}

fn main() -> io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    let counters = Arc::new(Counters::default());
    let counting = Counting(Arc::clone(&counters));
    let router = Router::new()
        .get("/", |_| "Hello\n")
        .get("/metrics", move |request: &mut Request| {
            metrics(request, &counters)
        })
        .observe(counting);
    let stop = stop_signal()?;
    let server = Server::builder(router)
        .listen(Listener::bind(addr)?)
        .start()?;
    let server = SERVER.get_or_init(|| server);
    stop();
    // Accept no more connections, and give responses in progress ten seconds.
    server.drain(Duration::from_secs(10));
    for request in server.unfinished() {
        eprintln!("left behind: {request}");
    }
    Ok(())
}
