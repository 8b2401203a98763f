//! Asks Nix binary caches: what a closure costs to download, and which paths are there.
//!
//! # Two types to know
//!
//! * [`Cache`] is one binary cache over HTTP. It asks in bulk where the server knows how
//!   (`docs/mass-queries.md`), else one narinfo after the other over many connections.
//! * [`Records`] reads an answer in bulk, strictly.
//!
//! # In scope
//!
//! Questions. Any binary cache over HTTP: Samovar, nix-serve, harmonia, files behind a web server.
//! A store of this machine: whether its files are what is registered.
//!
//! # Out of scope
//!
//! Downloading, and changing anything anywhere.

#![forbid(unsafe_code)]

mod cache;
pub mod command;
mod doctor;
mod http;
mod records;
mod roots;
mod walk;

pub use cache::{Cache, Found};
pub use records::{Record, Records, RecordsError};
