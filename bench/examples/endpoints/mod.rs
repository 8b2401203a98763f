//! Handlers that both ways of using samovar-http share.

// The rivals read the database with the same code, so that the rows compare the servers.
#[path = "../../rivals/src/items.rs"]
#[expect(unreachable_pub, reason = "the rivals' library exports it")]
pub(crate) mod items;

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::ws::{Closed, Frame, Handler, Message, Socket};
use samovar_http::{Body, Request, Response};

use self::items::Items;

pub(crate) const TEXT: &str = "Hello, World!";
pub(crate) static TEXT_500: [u8; 500] = [b'x'; 500];

/// Maximum length of an upload, in bytes.
pub(crate) const UPLOAD_LEN_MAX: u64 = 1 << 30;

/// Bytes of an upload to read at once.
const UPLOAD_PIECE_LEN: usize = 64 << 10;

/// Serialises the object of `/json`.
pub(crate) fn json() -> String {
    serde_json::json!({ "message": TEXT }).to_string()
}

/// Blocks the thread for this many milliseconds.
pub(crate) fn sleep(time_ms: u64) -> Response {
    thread::sleep(Duration::from_millis(time_ms));
    Response::text(Status::OK, TEXT)
}

/// Returns the row that the query `id=N` names.
pub(crate) fn item(request: &Request, items: &Items) -> Response {
    let id = request.query().get("id").and_then(|id| id.parse().ok());
    match items.find(id.unwrap_or(0)) {
        Ok(item) => Response::json(Status::OK, serde_json::json!(item).to_string()),
        Err(_) => Response::text(Status::NOT_FOUND, ""),
    }
}

/// Sends a file with `sendfile`.
pub(crate) fn file(path: &Path) -> Response {
    match File::open(path).and_then(Body::file) {
        Ok(body) => {
            Response::new(Status::OK, body).header("Content-Type", "application/octet-stream")
        }
        Err(_) => Response::text(Status::NOT_FOUND, ""),
    }
}

/// Reads the request's body and discards it.
pub(crate) fn upload(request: &mut Request) -> Response {
    let mut piece = vec![0; UPLOAD_PIECE_LEN];
    let mut reader = request.reader();
    let mut len = 0;
    loop {
        match reader.read(&mut piece) {
            Ok(0) => return Response::text(Status::OK, format!("{len}\n")),
            Ok(read_len) => len += read_len,
            Err(_) => return Response::text(Status::BAD_REQUEST, ""),
        }
    }
}

/// Sends a message back.
pub(crate) fn echo(socket: &Socket, message: Message<'_>) {
    socket.send(message);
}

/// WebSocket of `/broadcast`, with the shared map of all open ones.
#[derive(Clone, Default)]
pub(crate) struct Hearer(Arc<Mutex<HashMap<u64, Socket>>>);

impl Hearer {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Socket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handler for Hearer {
    fn open(&mut self, socket: &Socket) {
        self.all().insert(socket.id(), socket.clone());
    }

    fn message(&mut self, _: &Socket, message: Message<'_>) {
        let frame = Frame::new(message);
        for socket in self.all().values() {
            socket.send_frame(&frame);
        }
    }

    fn close(&mut self, socket: &Socket, _: &Closed) {
        self.all().remove(&socket.id());
    }
}
