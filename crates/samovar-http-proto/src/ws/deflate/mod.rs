//! permessage-deflate: messages as DEFLATE blocks (RFC 7692, 7.2).
//!
//! A message is compressed, ended with an empty stored block, and sent without the last four bytes
//! `00 00 ff ff` of that block. The receiver appends them again.
//!
//! A zlib stream takes about 40 KB for decompression and 260 KB for compression, so connections
//! borrow a stream for each message from a pool. With *context takeover* a message may refer to
//! earlier ones: the last bytes of those, up to the window size, are stored and set as the
//! dictionary of the borrowed stream. That takes memory only for bytes actually sent, and one copy
//! of the window per message.

#[cfg(not(feature = "compression"))]
mod absent;
#[cfg(feature = "compression")]
mod stream;

#[cfg(not(feature = "compression"))]
pub use absent::{Deflater, Inflater, deflate_alone};
#[cfg(feature = "compression")]
pub use stream::{Deflater, Inflater, deflate_alone};

/// Minimum window size, as a power of two. RFC 7692 also allows 8, but raw DEFLATE of zlib would
/// use 9 instead.
pub const WINDOW_BITS_MIN: u8 = 9;
/// Maximum window size, as a power of two.
pub const WINDOW_BITS_MAX: u8 = 15;
