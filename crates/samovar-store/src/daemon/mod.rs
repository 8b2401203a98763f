//! A client of the Nix daemon (worker protocol).
//!
//! A daemon forks for each connection and reads the current database for each request. Neither side
//! caches, so a connection can stay open for any time. It is closed after a protocol error; an
//! error message from the daemon is not a protocol error.

mod connection;
#[cfg(fuzzing)]
pub mod fuzzing;
mod message;
mod pool;
mod socket;
mod wire;

pub use connection::TempRoots;
pub use pool::Daemon;
