//! Decompresses the files of NARs within limits, and verifies them in one pass. [`decoded_nar`] is
//! for clients, all else for the receiver of uploads.
//!
//! [`verify`] copies the body of an upload from a [`Read`] to a [`Write`] while it decompresses it,
//! checks the NAR inside and computes both hashes. Memory use does not depend on the length of the
//! body: at most 25 MiB, plus the window of the decompressor within [`Limits`], which is reserved
//! through [`Memory`] before it is allocated.
//!
//! An upload is accepted only if
//!
//! * the compressed stream is complete, and nothing follows it,
//! * the NAR in it is complete and well-formed, and nothing follows it,
//! * the SHA-256 of the body is the one in the [`FileName`], if there is one,
//! * no limit is exceeded, and the body is not much longer than the NAR.
//!
//! Clients decompress with other libraries, and a file that only this server can decompress would
//! be useless to them. Where a library here is known to be more lenient, `decompress` adds checks.

#![forbid(unsafe_code)]

mod content;
mod decompress;
mod encoded;
mod error;
mod frames;
mod hasher;
mod input;
mod listing;
mod memory;
#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};

use content::Content;
use decompress::Decompressor;
pub use decompress::{fixed_window_len, zstd_window_len};
pub use encoded::{BodyError, Encoding, EncodingError, decoded, decoded_nar, decompressed};
pub use error::{Refusal, VerifyError};
pub use frames::frames_of;
use input::Input;
pub use memory::{Memory, MemoryError, Unlimited};
use samovar_nix::NarHash;
use samovar_nix::narinfo::Compression;
use samovar_protocol::names::FileName;

/// First bytes of the formats that Nix uploads with the plain suffix `.nar`. No NAR starts with
/// them.
const MAGICS: [(&[u8], Compression); 6] = [
    (b"\x1f\x8b", Compression::Gzip),
    (b"\x1f\x9d", Compression::Compress),
    (b"\x5d\0\0", Compression::Lzma),
    (b"\x89LZO", Compression::Lzop),
    (b"GRZ", Compression::Grzip),
    (b"LRZI", Compression::Lrzip),
];

/// Length of the longest entry of [`MAGICS`], in bytes.
const MAGIC_LEN: usize = 4;

/// Limits of an upload. Brotli needs no limit, because its format allows windows of at most 16 MiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Maximum length of the NAR, in bytes; 64 GiB by default.
    pub nar_size_max: u64,
    /// Maximum ratio of the NAR's length to the number of bytes received so far, not counting
    /// `ratio_free_len`; 1000 by default.
    pub ratio_max: u64,
    /// Number of bytes by which the NAR may exceed `ratio_max`; 1 GiB by default, which takes about
    /// a second.
    pub ratio_free_len: u64,
    /// Maximum window of a zstd frame, as a power of two; 27 (128 MiB) by default, the maximum that
    /// Nix decodes.
    pub zstd_window_log_max: u32,
    /// Maximum dictionary of xz and lzip, in bytes; 64 MiB by default, as for `xz -9`.
    pub lzma_dictionary_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            nar_size_max: 64 << 30,
            ratio_max: 1000,
            ratio_free_len: 1 << 30,
            zstd_window_log_max: 27,
            lzma_dictionary_max: 64 << 20,
        }
    }
}

/// The hashes, lengths and indexes of an accepted upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// SHA-256 of the body.
    pub file_hash: [u8; 32],
    /// Length of the body, in bytes.
    pub file_size: u64,
    /// Actual compression of the body. It may differ from the stated one: Nix uploads gzip with the
    /// plain suffix `.nar`, where the server detects it.
    pub compression: Compression,
    /// Hash of the NAR.
    pub nar_hash: NarHash,
    /// Length of the NAR, in bytes.
    pub nar_size: u64,
    /// The listing of the NAR (see [`samovar_nix::nar::listing`]), compressed by zstd. `None` for a
    /// NAR of more than 2,000,000 entries, or if the compressed listing exceeds 8 MiB.
    pub listing: Option<Vec<u8>>,
    /// Index of zstd frames: one byte of version (1), then for each frame its compressed length and
    /// its content length as LEB128. A skippable frame has content length 0. `None` for other
    /// compressions, for a single frame, or if the index exceeds 1 MiB.
    pub frames: Option<Vec<u8>>,
}

