//! Narinfo: the metadata of one store path in a cache.
//!
//! # Encoding
//!
//! Lines of `Key: value`, each terminated by a line feed.
//!
//! | key | value | |
//! | --- | --- | --- |
//! | `StorePath` | full path | required |
//! | `URL` | of the NAR, relative to the cache | required |
//! | `Compression` | of the NAR; missing or empty means `bzip2` | |
//! | `FileHash`, `FileSize` | of the compressed file; no client checks them | |
//! | `NarHash` | SHA-256, any text form | required |
//! | `NarSize` | bytes, not zero | required |
//! | `References` | base names, separated by spaces | |
//! | `Deriver` | base name; `unknown-deriver` means none | |
//! | `System` | platform; written by Nix up to 2.8, read by none | |
//! | `Sig` | a signature; may be repeated | |
//! | `CA` | a content address | |
//!
//! # Quirks
//!
//! Clients do not parse line by line. From the current position they search for a colon, skip the
//! colon and *one* more byte whatever it is, and take everything up to the next line feed as the
//! value. [`NarInfo::parse`] does the same, with the same effects:
//!
//! * `References:` without a space swallows the next line; `References: ` with one is fine.
//! * A blank line or a comment becomes a part of the next key, which is then unknown and ignored.
//! * A missing line feed at the end is an error; a carriage return becomes part of the value.
//!
//! Where versions differ, the strictest rule applies, so that every client accepts whatever is
//! accepted here: Nix 2.34 and later reject a narinfo with a malformed `Sig`, 2.35 and later one
//! with an unknown `Compression`. The one exception: for dots at the start of a name, the lenient
//! rule of [`StorePath::from_base_name`] applies.
//!
//! # Source
//!
//! Nix 2.36, `src/libstore/nar-info.cc`; nix-serve, `nix-serve.psgi`, for [`write_for`].

mod parse;
mod write;

use crate::path_info::fingerprint;
use crate::{ContentAddress, Hash, NarHash, Signature, StoreDir, StorePath};

pub use parse::{NarInfoError, NarInfoErrorKind};
pub use write::{NarCoding, WriteError, write_for};

/// All fields of a narinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NarInfo {
    /// The store path that the narinfo describes.
    pub store_path: StorePath,
    /// URL of the NAR, relative to the cache.
    pub url: String,
    /// Compression of the NAR.
    pub compression: Compression,
    /// Hash of the compressed file; `None` if the field is missing.
    pub file_hash: Option<Hash>,
    /// Length of the compressed file, in bytes; `None` if the field is missing.
    pub file_size: Option<u64>,
    /// SHA-256 hash of the uncompressed NAR.
    pub nar_hash: NarHash,
    /// Length of the NAR, in bytes.
    pub nar_size: u64,
    /// The paths that this path refers to; sorted and unique after parsing.
    pub references: Vec<StorePath>,
    /// The derivation that built the path; `None` if it is unknown.
    pub deriver: Option<StorePath>,
    /// The platform for which the path was built; `None` if the field is missing. Only Nix up to
    /// 2.8 writes it.
    pub system: Option<String>,
    /// The signatures; sorted and unique after parsing.
    pub signatures: Vec<Signature>,
    /// The content address; `None` unless the path is content-addressed.
    pub content_address: Option<ContentAddress>,
}

impl NarInfo {
    /// Returns the text that signatures cover: see
    /// [`PathInfo::fingerprint`](crate::PathInfo::fingerprint).
    #[must_use]
    pub fn fingerprint(&self, dir: &StoreDir) -> String {
        fingerprint(
            dir,
            &self.store_path,
            &self.nar_hash,
            self.nar_size,
            &self.references,
        )
    }
}

/// The compression methods that Nix names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is the name of a well-known format")]
pub enum Compression {
    None,
    Brotli,
    Bzip2,
    Compress,
    Grzip,
    Gzip,
    Lrzip,
    Lz4,
    Lzip,
    Lzma,
    Lzop,
    Xz,
    Zstd,
}

impl Compression {
    // Nix 2.36, src/libutil/include/nix/util/compression-algo.hh.
    const NAMES: [(Self, &str); 13] = [
        (Self::None, "none"),
        (Self::Brotli, "br"),
        (Self::Bzip2, "bzip2"),
        (Self::Compress, "compress"),
        (Self::Grzip, "grzip"),
        (Self::Gzip, "gzip"),
        (Self::Lrzip, "lrzip"),
        (Self::Lz4, "lz4"),
        (Self::Lzip, "lzip"),
        (Self::Lzma, "lzma"),
        (Self::Lzop, "lzop"),
        (Self::Xz, "xz"),
        (Self::Zstd, "zstd"),
    ];

    /// Finds a compression by its name; `None` if Nix has none of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES
            .into_iter()
            .find(|&(_, known)| known == name)
            .map(|(compression, _)| compression)
    }

    /// Returns the name used in a narinfo.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES
            .into_iter()
            .find(|&(known, _)| known == self)
            .map_or("none", |(_, name)| name)
    }
}

#[cfg(test)]
mod tests;
