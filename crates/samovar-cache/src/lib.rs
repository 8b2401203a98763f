//! A Nix binary cache as an application: routes, answers, signing.
//!
//! Glue between the engine (`samovar-http`), the store (`samovar-store`) and the formats
//! (`samovar-nix`): it decides what a URL means and what is answered, and leaves how to them.
//!
//! # Two types to know
//!
//! * [`Site`] is the service to give to a server.
//! * [`samovar_metrics::Observer`] receives its events, for logs and metrics.
//!
//! # In scope
//!
//! Every URL that Nix clients ask a binary cache for, in the forms of nix-serve, nix-serve-ng and
//! harmonia. Read-only.
//!
//! # Out of scope
//!
//! Command lines, log files, processes: those are the binaries'.

#![forbid(unsafe_code)]

pub mod access;
mod ahead;
mod background;
mod bulk;
mod cache;
mod closure;
mod current;
mod figures;
mod fresh;
mod front;
#[cfg(fuzzing)]
pub mod fuzzing;
mod health;
mod hold;
mod kept;
mod key_file;
mod listings;
mod log;
mod names;
mod nar;
mod nar_body;
mod narinfos;
mod origin;
mod pages;
mod plans;
mod policy;
mod prepared;
mod program;
mod reader;
mod realisation;
mod recent;
mod reconfigure;
mod records;
mod refusal;
mod registration;
mod rendered;
mod route;
mod sharded;
mod signing;
mod site;
mod small_nars;
#[cfg(test)]
mod tests;
mod trouble;
mod under_way;
mod wishes;

pub use cache::CacheConfig;
pub use current::Visitors;
pub use health::Trust;
pub use hold::Hold;
pub use kept::KeptSpace;
pub use key_file::{KeyFileError, LoadedKey, load_key};
pub use pages::{PagesConfig, admin};
pub use policy::{PolicyConfig, Rule};
pub use program::Program;
pub use reconfigure::ReconfigureError;
/// The keys that a cache signs with, and those that clients and policies trust.
pub use samovar_nix::{PublicKey, SecretKey};
pub use signing::{Sign, Signing, Stored};
pub use site::{Local, Site, SiteConfig};
