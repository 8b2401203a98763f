//! Snapshots of directory trees: their manifests, and the conversion between files, NARs and
//! differences.
//!
//! A snapshot is an immutable state of a tree of files. It consists of two store paths: the tree,
//! whose NAR has the contents, and the [`Manifest`], which adds what a NAR lacks: permissions,
//! modification times, and a digest of each file, with which a single file can be verified.
//!
//! # Modules
//!
//! * [`delta`]: operations that build a new NAR from the NAR of a base.
//! * [`mod@diff`]: the differences between two trees.
//! * [`disk`]: whether a file system suits a use.
//! * [`entries`]: the entries of a tree in the order of a NAR, with the offsets of the contents.
//! * [`files`]: opens and reads the files of a scanned tree.
//! * [`git_index`]: the index of a git repository.
//! * [`index`]: the digests of unchanged files.
//! * [`manifest`]: the text format of manifests.
//! * [`mod@merge`]: three-way merges of trees.
//! * [`modes`]: modes of directories that a merge changes for a while.
//! * [`mounts`]: the mounted file systems.
//! * [`pack`]: from a directory to digests and to a NAR, with several threads.
//! * [`profile`]: the numbers that describe a tree.
//! * [`repository`]: repositories of version control systems in a tree.
//! * [`root`]: operations on the files below a directory, safe against symbolic links.
//! * [`scan`]: the entries of a directory.
//! * [`unchanged`]: whether a file is as it was scanned.
//! * [`unpack`]: from a NAR to files.
//! * [`walk`]: walks over several trees at once.
//!
//! # Out of scope
//!
//! HTTP, terminals, and mounted file systems.

#![forbid(unsafe_code)]

mod carry;
pub mod delta;
pub mod diff;
pub mod disk;
pub mod entries;
pub mod files;
pub mod git_index;
pub mod index;
pub mod manifest;
pub mod merge;
pub mod modes;
pub mod mounts;
pub mod pack;
mod pipe;
pub mod profile;
mod read_error;
pub mod repository;
pub mod root;
pub mod scan;
mod sys;
pub mod unchanged;
pub mod unpack;
pub mod walk;

#[cfg(test)]
mod test_tree;

pub use delta::{Delta, Op};
pub use diff::{Change, ChangeKind, Summary, diff};
pub use entries::{Entries, Entry, Kind, Mtime};
pub use files::Files;
pub use git_index::GitIndex;
pub use index::{Index, IndexError, boot_id};
pub use manifest::Manifest;
pub use merge::{Action, ActionKind, merge, merge_with};
pub use pack::{Packer, file_nar, read_tree};
pub use read_error::ReadError;
pub use root::Root;
pub use scan::{CLOCK, FileState, STATE_DIRECTORY, Scanned, Skipped, prepare_clock};
pub use walk::Walk;
