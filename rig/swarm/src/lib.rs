//! An open-loop load generator: requests leave when they are due, whether or not earlier ones were
//! answered, and a latency is counted from the moment at which the request was due. A server that
//! stalls for a second is seen to have stalled for all who came in that second.
//!
//! [`run`] takes a [`Plan`] (where to, how long, how many connections) and one [`Fleet`] a thread
//! (who asks what, and when). [`Kettles`] and [`Clients`] are fleets. What was seen comes out as a
//! [`Tally`], each second and in sum.
//!
//! What it says of itself matters as much: [`Tally::late`] is how long after they were due
//! requests were written. If that is not small, the generator was starved, or all connections were
//! busy.

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
mod time;

pub use cache::{Catalog, Clients, Turn};
pub use fleet::{Answer, Ask, Fleet, Verdict};
pub use kettles::Kettles;
pub use plan::{Plan, connections_both, connections_max};
pub use talk::talk;
pub use tally::{Failures, Operation, Tally};
pub use thread::run;
pub use time::date;
