//! Who a client is.

mod claimant;
mod peer;

pub use claimant::Claimant;
pub use peer::{Peer, PeerName, UnixPeer};
