//! permessage-deflate: messages as DEFLATE blocks (RFC 7692, 7.2).
//!
//! A message is compressed, ended with an empty stored block, and sent without that block's last
//! four bytes `00 00 ff ff`. The receiver adds them again.
//!
//! A stream of zlib weighs some 40 KB for reading and 260 KB for writing, so no connection owns
//! one: they are lent for one message and come back. Where *context takeover* is negotiated, a
//! message may point back into earlier ones; then the last bytes of those, up to the size of the
//! window, are kept and shown to the borrowed stream as its dictionary. That costs memory only for
//! what was really said, and a copy of the window with each message.

#[cfg(not(feature = "compression"))]
mod absent;
#[cfg(feature = "compression")]
mod stream;

#[cfg(not(feature = "compression"))]
pub use absent::{Deflater, Inflater, deflate_alone};
#[cfg(feature = "compression")]
pub use stream::{Deflater, Inflater, deflate_alone};

/// The smallest window that can be kept to, as a power of two. RFC 7692 allows 8 too, but zlib's
/// raw DEFLATE does not: it would use 9.
pub const WINDOW_BITS_MIN: u8 = 9;
/// The largest window, as a power of two.
pub const WINDOW_BITS_MAX: u8 = 15;
