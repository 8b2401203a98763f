//! Refs: names with numbered generations, each of which is a snapshot of a tree.

mod client;
mod name;

pub use client::{Expected, Generation, Log, Refs, Update, Updated, conditional, generation, url};
pub use name::{PathOrRef, RefName, check_snapshot, check_successor, is_manifest, path_names};
pub use samovar_protocol::pins::Version;
