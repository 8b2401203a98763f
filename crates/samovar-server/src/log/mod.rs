//! The access log and the error log.
//!
//! Both hand whole lines to a [`LineWriter`], a thread behind a buffer of bounded size, so that a
//! full disk or a pipe nobody reads never stops a thread that serves. What does not fit is counted,
//! and the count is reported when there is room again.

mod access;
mod error;
mod escape;
mod json;
mod line_writer;
mod utc;

pub use access::{AccessLog, Entry, Request};
pub use error::{ErrorLog, Level};
pub use line_writer::{BUFFER_LEN_MAX, LineWriter, Sink, Trouble};
