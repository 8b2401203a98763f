//! `samovar mount`: mounts a snapshot, read-only, before its contents are on this machine.

mod cache_dir;
mod frames;
mod local;
mod queue;
mod view;
