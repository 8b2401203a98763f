//! Who a client is.

mod claimant;

pub use claimant::Claimant;
