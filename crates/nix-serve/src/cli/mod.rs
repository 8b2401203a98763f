//! The command line: everything that nix-serve (starman, plackup) and nix-serve-ng understand.
//!
//! [`parse`] turns the arguments into an [`Invocation`]; it reads no environment and no file,
//! prints nothing, and does not panic whatever the words are. The rules of spelling stand in
//! `scanner.rs`, the names in `option.rs`, what the values become in [`Options`].
//!
//! Three outcomes for an option that does nothing here. Most are accepted with a [`Warning`]:
//! nix-serve refuses no option, and an update must not keep a machine's cache from starting. A
//! value that means nothing is a [`UsageError`]. And where an option asks for protection that is
//! not there (TLS without a certificate, access rules, code that may ask for passwords), starting
//! is a [`Refusal`]: a private cache must not become a public one in silence.
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
mod options;
mod parser;
mod scanner;
mod warning;

pub use error::{CliError, Refusal, UsageError};
pub use help::{help, version};
pub use options::{LogFormat, Options};
pub use parser::{Invocation, parse};
pub use warning::Warning;

#[cfg(test)]
mod tests;
