//! The view of a snapshot, or of the store of a cache, as a file system of FUSE.
//!
//! # Theory of operation
//!
//! ```text
//! kernel ⇄ FileSystem → Local (NAR file, marks) ← Fetcher ← Origin ← server
//! ```
//!
//! The manifest has all names and attributes, so the snapshot is mounted as soon as the manifest is
//! here. The `Fetcher` streams the whole NAR into one sparse file in the background. A read whose
//! blocks are missing jumps the queue. Each file is verified with its digest in the manifest before
//! its first byte is returned: as it arrives, or when it is read.
//!
//! A store path without a manifest is fetched and verified as a whole before it is mounted.
//!
//! For a store, the root of the `FileSystem` is a `Store`, which opens a tree for each store
//! path whose name is looked up, in the same way as a single one.

mod arrivals;
mod cache_dir;
mod counts;
mod download;
mod fetch;
mod file_system;
mod local;
mod mount_point;
mod queue;
mod source;
mod store;
mod transfer;
mod tree;
mod view;
mod wanted;
mod whole;

pub use cache_dir::{CacheDir, SIZE_DEFAULT};
pub use file_system::End;
pub use mount_point::{MountPoint, Mounted};
pub use wanted::{Access, Mount, MountOptions, Opened, Source, Wanted, keep_manifest};
