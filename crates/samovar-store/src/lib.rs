//! Read access to a Nix store, for a binary cache.
//!
//! # Two types to know
//!
//! * [`Store`] is the interface a server uses: look-ups, files, logs. [`open()`] opens the store
//!   that a URI and the environment name.
//! * [`Catalog`] holds all hash parts in memory and checks, with one system call, whether they
//!   are still up to date.
//!
//! # In scope
//!
//! Nix's database read by its schema, the files of a path as a NAR, build logs, realisations, and
//! the client side of the worker protocol for stores whose database cannot be read.
//!
//! # Out of scope
//!
//! Writing: a store is never changed. Remote stores and other binary caches. HTTP.

#![forbid(unsafe_code)]

mod catalog;
mod closure;
mod daemon;
mod database;
mod empty;
mod error;
mod local;
mod location;
mod log;
mod open;
mod realisation;
mod settings;
mod store;
mod sync;
mod sys;
mod tree;
mod uri;
mod verify;

pub use catalog::{Catalog, Snapshot, Version};
pub use closure::{Closure, Member, by_lookups as closure_by_lookups};
#[cfg(fuzzing)]
pub use daemon::fuzzing;
pub use daemon::{Daemon, TempRoots};
pub use database::{Scanned, SchemaWarning};
pub use empty::EmptyStore;
pub use error::{Corruption, Irregularity, LookupResult, StoreError, Unavailable};
pub use local::LocalStore;
pub use location::Location;
pub use log::Log;
pub use open::{OpenError, has_default_store, open};
pub use realisation::{OutputName, Realisation, RealisationId, RealisationIdError};
pub use settings::{Conf, Settings, SettingsError};
pub use store::Store;
pub use tree::{
    EntryKind, EntryType, Fingerprint, Identity, ListingReader, Metadata, NarPlan, NarReader,
    NarSink, Page, PageEntry, PageRequest, Place, PlanError, Scan, Tree, TreeError, Visit,
};
pub use uri::{Parameters, StoreKind, StoreUri, UriError};
pub use verify::{Damage, Pace, Verdict, VerifyError, verify};
