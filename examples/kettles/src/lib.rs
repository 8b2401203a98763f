//! Kettles that send a measurement and ask for a command every half minute, and the server that
//! keeps what they say: an application of `samovar-http`, by its public interface alone.

#![forbid(unsafe_code)]

pub mod device;
pub mod exact;
pub mod seed;
pub mod stats;
pub mod time;
