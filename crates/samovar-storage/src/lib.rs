//! Stores uploaded paths: verified NAR files in a directory, and metadata in SQLite.
//!
//! # Theory of operation
//!
//! A stock Nix client uploads a path in two requests. The first contains the NAR file:
//! [`StoredCache::put_nar`] decompresses, parses and hashes it in one pass while writing it to the
//! disk. The second contains the narinfo: [`StoredCache::put_narinfo`] compares it with the
//! verified file and publishes the path in one transaction.
//!
//! * **Only verified data is visible.** A NAR gets a row in the database only after it was decoded
//!   and hashed.
//! * **Acknowledged uploads are durable.** The file is synced before its row is committed, and the
//!   commit is synced before the client gets its response.
//! * **A path is published only if its references exist.** References are rows with a foreign key.
//!   Paths of the live Nix store count as existing.
//! * **The directory is a plain binary cache** that any Nix can read as `file://`.
//! * **A client cannot use a file only because it knows the hash.** The client's token must have
//!   uploaded the file, or must be able to read it in the same cache.
//! * **The collector deletes only paths that are not kept**: see [`collect`].
//!
//! The traits [`Objects`](objects::Objects) and [`Metadata`](metadata::Metadata) separate these
//! rules from the file system and from SQLite.

#![forbid(unsafe_code)]

mod admission;
mod backup;
mod browse;
mod bulk;
pub mod collect;
mod commit_queue;
mod counters;
mod doubt;
mod error;
mod extras;
pub mod fsck;
mod hidden;
pub mod import;
mod inspect;
mod keep;
mod layout;
mod log_files;
mod logs;
mod loose;
mod lost;
pub mod metadata;
mod mirror;
mod mirrored;
pub mod objects;
mod pins;
mod plausible;
mod presence;
mod publish;
mod purge;
pub mod push;
mod put_error;
mod realisations;
mod regular;
mod reserve;
mod retention;
mod root;
mod statistics;
mod storage;
mod stored_cache;
pub mod token;
mod unmounted;
mod upkeep;
pub mod verify;
mod waiting;

pub use admission::{Admitted, Wait};
pub use backup::Restored;
pub use counters::CollectorStatistics;
pub use doubt::Doubt;
pub use error::StorageError;
pub use extras::unused_extras;
pub use inspect::{Foreign, Inspection, inspect};
pub use layout::DATABASE;
pub use lost::LostFile;
pub use metadata::{
    Lineage, PIN_NAME_LEN_MAX, PIN_TEXT_LEN_MAX, PinName, PinNameError, PinPartError, PinText,
};
pub use mirror::{Render, cache_info, narinfo};
pub use objects::Space;
pub use pins::{PinError, PinOptions};
pub use publish::{REALISATION_LEN_MAX, Refusal};
pub use purge::purge_step;
pub use put_error::PutError;
pub use regular::open_regular;
pub use root::{RootKind, owned};
pub use statistics::Statistics;
pub use storage::{Storage, is_in_use, open_database};
pub use stored_cache::{StoredCache, listing_reader};
pub use upkeep::PAUSE;
pub use waiting::{LendSlot, PATIENCE, Patience, Waits};
