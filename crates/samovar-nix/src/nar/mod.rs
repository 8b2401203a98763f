//! NAR: the archive format that Nix uses to hash and transfer a tree of files.
//!
//! # Encoding
//!
//! Everything is encoded as strings: a 64-bit little-endian length, the bytes, and zeros up to the
//! next multiple of eight.
//!
//! # Grammar
//!
//! ```text
//! nar  = str("nix-archive-1") node
//! node = str("(") body str(")")
//! body = str("type") str("regular") [ str("executable") str("") ] str("contents") str(data)
//!      | str("type") str("symlink") str("target") str(target)
//!      | str("type") str("directory")
//!        *( str("entry") str("(") str("name") str(name) str("node") node str(")") )
//! ```
//!
//! # Limits
//!
//! * A name has 1 to 255 bytes ([`NAME_LEN_MAX`]), is not `.` or `..` and holds neither `/` nor
//!   NUL. Names of a directory ascend strictly, compared as unsigned bytes, the shorter first.
//! * A target has 1 to 4095 bytes ([`TARGET_LEN_MAX`]) and no NUL: longer ones exist on no Linux.
//! * A reader refuses paths of 64 components and more ([`DEPTH_MAX`]), as every recent Nix does.
//!   A writer has no such limit: older stores hold deeper trees, and older clients accept them.
//! * No contents end beyond 2^62 bytes ([`CONTENTS_END_MAX`]): so no offset overflows, and the
//!   length fits the signed number in which a store's database holds it.
//!
//! # Quirks
//!
//! * `executable` is present exactly if the *owner* may execute the file. A NAR holds no other mode
//!   bits, and no times, owners or hard links.
//! * Names and targets are bytes, not text. Line feeds and invalid UTF-8 occur.
//! * Clients ignore bytes after the last `)`, so [`Decoder`] leaves them to the caller.
//! * Nix accepts a target with a NUL inside and then creates a shorter link; here it is rejected,
//!   as it cannot come from a file system.
//!
//! # Source
//!
//! Nix 2.36, `src/libutil/archive.cc`; the limits on depth, names and targets are in 2.35.

mod decode_error;
mod decoder;
mod encoder;
mod event;
pub mod listing;
mod name;
mod token;

pub use decode_error::{DecodeError, DecodeErrorKind};
pub use decoder::Decoder;
pub use encoder::{Discard, EncodeError, Encoder, Sink};
pub use event::Event;
pub use listing::Listing;
pub use name::{NameError, TargetError};

/// Longest name of a directory entry, in bytes.
pub const NAME_LEN_MAX: usize = 255;

/// Longest target of a symbolic link, in bytes.
pub const TARGET_LEN_MAX: usize = 4095;

/// Maximum depth: a [`Decoder`] rejects paths of this many components.
pub const DEPTH_MAX: usize = 64;

/// The greatest offset at which the contents of a file may end, in bytes.
pub const CONTENTS_END_MAX: u64 = 1 << 62;
