//! An access log, and an error log for incidents.
//!
//! ```text
//! cargo run --example logging
//! curl http://127.0.0.1:8080/
//! curl http://127.0.0.1:8080/broken
//! ```

use std::io::{self, Write};
use std::sync::mpsc::{SyncSender, sync_channel};

use samovar_http::{Error, Exchange, Incident, Observer, Request, Router};

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
            status,
            body_len,
            duration,
            ..
        } = exchange;
        let (peer, micros) = (head.peer(), duration.as_micros());
        self.line(format!(
            "{peer} {head:?} {status} {body_len} bytes {micros} us"
        ));
    }

    fn incident(&self, incident: &Incident<'_>) {
        self.line(incident.to_string());
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
        .observe(Log::start())
        .serve(addr)
}
