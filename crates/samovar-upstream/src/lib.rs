//! Decisions of a binary cache that passes on paths of upstream caches: when which upstream is
//! asked, which narinfo is trusted, and how long an answer is remembered.
//!
//! # In scope
//!
//! | module | decision |
//! | --- | --- |
//! | [`settings`] | the options of an upstream |
//! | [`look_up`] | which upstreams are asked for a path, in which order, and for how long |
//! | [`circuit`] | whether an upstream that does not answer is asked |
//! | [`status`] | what the status of a response says |
//! | [`memory`] | what an upstream has answered, and how long the answer is remembered |
//! | [`bulk`] | whether many narinfos are requested at once |
//! | [`trust`] | whether a narinfo of an upstream may be served |
//! | [`local`] | the narinfo that is served instead of the upstream's |
//! | [`via`] | whether a request has come from this server |
//!
//! # Out of scope
//!
//! Requests, files, threads and clocks, which the crate's `clippy.toml` disallows: time is an
//! argument. `samovar-cache` makes the requests.

#![forbid(unsafe_code)]
// Tests may index and slice: a panic there fails the test, as intended.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice))]

pub mod bulk;
pub mod circuit;
pub mod local;
pub mod look_up;
pub mod memory;
pub mod settings;
pub mod status;
pub mod trust;
pub mod via;
