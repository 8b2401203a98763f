//! An access log and a log of messages in files, with an identifier for each request.
//!
//! ```text
//! cargo run --example logging 127.0.0.1:8080 /tmp
//! curl -i http://127.0.0.1:8080/
//! curl -i http://127.0.0.1:8080/broken
//! cat /tmp/access.log /tmp/server.log
//! ```
//!
//! `mv /tmp/access.log /tmp/access.log.1 && pkill -HUP logging` rotates the access log.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use samovar_http::log::{AccessLog, Logger};
use samovar_http::{
    Error, Exchange, Extensions, Incident, Next, Observer, Request, Response, Router, stop_signal,
};
use signal_hook::consts::signal::SIGHUP;
use signal_hook::iterator::Signals;

/// Time after which a request is logged as slow.
const SLOW: Duration = Duration::from_secs(1);

/// The identifier of a request. It relates the messages about the request to each other, and to the
/// response that a client has got.
struct Id(u64);

/// Middleware that gives each request an identifier, and sends it to the client.
fn identify(request: &mut Request, next: Next<'_>) -> Response {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    request.extensions_mut().insert(Id(id));
    next.run(request).header("X-Request-Id", id.to_string())
}

/// Returns the identifier; zero for a request that did not get as far as the middleware.
fn id_of(extensions: &Extensions) -> u64 {
    extensions.get::<Id>().map_or(0, |id| id.0)
}

/// Writes responses to the access log, and the rest, with identifiers, to the other log. Without
/// identifiers, `observe(access)` would be enough.
struct Logs {
    access: AccessLog,
    log: Logger,
}

impl Observer for Logs {
    fn observes(&self) -> bool {
        true
    }

    fn exchanged(&self, exchange: &Exchange<'_>) {
        self.access.exchanged(exchange);
        if exchange.duration >= SLOW {
            let (id, head, took) = (id_of(exchange.extensions), exchange.head, exchange.duration);
            self.log
                .warning(format_args!("[{id}] {head:?} took {took:?}"));
        }
    }

    fn incident(&self, incident: &Incident<'_>) {
        match incident {
            Incident::HandlerFailed { extensions, .. }
            | Incident::HandlerPanicked { extensions, .. } => {
                let id = id_of(extensions);
                self.log.error(format_args!("[{id}] {incident}"));
            }
            _ => self.log.incident(incident),
        }
    }
}

fn broken(_: &mut Request) -> Result<String, Error> {
    Ok(std::fs::read_to_string("/nonexistent")?)
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let addr = arguments.next().unwrap_or("127.0.0.1:8080".into());
    let folder = PathBuf::from(arguments.next().unwrap_or(".".into()));
    let log = Logger::file(folder.join("server.log"))?;
    let access = AccessLog::file(folder.join("access.log"), &log)?;
    let mut rotations = Signals::new([SIGHUP])?;
    let (old_log, old_access) = (log.clone(), access.clone());
    std::thread::spawn(move || {
        for _ in rotations.forever() {
            old_log.reopen();
            old_access.reopen();
        }
    });
    let logs = Logs {
        access: access.clone(),
        log: log.clone(),
    };
    log.info("started");
    let left = Router::new()
        .get("/", |_| "Hello\n")
        .get("/broken", broken)
        .wrap(identify)
        .observe(logs)
        .serve_until(addr, stop_signal()?, Duration::from_secs(10))?;
    for request in left {
        log.warning(format_args!("left behind: {request}"));
    }
    log.info("stopped");
    // Lines are written by threads, which end with the process.
    access.flush(Duration::from_secs(1));
    log.flush(Duration::from_secs(1));
    Ok(())
}
