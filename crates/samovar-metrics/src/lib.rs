//! Events, metrics and status of a binary cache server.
//!
//! # Theory of operation
//!
//! The cache reports each [`Event`] to an [`Observer`], and the engine reports each
//! [`Exchange`](samovar_http::Exchange) to the same observer. [`Metrics`] is an observer that
//! counts events and exchanges, and passes them on to another observer, the server's log. Each
//! thread counts the requests that it answers in its own shard (`meter.rs`). Once a second, a
//! [`Sampler`] reads the sums of all shards for rates and percentiles, and the requested paths for
//! the lists of top paths (`sketch.rs`). The [`Monitored`] application returns the state of the
//! store and the caches.
//!
//! The metrics are published in two forms: Prometheus text (`exposition.rs`), and a [`Status`],
//! plain data that is serialized to JSON. [`admin`] serves both.
//!
//! A server without `Metrics` runs none of this.

#![forbid(unsafe_code)]

mod admin;
mod buckets;
mod by_cache;
mod class;
mod event;
mod event_count;
mod exposition;
mod meter;
mod node;
mod oidc;
mod overview;
mod probe;
mod process;
mod registry;
mod remote;
mod routed;
mod sampled;
mod sampler;
mod sketch;
mod status;
mod storage;
mod text;
mod transfers;
mod upstream;

pub use admin::{admin, exposition, json, only_by_own_names};
pub use class::Class;
pub use event::{Event, Observer, ServedCache, Unleased, Uploader};
pub use event_count::EventCount;
pub use node::{NodeStatus, OtherNode};
pub use oidc::OidcStatus;
pub use probe::{Monitored, SiteStatus};
pub use registry::{Metrics, MetricsConfig};
pub use remote::{BucketRequests, BucketStatus, DatabaseStatus, DiskCacheStatus, Transactions};
pub use routed::Routed;
pub use sampler::Sampler;
pub use status::{
    CacheStatus, Latency, LoadStatus, Moment, ProcessStatus, Rates, RecentError, ScrubStatus,
    ServedCacheStatus, ServerStatus, Status, StoreStatus, TopPath, Totals, TransferStatus, VERSION,
};
pub use storage::{
    CollectorStatus, StorageStatus, StorageTotals, StoredCacheStatus, UploadCount, UploadStatus,
};
pub use transfers::Transfers;
pub use upstream::UpstreamStatus;
