//! The store a server asks.
