//! A Nix binary cache as an HTTP application: routing, responses, signing.
//!
//! The crate maps URLs to paths of a store, uploaded paths, and paths of upstream caches.
//! `samovar-http` implements HTTP, `samovar-store` reads rows and files of the store, and
//! `samovar-nix` implements the formats.
//!
//! `ARCHITECTURE.md` lists the modules and what each may import.
//!
//! # Main types
//!
//! * [`Site`] is the service to give to a server.
//! * [`samovar_metrics::Observer`] receives its events, for logs and metrics.
//!
//! # In scope
//!
//! All URLs that Nix clients request from a binary cache, in the forms of nix-serve, nix-serve-ng
//! and harmonia. Uploads by PUT and by the push protocol, which `samovar-storage` stores.
//!
//! # Out of scope
//!
//! Command lines, log files and processes, which belong to the binaries.

#![forbid(unsafe_code)]

pub mod access;
mod answer;
mod debug_info;
#[cfg(fuzzing)]
pub mod fuzzing;
mod known;
mod narinfo;
mod oidc;
mod pages;
mod prepared;
mod private_file;
mod reader;
mod refusal;
mod route;
mod site;
mod sync;
mod sys;
#[cfg(test)]
mod tests;
mod upload;
mod upstream;

pub use known::gc_lease::LeaseConfig;
pub use known::health::Trust;
pub use known::nar_cache::NarCacheDirectory;
pub use known::program::Program;
pub use narinfo::key_file::{KeyFileError, LoadedKey, load_key};
pub use narinfo::signing::{Sign, Signing, Stored};
pub use oidc::{
    IssuerAnswer, IssuerRule, IssuerSettings, LIFETIME_MAX, LIFETIME_MIN, Oidc, ask_issuer,
};
pub use pages::{PagesConfig, admin};
pub use reader::policy::{PolicyConfig, RootFault, Rule, faulty_roots, newest_readable};
pub use route::is_own_segment;
pub use route::path::normal_prefix;
/// Keys for signing (secret), and for clients and policies to verify signatures (public).
pub use samovar_nix::narinfo::NarCoding;
pub use samovar_nix::{PublicKey, SecretKey};
pub use site::config::CacheConfig;
pub use site::current::Clients;
pub use site::reconfigure::ReconfigureError;
pub use site::{Local, Site, SiteConfig};
pub use upload::render_uploaded;
pub use upstream::{CacheInfo, Held, UpstreamConfig, Upstreams, Visit};
