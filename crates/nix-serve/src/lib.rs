//! Command line and environment of `nix-serve`, as a configuration for `samovar-server`.
//!
//! [`environment`] makes a configuration from environment variables, and [`cli::parse`] changes it
//! by the options of the command line.

#![forbid(unsafe_code)]

pub mod cli;
pub mod environment;
