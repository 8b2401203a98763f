//! What makes a server a drop-in for `nix-serve`: its command line and its environment.
//!
//! [`cli::parse`] turns a command line into [`cli::Options`], and [`configuration`] makes of them,
//! and of the [`environment`], what `samovar-server` understands, which is all the rest.

#![forbid(unsafe_code)]

pub mod cli;
mod configuration;
pub mod environment;

pub use configuration::configuration;
