//! Packs: objects that contain the files of several small NARs.
//!
//! A pack begins with [`MAGIC`] and a random number, so that no two packs have the same key, which
//! is made of the hash of the pack: the key of a removed pack is not used again. Each file follows
//! a line with its key and its length. The database has the offset of each file.

use std::fs;
use std::io::{self, Write as _};
use std::sync::Arc;

use samovar_nix::NarHash;
use samovar_nix::nixbase32;
use sha2::{Digest as _, Sha256};

use super::Placed;

/// Length below which a file shares an object with others, in bytes.
pub(super) const SMALL_LEN: u64 = 256 << 10;

/// Maximum total length of the files in a pack, in bytes.
const LEN_MAX: u64 = 8 << 20;

/// First line of a pack, without the random number.
pub(super) const MAGIC: &str = "samovar pack 1 ";

/// Prefix of the keys of packs.
const PREFIX: &str = "nar/pack-";

/// The place of a file in a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InPack {
    /// Key of the pack.
    pub key: Arc<str>,
    /// Offset of the first byte of the file, in bytes.
    pub start: u64,
}

/// A new pack.
#[derive(Debug)]
pub(super) struct Pack {
    pub(super) key: String,
    pub(super) bytes: Vec<u8>,
    pub(super) sha256: [u8; 32],
    /// Offset of each file.
    pub(super) starts: Vec<u64>,
}

/// Divides files into groups of which each becomes a pack.
pub(super) fn groups(files: Vec<&Placed>) -> Vec<Vec<&Placed>> {
    let mut groups: Vec<Vec<&Placed>> = Vec::new();
    let mut len = 0;
    for file in files {
        len += file.len;
        match groups.last_mut() {
            Some(group) if len <= LEN_MAX => group.push(file),
            _ => {
                len = file.len;
                groups.push(vec![file]);
            }
        }
    }
    groups
}

/// Reads files that have no names yet, and makes a pack of them.
pub(super) fn build(files: &[&Placed]) -> io::Result<Pack> {
    let mut salt = [0; 16];
    io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut salt)?;
    let mut bytes = format!("{MAGIC}{}\n", nixbase32::encode(&salt)).into_bytes();
    let mut starts = Vec::with_capacity(files.len());
    for file in files {
        let path = file.pending.as_deref().ok_or(io::ErrorKind::NotFound)?;
        writeln!(bytes, "{} {}", file.key, file.len)?;
        starts.push(bytes.len() as u64);
        let content = fs::read(path)?;
        if content.len() as u64 != file.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend(content);
    }
    let sha256: [u8; 32] = Sha256::digest(&bytes).into();
    Ok(Pack {
        key: format!("{PREFIX}{}", nixbase32::encode(&sha256)),
        bytes,
        sha256,
        starts,
    })
}

/// Returns the SHA-256 of the pack with this key. `None`: it is not the key of a pack.
pub(super) fn sha256_of(key: &str) -> Option<[u8; 32]> {
    let hash = NarHash::parse_nixbase32(key.strip_prefix(PREFIX)?.as_bytes()).ok()?;
    Some(*hash.as_bytes())
}
