//! WebSocket (RFC 6455), server side, without extensions: bytes in, events and bytes out.
//!
//! `handshake` validates a client's opening handshake. `frame` implements the wire format,
//! `message` reassembles messages, and `close` defines the close codes.
//!
//! | limit | where | reason |
//! |---|---|---|
//! | `len_max` of [`Assembler::step`](message::Assembler::step) | message; checked at each frame header | memory |
//! | [`CONTROL_LEN_MAX`](frame::CONTROL_LEN_MAX) | 125 bytes | RFC 6455, 5.5 |
//! | [`LIST_LEN_MAX`](handshake::LIST_LEN_MAX) | subprotocols in the handshake | processing time |

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::string_slice,
        clippy::wildcard_enum_match_arm
    )
)]

pub mod close;
mod failure;
pub mod frame;
pub mod handshake;
pub mod message;

pub use close::CloseCode;
pub use failure::Failure;
