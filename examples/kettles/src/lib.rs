//! Kettles that send a measurement and ask for a command every half minute, and the server that
//! keeps what they say: an application of `samovar-http`, by its public interface alone.
//!
//! The way of a measurement: [`api`] takes the request, [`json`] reads it, [`ingest`] queues it,
//! and one thread gives whatever has gathered to a [`store`] as one transaction. The kettle is
//! answered when that is on disk, and not before.

#![forbid(unsafe_code)]

pub mod api;
pub mod auth;
pub mod cgroup;
pub mod check;
pub mod command;
pub mod demo;
pub mod device;
pub mod exact;
pub mod histogram;
pub mod ingest;
pub mod json;
pub mod live;
pub mod log;
pub mod measure;
pub mod metrics;
pub mod process;
pub mod processes;
pub mod replay;
pub mod seed;
pub mod seeding;
pub mod serve;
pub mod socket;
pub mod stats;
pub mod store;
pub mod time;
