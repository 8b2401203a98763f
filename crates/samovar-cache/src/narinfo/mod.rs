//! Looks up, renders, signs, caches and prefetches the narinfos of one cache.

pub(crate) mod form;
pub(crate) mod key_file;
pub(crate) mod narinfos;
pub(crate) mod packed;
pub(crate) mod prefetch;
pub(crate) mod prefetch_queue;
pub(crate) mod rendered;
pub(crate) mod signing;
