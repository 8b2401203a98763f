//! The live page: metrics pushed once a second over a WebSocket.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use samovar_http::http::Status;
use samovar_http::ws::{Closed, Frame, Handler, Message, Socket, Upgrade};
use samovar_http::{Request, Response};
use serde_json::json;

use crate::api::App;
use crate::metrics::Pulse;
use crate::process::Process;

const PAGE: &str = include_str!("../web/live.html");
/// Maximum number of clients of the live page.
const WATCHERS_MAX: usize = 256;
/// Length of the history that the page shows, in seconds.
const FRAMES_MAX: usize = 120;

/// Returns the page. Its content security policy permits only its own WebSocket.
pub fn page() -> Response {
    Response::html(Status::OK, PAGE)
        .header(
            "Content-Security-Policy",
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
             connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'",
        )
        .header("Cache-Control", "no-cache")
}

/// Clients of the live page.
#[derive(Debug, Default)]
pub struct Live(Arc<Mutex<Watchers>>);

#[derive(Debug, Default)]
struct Watchers {
    sockets: Vec<Socket>,
    /// The latest messages, which the server sends to a new client first, so that its page starts
    /// with history.
    frames: VecDeque<Frame>,
}

impl Live {
    fn watchers(&self) -> MutexGuard<'_, Watchers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Upgrades the page's WebSocket request.
    pub fn open(&self, request: &mut Request) -> Response {
        if self.watchers().sockets.len() >= WATCHERS_MAX {
            return Response::text(
                Status::SERVICE_UNAVAILABLE,
                "The live page has too many clients; try again later.\n",
            )
            .header("Retry-After", "60");
        }
        Upgrade::new(Watcher(Self(Arc::clone(&self.0)))).accept(request)
    }

    fn tell(&self, text: &str) {
        let frame = Frame::new(text);
        let mut watchers = self.watchers();
        for socket in &watchers.sockets {
            socket.send_frame(&frame);
        }
        if watchers.frames.len() >= FRAMES_MAX {
            watchers.frames.pop_front();
        }
        watchers.frames.push_back(frame);
    }
}

struct Watcher(Live);

impl Handler for Watcher {
    fn open(&mut self, socket: &Socket) {
        let mut watchers = self.0.watchers();
        for frame in &watchers.frames {
            socket.send_frame(frame);
        }
        watchers.sockets.push(socket.clone());
    }

    fn message(&mut self, _: &Socket, _: Message<'_>) {}

    fn close(&mut self, socket: &Socket, _: &Closed) {
        self.0.watchers().sockets.retain(|other| other != socket);
    }
}

/// Sends the changes of all metrics since its last message to all clients.
#[derive(Debug)]
pub struct Broadcaster {
    pulse: Pulse,
    process: Process,
    told: Instant,
}

impl Broadcaster {
    /// Creates a broadcaster whose first message covers the time from now on.
    pub fn new(app: &App) -> Self {
        Self {
            pulse: app.metrics.pulse(),
            process: Process::now(),
            told: Instant::now(),
        }
    }

    /// Sends a message to all clients.
    pub fn send(&mut self, app: &App) {
        let (pulse, process) = (app.metrics.pulse(), Process::now());
        let seconds = self.told.elapsed().as_secs_f64().max(1e-3);
        let per_second = |now: u64, then: u64| {
            #[expect(clippy::cast_precision_loss, reason = "counts are no larger")]
            let count = now.saturating_sub(then) as f64;
            count / seconds
        };
        let before = &self.pulse;
        let answers = pulse.durations.since(&before.durations);
        let batches = pulse.batch_rows.since(&before.batch_rows);
        let commits = pulse.commit_times.since(&before.commit_times);
        let millis = |micros: Option<f64>| micros.map(|micros| micros / 1000.0);
        let (waiting, oldest) = app.ingest.waiting();
        let totals = app.ingest.totals();
        let temperatures: Vec<_> = totals.temperatures().collect();
        let load = app.metrics.load();
        let history = app.metrics.history().map(|(stored, planned)| {
            #[expect(clippy::cast_precision_loss, reason = "counts are no larger")]
            let share = stored as f64 / planned as f64;
            share
        });
        let told = json!({
            "devices": totals.device_count,
            "active": app.metrics.active(),
            "count": totals.history.measurement_count,
            "charge": number(totals.charge),
            "volume": number(totals.volume),
            "energy": totals.energy(),
            "temperatures": temperatures,
            "answers": per_second(answers.count(), 0),
            "measurements": per_second(pulse.measurements, before.measurements),
            "history": history,
            "refused": per_second(pulse.refused, before.refused),
            "duplicates": pulse.duplicates,
            "p50": millis(answers.quantile(0.5)),
            "p99": millis(answers.quantile(0.99)),
            "commits": per_second(commits.count(), 0),
            "commit": millis(commits.mean()),
            "commit_p99": millis(commits.quantile(0.99)),
            "batch": batches.mean(),
            "queue": waiting,
            "queue_limit": app.ingest.options().queue_limit,
            "oldest": oldest.as_secs_f64() * 1000.0,
            "connections": load.map(|load| load.connection_count),
            "connections_max": load.map(|load| load.connection_count_max),
            "process": app.metrics.number(),
            "cpu": (process.cpu_s - self.process.cpu_s) / seconds,
            "memory": process.resident_len,
        });
        app.live.tell(&told.to_string());
        *self = Self {
            pulse,
            process,
            told: Instant::now(),
        };
    }
}

/// Converts a sum for display; precision beyond a double is lost.
fn number(sum: i128) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "it is for a page")]
    let near = sum as f64;
    near
}
