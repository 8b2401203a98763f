//! What happens, in figures.
//!
//! # Theory of operation
//!
//! [`Metrics`] is an observer in front of another one. What is counted of every answer is counted
//! in `meter.rs`, by the thread that answers. Once a second a [`Sampler`] looks at the sums, for
//! rates and percentiles, and at what was asked for, for the lists of what is asked for most
//! (`sketch.rs`). [`admin`] serves all of it, on a server of its own.
//!
//! Without `Metrics` nothing of this runs, and requests cost what they did.

mod admin;
mod buckets;
mod class;
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

pub use admin::admin;
pub(crate) use admin::version;
pub use class::kind_of;
pub use probe::{Figures, Probe};
pub use registry::{Metrics, MetricsConfig};
pub use sampler::Sampler;
pub use status::{
    CacheFigures, EventCount, Latency, LoadStatus, Moment, ProcessStatus, Rates, RecentError,
    ScrubStatus, ServerStatus, Status, StoreStatus, TopPath, Totals, TransferStatus, VERSION,
};
pub use transfers::Transfers;
