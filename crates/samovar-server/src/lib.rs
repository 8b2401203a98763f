//! The server process around a binary cache: configuration, sockets, signals, logs.
//!
//! [`server::run`] runs a server with a [`config::Configuration`], [`daemon`] starts it in the
//! background, and [`checkup`] checks its set-up without serving.
//!
//! The programs `nix-serve` and `samovar serve` use this crate.
//!
//! Out of scope: URLs (`samovar-cache`), HTTP (`samovar-http`), the store (`samovar-store`).

#![forbid(unsafe_code)]

pub mod checkup;
pub mod config;
pub mod daemon;
pub mod listener;
mod log;
mod notify;
pub mod server;
mod signals;
mod sys;

pub use samovar_text::without_logins;
