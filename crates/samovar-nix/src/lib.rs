//! Parsers and writers of Nix's formats, for binary caches.
//!
//! # Two types to know
//!
//! * [`PathInfo`] holds the metadata of a store path; [`narinfo::write_for`] writes it as the
//!   document that clients request, and [`PathInfo::fingerprint`] as the text that is signed.
//! * [`nar::Encoder`] writes the framing of a NAR, one call per step of a walk through the files.
//!
//! # In scope
//!
//! Nix's base-32, hashes in every text form, store paths, content addresses, keys and signatures,
//! narinfo, NAR in both directions, the `.ls` listing of a NAR, patterns for names, and the seek
//! table of NARs in zstd frames.
//!
//! # Out of scope
//!
//! Files, sockets, clocks, threads, databases, HTTP, compression. Nothing here blocks or trusts its
//! input: every parser is safe for hostile input.

#![forbid(unsafe_code)]
// Tests may index, slice and add: a panic there fails the test, as intended.
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
mod content_path;
mod glob;
mod hash;
mod hash_part;
mod key;
pub mod nar;
mod nar_hash;
pub mod narinfo;
pub mod nixbase32;
mod path_info;
pub mod seek_table;
mod signature;
mod store_dir;
mod store_path;

pub use base64::Base64Error;
pub use content_address::{ContentAddress, ContentAddressError, Method};
pub use content_path::{is_path_of, path_of_nar};
pub use glob::Glob;
pub use hash::{Algorithm, Hash, HashError};
pub use hash_part::{HashPart, HashPartError};
pub use key::{KeyError, PublicKey, SecretKey};
pub use nar_hash::{NarHash, NarHashError};
pub use path_info::PathInfo;
pub use seek_table::SeekTable;
pub use signature::{Signature, SignatureError};
pub use store_dir::{StoreDir, StoreDirError};
pub use store_path::{NAME_LEN_MAX, StorePath, StorePathError};
