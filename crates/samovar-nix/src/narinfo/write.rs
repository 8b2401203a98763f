//! Writes narinfos as nix-serve does and as Nix does.

use super::NarInfo;
use crate::path_info::in_order;
use crate::{PathInfo, Signature, StoreDir, StorePath};

/// Reason for which a [`NarInfo`] cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The URL is empty, or holds white space or a control character.
    #[error("URL is not allowed in a narinfo")]
    Url,
    /// The system is empty, or holds a control character.
    #[error("system is not allowed in a narinfo")]
    System,
    /// The NAR size is zero, which clients reject.
    #[error("NAR size is zero")]
    NarSize,
}

/// The form in which a server sends the NAR of a store path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum NarCoding {
    /// Uncompressed.
    #[default]
    Identity,
    /// Compressed with zstd.
    Zstd,
}

/// Appends the narinfo of a path whose NAR is sent in the form `coding`. For
/// [`NarCoding::Identity`], the text is the same as nix-serve's, byte for byte.
///
/// The URL is `nar/<hash part>-<NAR hash>.nar`, with the suffix `.zst` for zstd. The length and
/// hash of the compressed file are unknown, so `FileHash` and `FileSize` are absent. The signatures
/// are written in the given order: nix-serve sends its own signatures *instead of* the stored ones,
/// or, without a key, the stored ones in sorted order. The NAR size must be known (not zero).
///
/// # Source
///
/// nix-serve, `nix-serve.psgi`; nix-serve-ng 1.1.0, `src/Main.hs`.
pub fn write_for(
    info: &PathInfo,
    dir: &StoreDir,
    coding: NarCoding,
    signatures: &[Signature],
    out: &mut Vec<u8>,
) {
    let nar_hash = info.nar_hash.nixbase32();
    push_store_path(dir, &info.path, out);
    out.extend_from_slice(b"URL: nar/");
    out.extend_from_slice(&info.path.hash_part().to_text());
    out.push(b'-');
    out.extend_from_slice(&nar_hash);
    out.extend_from_slice(match coding {
        NarCoding::Identity => b".nar\nCompression: none\nNarHash: sha256:".as_slice(),
        NarCoding::Zstd => b".nar.zst\nCompression: zstd\nNarHash: sha256:",
    });
    out.extend_from_slice(&nar_hash);
    push_number(b"\nNarSize: ", info.nar_size, out);
    // Like nix-serve, omit the line if there are no references. An empty line would need the
    // space: clients look for the line feed two bytes after the colon, so "References:\n" would
    // swallow the next field.
    if !info.references.is_empty() {
        push_references(&info.references, out);
    }
    push_deriver(info.deriver.as_ref(), out);
    push_signatures(signatures, out);
}

impl NarInfo {
    /// Appends the document as Nix writes it on upload, where `References` is always present.
    ///
    /// # Errors
    ///
    /// Any [`WriteError`]. Nothing is appended then.
    ///
    /// # Source
    ///
    /// Nix 2.36, `src/libstore/nar-info.cc`; `System` is at the same place as in Nix 2.8.0.
    pub fn write(&self, dir: &StoreDir, out: &mut Vec<u8>) -> Result<(), WriteError> {
        self.check()?;
        push_store_path(dir, &self.store_path, out);
        push_field(b"URL: ", self.url.as_bytes(), out);
        push_field(b"Compression: ", self.compression.name().as_bytes(), out);
        if let Some(file_hash) = &self.file_hash {
            push_field(b"FileHash: ", file_hash.to_string().as_bytes(), out);
        }
        if let Some(file_size) = self.file_size {
            push_number(b"FileSize: ", file_size, out);
        }
        out.extend_from_slice(b"NarHash: sha256:");
        out.extend_from_slice(&self.nar_hash.nixbase32());
        push_number(b"\nNarSize: ", self.nar_size, out);
        push_references(&self.references, out);
        push_deriver(self.deriver.as_ref(), out);
        if let Some(system) = &self.system {
            push_field(b"System: ", system.as_bytes(), out);
        }
        push_signatures(&self.signatures, out);
        if let Some(address) = &self.content_address {
            push_field(b"CA: ", address.to_string().as_bytes(), out);
        }
        Ok(())
    }

    /// Checks the text fields: a line feed in a value would start another field.
    fn check(&self) -> Result<(), WriteError> {
        if self.url.is_empty()
            || self
                .url
                .contains(|c: char| c.is_whitespace() || c.is_control())
        {
            return Err(WriteError::Url);
        }
        let system = self.system.as_deref().unwrap_or("any");
        if system.is_empty() || system.contains(char::is_control) {
            return Err(WriteError::System);
        }
        if self.nar_size == 0 {
            return Err(WriteError::NarSize);
        }
        Ok(())
    }
}

fn push_field(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(key);
    out.extend_from_slice(value);
    out.push(b'\n');
}

fn push_store_path(dir: &StoreDir, path: &StorePath, out: &mut Vec<u8>) {
    out.extend_from_slice(b"StorePath: ");
    out.extend_from_slice(dir.as_str().as_bytes());
    push_field(b"/", path.base_name().as_bytes(), out);
}

/// Writes the base names in order, separated by single spaces.
fn push_references(references: &[StorePath], out: &mut Vec<u8>) {
    out.extend_from_slice(b"References:");
    for reference in in_order(references).iter() {
        out.push(b' ');
        out.extend_from_slice(reference.base_name().as_bytes());
    }
    if references.is_empty() {
        out.push(b' ');
    }
    out.push(b'\n');
}

fn push_deriver(deriver: Option<&StorePath>, out: &mut Vec<u8>) {
    if let Some(deriver) = deriver {
        push_field(b"Deriver: ", deriver.base_name().as_bytes(), out);
    }
}

fn push_signatures(signatures: &[Signature], out: &mut Vec<u8>) {
    for signature in signatures {
        out.extend_from_slice(b"Sig: ");
        out.extend_from_slice(signature.key_name().as_bytes());
        push_field(b":", &signature.base64(), out);
    }
}

/// Writes decimal digits without `fmt`: this is the hot path of a cache.
fn push_number(key: &[u8], number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(key);
    // u64::MAX has 20 digits.
    let mut digits = [b'0'; 20];
    let mut rest = number;
    let mut count = 0_usize;
    for digit in digits.iter_mut().rev() {
        *digit = b'0'.wrapping_add((rest % 10) as u8);
        rest /= 10;
        count = count.wrapping_add(1);
        if rest == 0 {
            break;
        }
    }
    out.extend(digits.iter().skip(digits.len().wrapping_sub(count)));
    out.push(b'\n');
}
