//! WebSocket (RFC 6455) with permessage-deflate (RFC 7692), server side: bytes in, events and bytes
//! out.
//!
//! `handshake` validates a client's opening handshake and `extension` negotiates extensions.
//! `frame` implements the wire format, `message` reassembles messages, `deflate` compresses them,
//! and `close` defines the close codes.
//!
//! | limit | where | reason |
//! |---|---|---|
//! | `len_max` of [`Assembler::step`](message::Assembler::step) | message, after decompression; checked at each frame header and while bytes are decompressed | memory; compression bombs |
//! | [`CONTROL_LEN_MAX`](frame::CONTROL_LEN_MAX) | 125 bytes | RFC 6455, 5.5 |
//! | [`LIST_LEN_MAX`](extension::LIST_LEN_MAX) | elements of a list in the handshake | processing time |

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
pub mod deflate;
pub mod extension;
mod failure;
pub mod frame;
pub mod handshake;
pub mod message;

pub use close::CloseCode;
pub use failure::Failure;
