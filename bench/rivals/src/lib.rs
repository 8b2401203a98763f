//! Command line and endpoints that all contenders share.
//!
//! | endpoint | response |
//! | --- | --- |
//! | `/` | echo of the request body, for the suites of `xtask suites` |
//! | `/text` | 13 bytes |
//! | `/text500` | 500 bytes |
//! | `/json` | a JSON object, serialised for each request |
//! | `/pooled` | the bytes of `/text`, from a handler that may block |
//! | `/sleep10` and `/sleep1000` | the bytes of `/text`, from a handler that sleeps for 10 ms or 1 s |
//! | `/item?id=N` | a row of the database `items.sqlite`, as JSON |
//! | `/file` and `/big` | the files with these names |
//! | `/upload` | the number of received bytes |
//! | `/ws` | a WebSocket that echoes messages |
//! | `/broadcast` | WebSockets; each message is sent to all of them |
//!
//! Pools of threads have the sizes that the engine, or its guide, sets.

mod items;

pub use items::{Item, Items};

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde::Serialize;

/// Body of `/text`: 13 bytes.
pub const TEXT: &str = "Hello, World!";

/// Body of `/text500`: 500 bytes.
pub static TEXT_500: [u8; 500] = [b'x'; 500];

/// Number of messages that a slow socket of `/broadcast` may lag behind.
pub const BROADCAST_BACKLOG: usize = 64;

/// Maximum length of an upload, in bytes.
pub const UPLOAD_LEN_MAX: usize = 128 << 20;

/// Object in the response to `/json`.
#[derive(Debug, Serialize)]
pub struct Message {
    /// Text of 13 bytes.
    pub message: &'static str,
}

/// Blocks the thread for this many milliseconds; returns the body of `/text`.
pub fn sleep(time_ms: u64) -> &'static str {
    thread::sleep(Duration::from_millis(time_ms));
    TEXT
}

/// Parsed command line of a contender.
#[derive(Debug, Clone)]
pub struct Options {
    /// Port on 127.0.0.1.
    pub port: u16,
    /// Number of threads that serve connections.
    pub threads: usize,
    /// Directory with the files `file` and `big`, and the database `items.sqlite`.
    pub dir: PathBuf,
}

impl Options {
    /// Parses `PORT THREADS DIR`.
    ///
    /// # Panics
    ///
    /// If the command line is malformed.
    pub fn from_command_line() -> Self {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let [port, threads, dir] = &words[..] else {
            panic!("usage: PORT THREADS DIR");
        };
        Self {
            port: port.parse().expect("a port"),
            threads: threads.parse().expect("a number of threads"),
            dir: dir.into(),
        }
    }

    /// Returns the database of `/item`.
    pub fn items(&self) -> Items {
        Items::new(self.dir.join("items.sqlite"))
    }

    /// Creates a Tokio runtime with `threads` threads; for one thread, a current-thread runtime.
    ///
    /// # Panics
    ///
    /// If the runtime cannot be created.
    pub fn tokio(&self) -> tokio::runtime::Runtime {
        let mut builder = if self.threads == 1 {
            tokio::runtime::Builder::new_current_thread()
        } else {
            tokio::runtime::Builder::new_multi_thread()
        };
        builder
            .worker_threads(self.threads)
            .enable_all()
            .build()
            .expect("a runtime")
    }
}

/// Runs a blocking function on Tokio's pool for such functions.
///
/// # Panics
///
/// If the function panics.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("no panic")
}

/// Returns the number in the query `id=N`; 0 without one.
pub fn id(query: Option<&str>) -> i64 {
    let number = query.and_then(|query| query.strip_prefix("id="));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
