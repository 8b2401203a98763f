//! A server for kettles, which send a measurement and ask for a command every half minute. It is an
//! application of `samovar-http` that uses only the public interface, and it stores the
//! measurements durably.
//!
//! Path of a measurement: [`api`] receives the request, [`json`] parses it, [`ingest`] queues it,
//! and one writer thread commits all queued measurements to a [`store`] as one transaction. The
//! kettle gets its response only after that commit is on disk.

#![forbid(unsafe_code)]

pub mod api;
pub mod auth;
pub mod cgroup;
pub mod check;
pub mod command;
pub mod demo;
pub mod device;
pub mod exact;
pub mod habit;
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
