//! The server process around a binary cache: configuration, sockets, signals, logs.
//!
//! [`server::run`] runs a server with a [`config::Configuration`]. The other modules are parts of
//! it: [`daemon`], [`listener`], [`log`], [`signals`], [`notify`].
//!
//! The programs `nix-serve` and `samovar serve` use this crate.
//!
//! Out of scope: URLs (`samovar-cache`), HTTP (`samovar-http`), the store (`samovar-store`).

#![forbid(unsafe_code)]

pub mod checkup;
pub mod config;
pub mod daemon;
pub mod listener;
pub mod log;
pub mod notify;
pub mod server;
pub mod signals;
