//! Open-loop load generator: requests are sent when they are due, whether or not earlier ones were
//! answered, and latency counts from the due time. So a stall of one second is visible in all
//! requests that were due during that second.
//!
//! [`run`] takes a [`Plan`] (address, duration, connections) and a [`Fleet`], which schedules
//! requests; [`Kettles`] and [`Clients`] are fleets. Results are a [`Tally`], for each
//! second and in total.
//!
//! [`Tally::late`] shows whether the results are valid: it is the time from when requests were due
//! until they were written. If it is not small, the generator was short of CPU time, or all
//! connections were busy.

mod cache;
mod connection;
mod fleet;
mod kettles;
mod plan;
mod response;
mod sockets;
mod talk;
mod tally;
mod thread;

pub use cache::{Catalog, Clients, TURN, Turn};
pub use fleet::{Answer, Ask, Fleet, Verdict};
pub use kettles::Kettles;
pub use plan::{Plan, connections_both, connections_max};
pub use talk::talk;
pub use tally::{Failures, Operation, Tally};
pub use thread::run;
