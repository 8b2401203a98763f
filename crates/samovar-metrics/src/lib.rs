//! Events, metrics and status of a binary cache server.
//!
//! # Theory of operation
//!
//! The cache reports an [`Event`] to an [`Observer`]; the engine reports each
//! [`Exchange`](samovar_http::Exchange) to the same. [`Metrics`] is an observer that counts and
//! passes everything on to another one, the server's log. Requests are counted by the thread that
//! answers (`meter.rs`), in shards. Once a second a [`Sampler`] reads the sums for rates and
//! percentiles, and the requested paths for the lists of top paths (`sketch.rs`). What only the
//! server knows it asks of the [`Monitored`] application.
//!
//! There are two renderings: Prometheus text (`exposition.rs`) and a [`Status`], plain data that
//! serializes to JSON. [`admin`] serves both.
//!
//! Without `Metrics` none of this runs.

#![forbid(unsafe_code)]

mod admin;
mod buckets;
mod class;
mod event;
mod exposition;
mod meter;
mod overview;
mod probe;
mod process;
mod registry;
mod sampled;
mod sampler;
mod sketch;
mod status;
mod text;
mod transfers;

pub use admin::{admin, json, only_by_own_names};
pub use class::{Class, Classify, RawHashPart};
pub use event::{Event, Observer, Unleased};
pub use probe::{Monitored, SiteStatus};
pub use registry::{Metrics, MetricsConfig};
pub use sampler::Sampler;
pub use status::{
    CacheStatus, EventCount, Latency, LoadStatus, Moment, ProcessStatus, Rates, RecentError,
    ScrubStatus, ServerStatus, Status, StoreStatus, TopPath, Totals, TransferStatus, VERSION,
};
pub use transfers::Transfers;
