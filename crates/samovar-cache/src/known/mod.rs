//! Facts about a store: what it has, what is cached of it, and what was verified.
//!
//! Everything here is shared by all caches of a store, so nothing here asks whether a path may be
//! read: a [`Reader`](crate::reader::Reader) asks before.

pub(crate) mod bulk_budget;
pub(crate) mod fresh;
pub(crate) mod gc_lease;
pub(crate) mod health;
pub(crate) mod names;
pub(crate) mod nar_cache;
pub(crate) mod outage;
pub(crate) mod plans;
pub(crate) mod program;
pub(crate) mod recent;
pub(crate) mod registration;
pub(crate) mod sharded;
pub(crate) mod shared_store;
pub(crate) mod small_nars;
