//! A binary cache as a process: its configuration, its sockets, its signals, its logs and its
//! manners.
//!
//! [`config::Configuration`] says what a server is to do, and [`server::run`] does it. The rest is
//! for the life of the process: [`daemon`], [`listener`], [`log`], [`signals`], [`notify`].
//!
//! Two programs are made of this: `nix-serve`, whose command line is that of the program of that
//! name, and `samovar serve`.
//!
//! Out of scope: what a URL means (`samovar-cache`), HTTP (`samovar-http`), the store
//! (`samovar-store`).

#![forbid(unsafe_code)]

pub mod checkup;
pub mod config;
pub mod daemon;
pub mod listener;
pub mod log;
pub mod notify;
pub mod server;
pub mod signals;
