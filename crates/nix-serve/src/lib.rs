//! What makes a server a drop-in for `nix-serve`: its command line, its environment, its signals,
//! its logs and its manners as a process.
//!
//! The two things to know: [`cli::parse`] turns a command line into [`cli::Options`], and
//! [`listener::ListenSpec::resolve`] turns what it says about sockets into addresses. The rest is
//! for the life of the process: [`daemon`], [`log`], [`signals`], [`notify`].
//!
//! [`server::run`] puts them together with the cache.
//!
//! Out of scope: what a URL means (`samovar-cache`), HTTP (`samovar-http`), the store
//! (`samovar-store`).

#![forbid(unsafe_code)]

pub mod cli;
pub mod daemon;
pub mod environment;
pub mod listener;
pub mod log;
pub mod notify;
pub mod server;
pub mod signals;
