//! What upstream caches have: look-ups that wait for no worker, and NARs that are passed on while
//! they arrive.
//!
//! # Theory of operation
//!
//! A path that is neither in the store nor uploaded is looked up at the upstreams of the cache. The
//! [director](director), one thread, conducts all look-ups; the requests run in the [pools](pool)
//! of the upstreams. The client's response is deferred, so a look-up holds no worker, and an
//! upstream that hangs holds nothing but its own pool. What was found, or found absent, is in the
//! memory of the cache ([`CacheUpstreams`]), from which an I/O thread answers.
//!
//! The URL of a NAR names its path, so a request for a NAR is looked up like one for a narinfo. The
//! NAR is a [`Transfer`](transfer::Transfer), which all of its readers share, and which verifies it
//! in passing.

mod all;
mod body;
mod bulk;
mod decompressors;
mod director;
mod kept;
mod many;
mod message;
mod misses;
mod nar_head;
mod of_cache;
mod one;
mod pool;
pub(crate) mod references;
mod request;
mod tracked;
mod transfer;
mod visit;
mod window;

pub use self::all::Upstreams;
pub(crate) use self::of_cache::CacheUpstreams;
pub use self::of_cache::UpstreamConfig;
pub use self::visit::{CacheInfo, Held, Visit};
