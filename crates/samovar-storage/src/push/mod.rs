//! Bulk uploads: the push protocol, version 1 (`docs/push-protocol.md`).

pub mod wire;
