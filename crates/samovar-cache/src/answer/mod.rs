//! Responses: one function per form of URL, which uses a [`Reader`](crate::reader::Reader).
//!
//! Narinfos are in [`crate::narinfo`], because I/O threads send them as well.

pub(crate) mod build_log;
pub(crate) mod bulk;
pub(crate) mod listing;
pub(crate) mod nar;
mod nar_body;
pub(crate) mod realisation;
pub(crate) mod stored_nar;
pub(crate) mod zstd_nar;
