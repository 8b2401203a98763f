//! Log files: an access log, and a log of messages.
//!
//! ```no_run
//! use samovar_http::log::{AccessLog, Logger};
//! use samovar_http::Router;
//!
//! fn main() -> std::io::Result<()> {
//!     let log = Logger::file("server.log")?;
//!     let access = AccessLog::file("access.log", &log)?;
//!     log.info("the server starts");
//!     Router::new()
//!         .get("/", move |_| {
//!             log.warning("somebody has asked for the front page");
//!             "Hello\n"
//!         })
//!         .observe(access)
//!         .serve("127.0.0.1:8080")
//! }
//! ```
//!
//! Both logs are [observers](crate::Observer). An [`AccessLog`] writes one line for each response,
//! in the common log format, and passes incidents to its [`Logger`]. A logger that observes a
//! router by itself writes only the incidents. Clones of a log write to the same file.
//!
//! # Guarantees
//!
//! * **No caller waits for a disk.** Lines go to a thread through a buffer of 1 MiB. If the disk is
//!   full, or the buffer is, lines are dropped and counted; the count is logged once lines can be
//!   written again.
//! * **No client can forge a line.** Control characters are escaped, and so are the quotes of
//!   fields in the access log.
//! * Lines of several processes that append to the same file do not mix, if the file is on a local
//!   disk.
//! * [`reopen`](AccessLog::reopen) opens the file again under its name, after `logrotate` has
//!   renamed it. The library handles no signals: call it for example on SIGHUP, with the crate
//!   `signal-hook`.
//!
//! Lines reach the file within 20 ms. A program that ends should call [`flush`](AccessLog::flush),
//! or it loses the last of them.
//!
//! URLs may contain secrets, and addresses are personal data in many countries: decide who may read
//! the files, and for how long they are kept.
//!
//! # Other formats
//!
//! For another format, implement [`Observer`](crate::Observer), and pass whole lines to a
//! [`LineWriter`]. [`escape`] makes bytes of clients safe.

mod access;
mod escape;
mod line_writer;
mod logger;
mod timestamp;

pub use access::AccessLog;
pub use escape::escape;
pub use line_writer::{LineWriter, Sink, Trouble};
pub use logger::{Level, Logger};
