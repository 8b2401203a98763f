//! permessage-deflate: messages as DEFLATE blocks (RFC 7692, 7.2).
//!
//! The sender compresses a message, ends it with an empty stored block, and omits the last four
//! bytes `00 00 ff ff` of that block. The receiver appends these bytes again.
//!
//! Each message is compressed independently of others, in both directions: there is no *context
//! takeover*. A zlib stream takes about 40 KB for decompression and 260 KB for compression, so
//! connections borrow a stream for each message from a pool, and an idle connection needs none.

#[cfg(not(feature = "compression"))]
mod absent;
#[cfg(feature = "compression")]
mod stream;

#[cfg(not(feature = "compression"))]
pub use absent::{Inflater, deflate};
#[cfg(feature = "compression")]
pub use stream::{Inflater, deflate};

/// Minimum window size, as a power of two. RFC 7692 also allows 8, but raw DEFLATE of zlib would
/// use 9 instead.
pub const WINDOW_BITS_MIN: u8 = 9;
/// Maximum window size, as a power of two.
pub const WINDOW_BITS_MAX: u8 = 15;