/// Does the same as [`verify_unnamed`], and also compares the SHA-256 of the body with the one in
/// `name`.
///
/// # Errors
///
/// Any [`VerifyError`].
pub fn verify(
    source: &mut dyn Read,
    name: &FileName,
    out: &mut dyn Write,
    limits: &Limits,
    memory: &mut dyn Memory,
) -> Result<Verified, VerifyError> {
    let verified = verify_unnamed(source, name.compression(), out, limits, memory)?;
    if verified.file_hash != *name.file_hash() {
        return Err(VerifyError::Refused(Refusal::FileHash {
            named: *name.file_hash(),
            found: verified.file_hash,
        }));
    }
    Ok(verified)
}

/// Copies the body of an upload from `source` to `out` and verifies that it is a NAR in the stated
/// compression.
///
/// Reads `source` to its end. Each piece is written to `out` as it is received; `out` is neither
/// flushed nor synced. After an error, the contents of `out` are useless.
///
/// # Errors
///
/// * [`VerifyError::Source`] if reading from `source` fails.
/// * [`VerifyError::Sink`] if writing to `out` fails.
/// * [`VerifyError::Memory`] if `memory` grants no memory for the window.
/// * [`VerifyError::Refused`] if the body breaks a rule; the rest of it is not read.
pub fn verify_unnamed(
    source: &mut dyn Read,
    stated: Compression,
    out: &mut dyn Write,
    limits: &Limits,
    memory: &mut dyn Memory,
) -> Result<Verified, VerifyError> {
    let mut input = Input::new(source, out, memory);
    let detected = detect(&mut input, stated).and_then(|compression| {
        input.reserve(decompress::fixed_window_len(compression, limits))?;
        Ok(compression)
    });
    let compression = match detected {
        Ok(compression) => compression,
        Err(error) => return Err(input.take_failure().unwrap_or(VerifyError::Source(error))),
    };
    if compression == Compression::None {
        // An uncompressed file is the NAR itself, which is hashed below: do not hash it twice.
        input.without_hash();
    }
    let mut decompressor = Decompressor::new(input, compression, limits)?;
    let mut content = Content::new(limits);
    loop {
        let piece = match decompressor.next() {
            Ok([]) => break,
            Ok(piece) => piece,
            Err(error) => {
                let failure = decompressor.input().take_failure();
                return Err(failure.unwrap_or_else(|| decompressor.refusal(error).into()));
            }
        };
        content.push(piece)?;
        let input = decompressor.input();
        content.check_ratio(input.received())?;
        input.set_content_len(content.len())?;
    }
    if let Some(failure) = decompressor.input().take_failure() {
        return Err(failure);
    }
    // Flushing the file takes no processor.
    decompressor.input().rest();
    let (input, frames) = decompressor.into_parts();
    let file_size = input.received();
    let (nar_hash, nar_size, listing) = content.finish()?;
    Ok(Verified {
        file_hash: input.into_digest().unwrap_or(*nar_hash.as_bytes()),
        file_size,
        compression,
        nar_hash,
        nar_size,
        listing,
        frames,
    })
}

/// Determines the actual compression of the input from the stated one and from its first bytes.
fn detect(input: &mut Input<'_>, stated: Compression) -> io::Result<Compression> {
    if stated != Compression::None {
        return Ok(stated);
    }
    let start = input.peek(MAGIC_LEN)?;
    let found = MAGICS
        .into_iter()
        .find(|(magic, _)| start.starts_with(magic));
    Ok(found.map_or(Compression::None, |(_, compression)| compression))
}
