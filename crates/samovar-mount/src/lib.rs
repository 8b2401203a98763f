//! Mounts of snapshots: the parts of `samovar mount`, `samovar workspace run`, and workspaces in
//! overlay mode that use file systems, overlays and namespaces of the Linux kernel.
//!
//! | module | contents |
//! | --- | --- |
//! | [`fuse`] | the view of a snapshot or of a store, and how its files are fetched |
//! | [`overlay`] | layers of an overlay, the changes in them, and who uses them |
//! | [`process`] | private namespaces, and the processes in them |
//! | [`refusal`] | why a machine cannot run overlays |
//!
//! # Out of scope
//!
//! The command line, and what a workspace is.

#![forbid(unsafe_code)]

pub mod fuse;
pub mod overlay;
pub mod process;
pub mod refusal;
