//! What happens, in figures.

mod status;

pub use status::{
    CacheFigures, EventCount, Latency, LoadStatus, Moment, ProcessStatus, Rates, RecentError,
    ServerStatus, Status, StoreStatus, TopPath, Totals, TransferStatus, VERSION,
};
