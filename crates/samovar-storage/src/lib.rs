//! Stores uploaded paths: verified NAR files in a directory or a bucket, and metadata in a
//! database.
//!
//! # Theory of operation
//!
//! A stock Nix client uploads a path in two requests. The first contains the NAR file:
//! [`nar::put`] decompresses, parses and hashes it in one pass while writing it to the
//! disk. The second contains the narinfo: [`narinfo::put`] compares it with the
//! verified file and publishes the path in one transaction.
//!
//! * **Only verified data is visible.** A NAR gets a row in the database only after it was decoded
//!   and hashed.
//! * **Acknowledged uploads are durable.** The file is synced before its row is committed, and the
//!   commit is synced before the client gets its response.
//! * **A path is published only if its references exist.** References are rows with a foreign key.
//!   Paths of the live Nix store count as existing.
//! * **The directory is a plain binary cache** that any Nix can read as `file://`. So is a bucket
//!   in which each file has its own object.
//! * **Knowing the hash of a file does not allow a client to use the file.** The client's token
//!   must have uploaded the file, or must be able to read it in the same cache.
//! * **The collector deletes only paths that no pin, use or rule of retention protects**: see
//!   [`gc`].
//!
//! [`objects`] has all system calls on files, [`metadata`] all SQL statements.

#![forbid(unsafe_code)]

mod catalog;
pub mod check;
pub mod copy;
mod disk;
mod error;
pub mod gc;
pub mod import;
mod layout;
mod location;
pub mod metadata;
mod mirror;
pub mod nodes;
pub mod objects;
mod postgres;
pub mod push;
mod receive;
mod regular;
mod reserve;
mod root;
mod sql;
mod storage;
mod store_id;
mod sys;
pub mod token;
mod unmounted;
mod waiting;

pub use check::{DatabaseServer, Foreign, Inspection, RemoteInspection};
pub use check::{inspect, inspect_remote};
pub use error::{Doubt, StorageError, is_full};
pub use gc::{purge_step, unused_extras};
pub use layout::DATABASE;
pub use location::{BucketLocation, Location};
pub use mirror::{Render, cache_info};
pub use objects::Space;
pub use postgres::{PostgresSettings, PostgresSettingsError};
pub use receive::{Admitted, PutError, REALISATION_LEN_MAX, Refusal, Wait};
pub use regular::open_regular;
pub use reserve::has_room;
pub use root::{RootKind, owned};
pub use samovar_verify as verify;
pub use sql::{DatabaseStatistics, TransactionStatistics};
pub use storage::{
    BucketStatistics, CollectorStatistics, LostFile, NodeStatistics, Remote, Statistics, Storage,
    StoredCache, is_in_use, open_database,
};
pub use storage::{
    backup, browse, kept, logs, mirrored, nar, narinfo, pinning, readiness, realisations, upkeep,
};
pub use waiting::{LendSlot, PATIENCE, Patience, Waits};
