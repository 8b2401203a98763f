//! Test clients, child processes and polling, shared by the tests and tools of this repository.
//!
//! | module | contents |
//! | --- | --- |
//! | [`http1`] | HTTP/1.1: an incremental response decoder and a keep-alive connection |
//! | [`http2`] | HTTP/2: the `h2` client without a runtime, and raw frames |
//! | [`websocket`] | WebSocket frames, written and read without a library that corrects them |
//! | [`process`] | child processes whose output is collected, killed on drop |
//! | [`procfs`] | CPU time, memory and descriptors of a process, from `/proc` |
//! | [`limit`] | limits that warn, and fail at twice their value |
//! | [`free_port()`] | a port for servers that cannot choose one themselves |
//! | [`wait`] | [`eventually`]: polling with a deadline |
//! | [`random`] | [`SplitMix64`](random::SplitMix64) |
//! | [`closed_port`] | a port that refuses connections |
//! | [`faults`] | a TCP proxy that delays, cuts and holds connections |
//! | [`nar`] | file trees in memory, and their NARs |
//! | [`content`] | generated contents of files |
//! | [`small_files`](mod@small_files) | a generated tree of forty thousand small files |
//! | [`nginx`] | nginx in front of servers |
//! | [`s3`] | an S3 engine |
//! | [`nodes`] | several servers with one database and one bucket |
//! | [`nix`] | Nix's programs without the configuration of this machine, and the sample store |
//! | [`postgres`] | PostgreSQL servers of tests; with the feature of that name, also connections |
//! | [`sqlite`] | SQL in another process, which waits for locks, or keeps them to test locking |
//!
//! A function named `try_…` returns errors; its counterpart without the prefix panics, which fails
//! the test. The crate depends on no other crate of the workspace, so all of them can use it in
//! their tests.

#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test helper fails by panicking"
)]

pub mod closed_port;
pub mod content;
pub mod faults;
mod free_port;
pub mod http1;
#[cfg(feature = "http2")]
pub mod http2;
pub mod limit;
pub mod nar;
pub mod nginx;
pub mod nix;
pub mod nodes;
pub mod postgres;
pub mod process;
pub mod procfs;
pub mod random;
pub mod s3;
pub mod small_files;
pub mod sqlite;
pub mod wait;
pub mod websocket;

pub use free_port::free_port;
pub use wait::{PATIENCE, eventually, holds_within};
