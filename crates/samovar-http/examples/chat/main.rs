//! A chat room over WebSocket, and its web page.
//!
//! ```text
//! cargo run --example chat
//! xdg-open http://127.0.0.1:8080/
//! ```
//!
//! On SIGTERM or Ctrl-C the server closes all sockets and stops.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use samovar_http::http::{Pairs, Status};
use samovar_http::ws::{Closed, Frame, Handler, Limits, Message, Socket, Upgrade};
use samovar_http::{Request, Response, Router, stop_signal};

const PAGE: &str = include_str!("page.html");
/// Maximum length of a message, in bytes: the page allows 2000 characters.
const MESSAGE_LEN_MAX: usize = 8 * 1024;
/// Maximum length of a name, in characters.
const NAME_LEN_MAX: usize = 20;

/// Sockets and user names, by socket ID.
type Guests = BTreeMap<u64, (Socket, String)>;

/// The chat room: its guests and their names.
#[derive(Default)]
struct Room {
    guests: Mutex<Guests>,
}

impl Room {
    fn guests(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a socket. This is an ordinary handler: a real chat would authenticate the user here
    /// and respond 401 to others.
    fn enter(room: &Arc<Self>, request: &mut Request) -> Response {
        let name = name(&request.query());
        let limits = Limits {
            message_len_max: MESSAGE_LEN_MAX,
            ..Limits::default()
        };
        let room = Arc::clone(room);
        Upgrade::new(Guest { room, name })
            .limits(limits)
            .accept(request)
    }

    /// Sends a message to all sockets. It is encoded once, and their queues share its bytes.
    fn tell_all(guests: &Guests, text: &str) {
        let frame = Frame::new(text);
        for (socket, _) in guests.values() {
            socket.send_frame(&frame);
        }
    }

    fn tell_count(guests: &Guests) {
        Self::tell_all(guests, &format!("count\n{}", guests.len()));
    }
}

/// Returns the name from the query as a single line.
fn name(query: &Pairs) -> String {
    let asked = query.get("name").unwrap_or_default();
    let plain = asked.chars().filter(|c| !c.is_control());
    let name: String = plain.take(NAME_LEN_MAX).collect();
    match name.trim() {
        "" => "somebody".into(),
        name => name.into(),
    }
}

/// The handler of one user's socket.
struct Guest {
    room: Arc<Room>,
    name: String,
}

impl Handler for Guest {
    fn open(&mut self, socket: &Socket) {
        socket.send(&format!("you\n{}", socket.id()));
        let mut guests = self.room.guests();
        guests.insert(socket.id(), (socket.clone(), self.name.clone()));
        Room::tell_all(&guests, &format!("note\n{} has come in", self.name));
        Room::tell_count(&guests);
    }

    fn message(&mut self, socket: &Socket, message: Message<'_>) {
        if let Message::Text(text) = message {
            let line = format!("say\n{}\n{}\n{text}", socket.id(), self.name);
            Room::tell_all(&self.room.guests(), &line);
        }
    }

    fn close(&mut self, socket: &Socket, _: &Closed) {
        let mut guests = self.room.guests();
        if let Some((_, name)) = guests.remove(&socket.id()) {
            Room::tell_all(&guests, &format!("note\n{name} has left"));
            Room::tell_count(&guests);
        }
    }
}

/// Serves the page, and the socket that the page opens.
pub(crate) fn router() -> Router {
    let room = Arc::new(Room::default());
    Router::new()
        .get("/", |_| Response::html(Status::OK, PAGE))
        .get("/chat", move |request: &mut Request| {
            Room::enter(&room, request)
        })
}

fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    router().serve_until(addr, stop_signal()?, Duration::from_secs(5))?;
    Ok(())
}
