//! Facts about a store: registrations, caches and verification records.
//!
//! The caches of a store share these facts. This module does not check whether a path may be read:
//! a [`Reader`](crate::reader::Reader) has checked that before.

pub(crate) mod build_ids;
pub(crate) mod bulk_budget;
pub(crate) mod fresh;
pub(crate) mod gc_lease;
pub(crate) mod health;
pub(crate) mod listing;
pub(crate) mod names;
pub(crate) mod nar_cache;
pub(crate) mod outage;
pub(crate) mod pin_watch;
pub(crate) mod plans;
pub(crate) mod program;
pub(crate) mod registration;
pub(crate) mod row;
pub(crate) mod sharded;
pub(crate) mod shared_store;
pub(crate) mod small_nars;
pub(crate) mod zstd_frames;
