//! An access log with an identifier for each request, and an error log for incidents.
//!
//! ```text
//! cargo run --example logging
//! curl -i http://127.0.0.1:8080/
//! curl http://127.0.0.1:8080/broken
//! ```

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use samovar_http::{
    Error, Exchange, Extensions, Incident, Next, Observer, Request, Response, Router,
};

/// The identifier of a request: `number` relates the lines of the log to each other, and to the
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

/// Passes log lines to a thread. Observers must not block, so further lines are dropped while 1000
/// are queued.
struct Log(SyncSender<String>);

impl Log {
    fn start() -> Self {
        let (sender, lines) = sync_channel::<String>(1000);
        std::thread::spawn(move || {
            for line in lines {
                if writeln!(io::stdout(), "{line}").is_err() {
                    return;
                }
            }
        });
        Self(sender)
    }

    fn line(&self, line: String) {
        drop(self.0.try_send(line));
    }
}

impl Observer for Log {
    fn observes(&self) -> bool {
        true
    }

    fn exchanged(&self, exchange: &Exchange<'_>) {
        let Exchange {
            head,
            pattern,
            extensions,
            status,
            body_len,
            duration,
            ..
        } = exchange;
        let (id, peer, micros) = (id_of(extensions), head.peer(), duration.as_micros());
        let route = pattern.unwrap_or("-");
        self.line(format!(
            "[{id}] {peer} {head:?} {route} {status} {body_len} bytes {micros} us"
        ));
    }

    fn incident(&self, incident: &Incident<'_>) {
        let id = match incident {
            Incident::HandlerFailed { extensions, .. }
            | Incident::HandlerPanicked { extensions, .. } => id_of(extensions),
            _ => 0,
        };
        self.line(format!("[{id}] {incident}"));
    }
}

fn broken(_: &mut Request) -> Result<String, Error> {
    Ok(std::fs::read_to_string("/nonexistent")?)
}

fn main() -> io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    Router::new()
        .get("/", |_| "Hello\n")
        .get("/broken", broken)
        .wrap(identify)
        .observe(Log::start())
        .serve(addr)
}
