//! Passes on paths of upstream caches: look-ups that occupy no worker, and NARs that are sent while
//! they arrive.
//!
//! # Theory of operation
//!
//! A path that is neither in the store nor uploaded is looked up at the upstreams of the cache. The
//! [director](director), one thread, conducts all look-ups; the threads of each upstream's
//! [pool](pool) send the requests. The response to the client is deferred, so a look-up occupies no
//! worker, and an upstream that hangs occupies only its own pool. Each cache remembers which paths
//! were found or are absent ([`CacheUpstreams`]), so that an I/O thread can answer further
//! requests.
//!
//! The URL of a NAR names the store path, so a request for a NAR starts the same look-up as a
//! request for a narinfo. A [`Transfer`](transfer::Transfer) receives and verifies the NAR, and all
//! clients that request the NAR read from it.

mod all;
mod body;
mod bulk;
mod decompressors;
mod director;
mod hidden;
mod kept;
mod many;
mod message;
mod misses;
mod nar_head;
mod of_cache;
mod of_client;
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
