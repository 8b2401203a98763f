//! Answers: one function for each form of URL, from a [`Reader`](crate::reader::Reader) to a
//! response.
//!
//! The narinfo is not here, because I/O threads send it: see [`crate::narinfo`].

pub(crate) mod build_log;
pub(crate) mod bulk;
pub(crate) mod listing;
pub(crate) mod nar;
mod nar_body;
pub(crate) mod realisation;
