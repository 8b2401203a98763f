//! The formats of Nix, as a binary cache needs them: bytes in, values out, and back.
//!
//! # Two types to know
//!
//! * [`PathInfo`] is what a store knows of one path; [`narinfo::write_for`] turns it into the
//!   document a client asks for, and [`PathInfo::fingerprint`] into the text that is signed.
//! * [`nar::Encoder`] frames the files of a tree as a NAR, one call for each step of a walk.
//!
//! # In scope
//!
//! Nix's base-32, hashes in every text form, store paths, content addresses, keys and signatures,
//! narinfo, NAR in both directions, and the `.ls` listing of a NAR.
//!
//! # Out of scope
//!
//! Files, sockets, clocks, threads, databases, HTTP, compression. Nothing here blocks, and nothing
//! here trusts its input: every parser may be handed an attacker's bytes.

#![forbid(unsafe_code)]
// Tests may index, slice and add: a panic there is a failed test, which is what is wanted.
#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::string_slice,
        clippy::wildcard_enum_match_arm
    )
)]

mod base64;
mod content_address;
mod hash;
mod hash_part;
mod key;
pub mod nar;
mod nar_hash;
pub mod narinfo;
pub mod nixbase32;
mod path_info;
mod signature;
mod store_dir;
mod store_path;

pub use base64::Base64Error;
pub use content_address::{ContentAddress, ContentAddressError, Method};
pub use hash::{Algorithm, Hash, HashError};
pub use hash_part::{HashPart, HashPartError};
pub use key::{KeyError, PublicKey, SecretKey};
pub use nar_hash::{NarHash, NarHashError};
pub use path_info::PathInfo;
pub use signature::{Signature, SignatureError};
pub use store_dir::{StoreDir, StoreDirError};
pub use store_path::{NAME_LEN_MAX, StorePath, StorePathError};
