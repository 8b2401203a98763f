//! The Nix daemon, asked by the worker protocol.
//!
//! A daemon forks for each connection and answers from the database at that moment: nothing is
//! cached on either side, and a connection may be kept as long as one likes. After any irregularity
//! it is dropped; an error that the daemon reports is no irregularity.

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
