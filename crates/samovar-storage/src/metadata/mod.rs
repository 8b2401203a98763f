//! The database of a storage: [`Database`], and functions for what is stored in it.
//!
//! The database alone decides which paths exist. A path is visible once its row is committed. The
//! row is committed only after the path's NAR file is durable, and only if all references of the
//! path have rows, which a foreign key enforces.
//!
//! Each module has the types and the statements of one subject. A function takes the database, and
//! runs one transaction or reads one snapshot, so what it returns is of a single moment. It may
//! block on a disk or a lock. All times are Unix times in seconds.
//!
//! Each statement is one text for all engines, unless they need different ones for many rows at
//! once.

pub(crate) mod backup;
pub mod caches;
pub mod check;
mod client;
pub mod collect;
pub mod exchanges;
pub mod extras;
pub mod limits;
pub(crate) mod nars;
pub(crate) mod nodes;
pub mod overview;
pub mod packs;
mod path;
pub mod paths;
mod pin;
pub mod pins;
pub(crate) mod publish;
pub mod pushes;
mod rows;
#[cfg(test)]
mod tests;
pub mod tokens;
pub mod totals;
pub(crate) mod transfer;
pub(crate) mod uses;

pub use crate::sql::{CacheId, Clock, Database};
pub use caches::{CacheRow, CacheSummary, DeletedCache, Freed};
pub use check::{ListedNar, ListedPath};
pub use client::Client;
pub use collect::{Graph, GraphPath, Times};
pub use exchanges::Issued;
pub use extras::{Extra, ExtraKind, LogFile, NewRealisation, Recorded, StoredRealisation};
pub use limits::{OWN_LEN, SizeLimit};
pub use nodes::NodeState;
pub use overview::{
    CLOSURE_COUNT_MAX, ClosureSize, Details, Named, REFERRER_COUNT_MAX, RecentPath, RecentPush,
};
pub use path::{LookupResult, NewNar, NewPath, NewReference, Published, StoredNar, StoredPath};
pub use pin::{NewPin, PIN_COUNT_MAX, Pin, Pinned, Unpin, Unpinned};
pub use pushes::{Need, PushLimits};
pub use tokens::NewToken;
pub use totals::{CacheTotals, Totals};
pub use uses::{USE_INTERVAL, Uses};

/// Length of a day, in seconds.
pub const DAY: i64 = 86_400;

/// Maximum number of signatures of a path.
pub(crate) const SIGNATURE_COUNT_MAX: usize = 32;

/// Maximum number of realisations of a derivation: one for each of its outputs.
pub(crate) const REALISATION_COUNT_MAX: u64 = 64;
