//! Command line and endpoints that all contenders share.
//!
//! | endpoint | response |
//! | --- | --- |
//! | `/` | echo of the request body, for the suites of `xtask suites` |
//! | `/text` | 13 bytes |
//! | `/text500` | 500 bytes |
//! | `/json` | a JSON object, serialised for each request |
//! | `/file` | the file named on the command line |
//! | `/upload` | the number of received bytes |
//! | `/ws` | a WebSocket that echoes messages |
//! | `/broadcast` | WebSockets; each message is sent to all of them |

use std::path::PathBuf;

use serde::Serialize;

/// Body of `/text`: 13 bytes.
pub const TEXT: &str = "Hello, World!";

/// Body of `/text500`: 500 bytes.
pub static TEXT_500: [u8; 500] = [b'x'; 500];

/// Number of messages that a slow socket of `/broadcast` may lag behind.
pub const BROADCAST_BACKLOG: usize = 64;

/// Object in the response to `/json`.
#[derive(Debug, Serialize)]
pub struct Message {
    /// Text of 13 bytes.
    pub message: &'static str,
}

/// Parsed command line of a contender.
#[derive(Debug, Clone)]
pub struct Options {
    /// Port on 127.0.0.1.
    pub port: u16,
    /// Number of threads that serve connections.
    pub threads: usize,
    /// Number of threads for blocking work.
    pub blocking_threads: usize,
    /// File that `/file` serves.
    pub file: PathBuf,
}

impl Options {
    /// Parses `PORT THREADS BLOCKING_THREADS FILE`.
    ///
    /// # Panics
    ///
    /// If the command line is malformed.
    pub fn from_command_line() -> Self {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let [port, threads, blocking, file] = &words[..] else {
            panic!("usage: PORT THREADS BLOCKING_THREADS FILE");
        };
        Self {
            port: port.parse().expect("a port"),
            threads: threads.parse().expect("a number of threads"),
            blocking_threads: blocking.parse().expect("a number of threads"),
            file: file.into(),
        }
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
            .max_blocking_threads(self.blocking_threads)
            .enable_all()
            .build()
            .expect("a runtime")
    }
}
