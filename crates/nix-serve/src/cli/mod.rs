//! The command line: all options of nix-serve (starman, plackup) and nix-serve-ng.
//!
//! [`parse`] turns the arguments into an [`Invocation`]. It reads neither environment nor files and
//! prints nothing. `scanner.rs` has the rules of spelling, `option.rs` the table of options with
//! their effects, `draft.rs` the options whose effect depends on others.
//!
//! Options without effect are accepted with a warning: nix-serve refuses none, and an update must
//! not prevent a cache from starting. An option is refused with a [`CliError`] if it requests
//! protection that nix-serve cannot give (TLS without a certificate, access rules, code that may
//! ask for passwords), and so is an invalid value: a private cache must not silently become public.
//!
//! # Source
//!
//! Starman 0.4016, `script/starman` and `Starman::Server`; Plack 1.0050, `Plack::Runner`;
//! nix-serve-ng 1.1.0, `Options.hs`.

mod draft;
mod error;
mod help;
mod nearest;
mod option;
mod parser;
mod scanner;

pub use draft::refuse_variables;
pub(crate) use draft::set;
pub use error::CliError;
pub use help::{help, version};
pub use parser::{Invocation, parse};

#[cfg(test)]
mod tests;
