//! The access log and the error log.
//!
//! Both pass whole lines to a [`LineWriter`], a thread behind a bounded buffer, so that a full disk
//! or a blocked pipe never stops a thread that serves. Lines that do not fit are dropped and
//! counted, and the count is reported once the buffer has space again.

mod access;
mod error;
mod escape;
mod json;
mod line_writer;
mod utc;

pub use access::{AccessLog, Entry, Request};
pub use error::{ErrorLog, Level};
pub use line_writer::{BUFFER_LEN_MAX, LineWriter, Sink, Trouble};
