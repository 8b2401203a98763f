//! The messages between clients and servers of Samovar that are not part of the binary cache
//! protocol: each message in one file, with its writer and its reader.
//!
//! # In scope
//!
//! | module | messages | specification |
//! | --- | --- | --- |
//! | [`bulk`] | answers with many narinfos | `docs/bulk-queries.md` |
//! | [`push`] | pushes of many paths in a few requests | `docs/push-protocol.md` |
//! | [`recipe`] | NARs that are made from pieces of others | `docs/push-protocol.md` |
//! | [`pins`] | pins, also called refs, and their generations | `docs/pins.md` |
//! | [`oidc`] | exchanges of ID tokens for tokens of a cache | `docs/push-protocol.md` |
//! | [`names`] | names in URLs | `docs/push-protocol.md`, `docs/pins.md` |
//!
//! # Out of scope
//!
//! HTTP: methods, status codes and header fields. Files, sockets, clocks, threads and compression,
//! which the crate's `clippy.toml` disallows. A reader of a body reads from a [`std::io::BufRead`],
//! in bounded memory.
//!
//! Server and client parse input that may be hostile, so no reader panics or trusts a length. A
//! reader accepts exactly what the writer in the same file writes, unless the module states what
//! other versions write.

#![forbid(unsafe_code)]
// Tests may index and slice: a panic there fails the test, as intended.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice))]

mod answer;
pub mod bulk;
#[cfg(test)]
mod damage;
mod framed;
mod line;
pub mod names;
pub mod oidc;
pub mod percent;
pub mod pins;
pub mod push;
pub mod recipe;

pub use answer::AnswerError;
pub use line::{end_line, nar_hash_text, number, parse_sha256};
