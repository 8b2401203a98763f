//! What makes a server a drop-in for `nix-serve`: its command line, its environment, its signals,
//! its logs and its manners as a process.
//!
//! The two things to know: [`cli::parse`] turns a command line into [`cli::Options`], and
//! [`listener::ListenSpec::resolve`] turns what it says about sockets into addresses. The rest is
//! for the life of the process: [`daemon`], [`log`], [`signals`], [`notify`].
//!
//! Out of scope: the store, HTTP, and serving one over the other. Nothing here binds a socket that
//! clients reach.

#![forbid(unsafe_code)]

pub mod cli;
pub mod daemon;
pub mod environment;
pub mod listener;
pub mod log;
pub mod notify;
pub mod signals;
