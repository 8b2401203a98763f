//! Server-sent events: all listeners receive the text that a client posts. Listeners occupy no
//! thread.
//!
//! ```text
//! cargo run --example sse
//! curl -N http://127.0.0.1:8080/events
//! curl -d 'Tea is ready' http://127.0.0.1:8080/say
//! ```
//!
//! The server stops on SIGTERM or Ctrl-C.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::{Body, Request, Response, Router, Sender, stop_signal, with};

#[derive(Default)]
struct Room {
    listeners: Mutex<Vec<Sender>>,
}

impl Room {
    fn listeners(&self) -> MutexGuard<'_, Vec<Sender>> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(&self, _: &mut Request) -> Response {
        let (sender, body) = Body::channel();
        // A comment, so that the client receives the response head at once.
        if sender.try_send(": welcome\n\n").is_ok() {
            // Proxies close connections that are silent for long.
            sender.beat(": \n\n", Duration::from_secs(15));
            self.listeners().push(sender);
        }
        Response::new(Status::OK, body)
            .header("Content-Type", "text/event-stream")
            .header("Cache-Control", "no-store")
    }

    /// Sends the text to all listeners. Removes those that have disconnected or read too slowly;
    /// browsers then reconnect.
    fn say(&self, request: &mut Request) -> Status {
        let text = String::from_utf8_lossy(request.body());
        let lines: String = text.lines().map(|line| format!("data: {line}\n")).collect();
        let event = format!("{lines}\n");
        self.listeners()
            .retain(|listener| listener.try_send(event.as_str()).is_ok());
        Status::NO_CONTENT
    }

    /// Ends all event streams. A drain would wait for them.
    fn close(&self) {
        self.listeners().drain(..).for_each(Sender::finish);
    }
}

fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    let room = Arc::new(Room::default());
    let router = Router::new()
        .get("/events", with(&room, Room::listen))
        .post("/say", with(&room, Room::say));
    let stop = stop_signal()?;
    let stop = || {
        stop();
        room.close();
    };
    router.serve_until(addr, stop, Duration::from_secs(5))?;
    Ok(())
}
