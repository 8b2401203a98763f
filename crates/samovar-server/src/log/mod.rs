//! The access log and the error log.
//!
//! Both pass whole lines to a [`LineWriter`](samovar_http::log::LineWriter), a thread with a
//! bounded buffer, so that a full disk or a blocked pipe never blocks a thread that serves
//! requests. Lines that do not fit are dropped and counted; the count is reported once the buffer
//! has space again.

mod access;
mod error;
mod json;
mod masked;
mod utc;

pub(crate) use access::{AccessLog, Entry, Request};
pub(crate) use error::{ErrorLog, Level};
pub(crate) use utc::rfc_3339;
