//! A client of the Nix daemon (worker protocol).
//!
//! A daemon forks for each connection and answers from the current database: neither side caches,
//! and a connection may be kept for any time. It is closed after a protocol error; an error that
//! the daemon reports is not one.

mod connection;
#[cfg(fuzzing)]
pub mod fuzzing;
mod message;
mod nar;
mod pool;
mod roots;
mod socket;
mod store;
mod wire;

pub use pool::Daemon;
pub use roots::TempRoots;
pub use store::DaemonStore;

pub(crate) use nar::{RemoteNar, RemoteNarReader, RemoteSteps};
