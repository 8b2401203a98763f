//! HTTP/1.1 as a state machine: bytes in, events and bytes out.
//!
//! `head` and `chunk` parse, `encode` writes, `conn` holds the states of a connection and their
//! transitions.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::string_slice,
        clippy::wildcard_enum_match_arm
    )
)]

pub mod chunk;
pub mod conn;
pub mod encode;
pub mod head;
mod refusal;

pub use refusal::Refusal;
