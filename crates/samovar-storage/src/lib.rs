//! Storage of uploaded paths: verified files in a directory, metadata in SQLite.
//!
//! # Theory of operation
//!
//! An upload has two parts, as a stock Nix client sends them. The NAR file comes first:
//! [`StoredCache::put_nar`] decompresses, parses and hashes it in one pass while it is written to
//! the disk. The narinfo follows: [`StoredCache::put_narinfo`] compares it with what was measured
//! and publishes the path in one transaction.
//!
//! * **Nothing unverified is visible.** A NAR has a row only after it was decoded and hashed.
//! * **Acknowledged means durable.** The file is synced before its row is committed, and the commit
//!   is synced before the client gets its answer.
//! * **No path without its references.** References are rows with a foreign key. Paths of the live
//!   Nix store count as present.
//! * **The directory is a plain binary cache** that any Nix reads as `file://`.
//! * **A token must have sent a file to use it**, or must be able to read it in the same cache: the
//!   hash alone proves nothing.
//!
//! [`Objects`](objects::Objects) and [`Metadata`](metadata::Metadata) separate this from the
//! directory and from SQLite.

#![forbid(unsafe_code)]

mod commit_queue;
mod content_address;
mod error;
pub mod metadata;
mod mirror;
pub mod objects;
mod publish;
mod storage;
pub mod token;
pub mod verify;

pub use error::{PutError, StorageError};
pub use mirror::narinfo;
pub use publish::{NARINFO_LEN_MAX, Refusal};
pub use storage::{DATABASE, Render, Storage, StoredCache, listing_reader, open_database};
