//! What the servers share: their command line, and what they answer.
//!
//! | target | answer |
//! | --- | --- |
//! | `/` | what was sent, for the suites of `xtask suites` |
//! | `/text` | 13 bytes |
//! | `/text500` | 500 bytes |
//! | `/json` | an object, written anew for each request |
//! | `/file`, `/big` | the files of the command line |
//! | `/upload` | how many bytes came |
//! | `/sleep` | as `/text`, after 10 ms of blocking |
//! | `/ws` | a WebSocket that echoes messages |
//! | `/broadcast` | WebSockets that receive the messages of all |

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

/// 13 bytes.
pub const TEXT: &str = "Hello, World!";

/// 500 bytes.
pub static TEXT_500: [u8; 500] = [b'x'; 500];

/// How long `/sleep` blocks.
pub const NAP: Duration = Duration::from_millis(10);

/// Messages a slow socket of `/broadcast` may be behind.
pub const BROADCAST_BACKLOG: usize = 64;

/// The answer to `/json`.
#[derive(Debug, Serialize)]
pub struct Message {
    /// 13 bytes.
    pub message: &'static str,
}

/// What to serve, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// On 127.0.0.1.
    pub port: u16,
    /// Threads that serve connections.
    pub threads: usize,
    /// Threads for what blocks.
    pub blocking_threads: usize,
    /// `/file`.
    pub file: PathBuf,
    /// `/big`.
    pub big: PathBuf,
}

impl Options {
    /// Reads `PORT THREADS BLOCKING_THREADS FILE BIG`.
    ///
    /// # Panics
    ///
    /// If that is not the command line.
    pub fn from_command_line() -> Self {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let [port, threads, blocking, file, big] = &words[..] else {
            panic!("usage: PORT THREADS BLOCKING_THREADS FILE BIG");
        };
        Self {
            port: port.parse().expect("a port"),
            threads: threads.parse().expect("a number of threads"),
            blocking_threads: blocking.parse().expect("a number of threads"),
            file: file.into(),
            big: big.into(),
        }
    }

    /// Creates a runtime with this number of threads; for one, a current-thread runtime.
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
