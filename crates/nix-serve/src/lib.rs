//! Converts the command line and environment of `nix-serve` to a configuration for
//! `samovar-server`.
//!
//! [`environment`] reads a configuration from environment variables. [`cli::parse`] applies the
//! options of the command line to it.

#![forbid(unsafe_code)]

pub mod cli;
pub mod environment;
