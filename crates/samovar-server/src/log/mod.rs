//! The access log and the error log.
//!
//! Both pass whole lines to `line_writer.rs`, a thread with a bounded buffer, so that a full disk
//! or a blocked pipe never blocks a thread that serves requests. Lines that do not fit are dropped
//! and counted; the count is reported once the buffer has space again.

mod access;
mod error;
mod escape;
mod json;
mod line_writer;
mod utc;

pub(crate) use access::{AccessLog, Entry, Request};
pub(crate) use error::{ErrorLog, Level};
