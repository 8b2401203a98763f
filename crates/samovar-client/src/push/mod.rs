//! Pushes paths of the local store, and directories, to a cache.
//!
//! # Modules
//!
//! * `pusher`: pushes to a cache. `report`: their results.
//! * `closure`: selects the paths. `compress`: reads and compresses their NARs. `ledger`: the
//!   states of the paths.
//! * `session`: the requests of the push protocol, with `assembler`, `publisher` and `resume`.
//!   Their texts are in `samovar-protocol`. `stock`: the requests of a stock Nix client, for caches
//!   that do not know the protocol. `narinfo`: the narinfos of both.
//! * [`directory`], `local_tree`, `snapshot`: snapshots of trees.
//! * [`registered`], `watch`, [`spool`]: sources of paths.
//! * `pin`: the pin of a pushed path.

mod assembler;
mod cache_dir;
mod closure;
mod compress;
pub mod directory;
mod ledger;
mod local_tree;
mod narinfo;
mod pin;
mod publisher;
mod pusher;
pub mod registered;
mod report;
mod resume;
mod session;
mod snapshot;
pub mod spool;
mod stock;
mod watch;

pub use closure::{Paths, Selection};
pub use compress::{Compressing, FRAME_LEN};
pub use ledger::Summary;
pub use local_tree::LocalTree;
pub use pin::{PinOptions, PinReport};
pub use pusher::{Pusher, Settings, may_push};
pub use report::Report;
pub use snapshot::{Tree, Uploaded, upload};
pub use watch::watch;
