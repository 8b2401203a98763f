//! The client side of Nix binary caches, for the commands of `samovar`.
//!
//! | module | contents |
//! | --- | --- |
//! | [`remote`], [`netrc`], [`credential`] | the URL of a server, and the login or token for it |
//! | [`http`], [`pace`], [`fault`] | requests, which are repeated after temporary failures |
//! | [`cache`], [`walk`] | narinfos and closures of a binary cache |
//! | [`failed`], [`private`] | why a command fails |
//! | [`notice`], [`progress`] | messages on standard error while a user waits |
//! | [`user_dirs`] | the directories of the user |
//!
//! [`cache::Cache`] uses bulk queries (`docs/bulk-queries.md`) if the server supports them; else it
//! requests single narinfos over many connections.
//!
//! # Out of scope
//!
//! The command line, and writing to a Nix store.

#![forbid(unsafe_code)]

mod agent;
pub mod cache;
pub mod credential;
pub mod failed;
pub mod fault;
mod guarded;
pub mod http;
pub mod netrc;
pub mod notice;
pub mod pace;
mod patience;
pub mod private;
pub mod progress;
pub mod remote;
pub mod user_dirs;
pub mod walk;
