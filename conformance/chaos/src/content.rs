//! File trees, their NARs and hashes. Implemented independently of the server, so that the server's
//! code does not verify itself.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use testkit::random::SplitMix64;

/// A file, a directory or a symlink.
#[derive(Debug, Clone)]
pub(crate) enum Node {
    File { is_executable: bool, bytes: Vec<u8> },
    Directory(BTreeMap<String, Self>),
    Symlink(String),
}

/// One registered content of a store path.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) node: Node,
    pub(crate) nar: Vec<u8>,
    /// In Nix's base-32, without the algorithm.
    pub(crate) nar_hash: String,
    pub(crate) nar_hash_hex: String,
    /// Expected `.ls` listing.
    pub(crate) listing: Value,
    /// Store paths, sorted.
    pub(crate) references: Vec<String>,
}

/// Kinds of content, one for each way in which the server sends a NAR.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    /// Sent from memory by the I/O thread.
    Tiny,
    /// Sent from memory by a worker.
    Small,
    /// Sent by `sendfile`.
    Large,
    /// Many files; stored as one file in the NAR cache.
    Tree,
    /// Edge cases: files of all lengths, symlinks, an empty directory, names that need escaping.
    Mixed,
}

impl Version {
    pub(crate) fn new(node: Node, mut references: Vec<String>) -> Arc<Self> {
        references.sort();
        let mut nar = Vec::new();
        text(&mut nar, b"nix-archive-1");
        let root = encode(&node, &mut nar);
        let digest = Sha256::digest(&nar);
        Arc::new(Self {
            node,
            nar_hash: base32(&digest),
            nar_hash_hex: hex(&digest),
            listing: json!({"version": 1, "root": root}),
            nar,
            references,
        })
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Node {
    pub(crate) fn random(random: &mut SplitMix64, shape: Shape) -> Self {
        let mut file = |len: u64| Self::File {
            is_executable: random.percent(20),
            bytes: random.bytes(len as usize),
        };
        match shape {
            Shape::Tiny => file(0).or(file(1000)),
            Shape::Small => file(40_000),
            Shape::Large => file(3_000_000),
            Shape::Tree => Self::Directory(
                (0..90)
                    .map(|number| (format!("file-{number}"), file(4000 + number * 31)))
                    .collect(),
            ),
            Shape::Mixed => {
                let mut inner = BTreeMap::new();
                inner.insert("empty".to_owned(), Self::Directory(BTreeMap::new()));
                inner.insert("nothing".to_owned(), file(0));
                inner.insert("link".to_owned(), Self::Symlink("../elsewhere".to_owned()));
                inner.insert("long".to_owned(), file(300_000));
                let mut outer = BTreeMap::new();
                outer.insert("a b \"c\"".to_owned(), file(7));
                outer.insert("inner".to_owned(), Self::Directory(inner));
                outer.insert("é".to_owned(), file(70_001));
                Self::Directory(outer)
            }
        }
    }

    /// Returns `other` in about three of four cases. The first byte of the content decides, so that
    /// no random number is drawn.
    fn or(self, other: Self) -> Self {
        match &other {
            Self::File { bytes, .. } if bytes.first().is_some_and(|byte| byte % 4 > 0) => other,
            _ => self,
        }
    }

    /// Returns the same tree with other bytes in files of the same lengths.
    pub(crate) fn twin(&self, random: &mut SplitMix64) -> Self {
        match self {
            Self::File {
                is_executable,
                bytes,
            } => Self::File {
                is_executable: *is_executable,
                bytes: random.bytes(bytes.len()),
            },
            Self::Directory(entries) => Self::Directory(
                entries
                    .iter()
                    .map(|(name, node)| (name.clone(), node.twin(random)))
                    .collect(),
            ),
            Self::Symlink(target) => Self::Symlink(target.clone()),
        }
    }

    /// Writes the node to `path`, which must not exist.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        match self {
            Self::File {
                is_executable,
                bytes,
            } => {
                fs::write(path, bytes)?;
                let mode = if *is_executable { 0o555 } else { 0o444 };
                fs::set_permissions(path, fs::Permissions::from_mode(mode))
            }
            Self::Directory(entries) => {
                fs::create_dir(path)?;
                for (name, node) in entries {
                    node.write(&path.join(name))?;
                }
                Ok(())
            }
            Self::Symlink(target) => std::os::unix::fs::symlink(target, path),
        }
    }
}

/// Computes the store path that `nix-store --add` assigns.
pub(crate) fn added_path(name: &str, nar_hash_hex: &str) -> String {
    let text = format!("source:sha256:{nar_hash_hex}:/nix/store:{name}");
    let mut folded = [0; 20];
    for (index, byte) in Sha256::digest(text.as_bytes()).iter().enumerate() {
        folded[index % 20] ^= byte;
    }
    format!("/nix/store/{}-{name}", base32(&folded))
}

/// Encodes bytes in Nix's base-32 according to its definition: five-bit digits, the last one first.
pub(crate) fn base32(bytes: &[u8]) -> String {
    const LETTERS: &[u8] = b"0123456789abcdfghijklmnpqrsvwxyz";
    let count = (bytes.len() * 8).div_ceil(5);
    let letter = |index: usize| {
        let bit = index * 5;
        let (byte, shift) = (bit / 8, bit % 8);
        let low = u16::from(bytes[byte]);
        let high = bytes.get(byte + 1).copied().map_or(0, u16::from);
        let digit = ((low | high << 8) >> shift) & 31;
        char::from(LETTERS[usize::from(digit)])
    };
    (0..count).rev().map(letter).collect()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(nar: &mut Vec<u8>, bytes: &[u8]) {
    nar.extend((bytes.len() as u64).to_le_bytes());
    nar.extend(bytes);
    nar.resize(nar.len().next_multiple_of(8), 0);
}

/// Appends a node's NAR encoding and returns its entry in the listing.
fn encode(node: &Node, nar: &mut Vec<u8>) -> Value {
    text(nar, b"(");
    text(nar, b"type");
    let listed = match node {
        Node::File {
            is_executable,
            bytes,
        } => {
            text(nar, b"regular");
            if *is_executable {
                text(nar, b"executable");
                text(nar, b"");
            }
            text(nar, b"contents");
            let offset = nar.len() + 8;
            text(nar, bytes);
            let mut listed = json!({"type": "regular", "size": bytes.len(), "narOffset": offset});
            if *is_executable {
                listed["executable"] = json!(true);
            }
            listed
        }
        Node::Directory(entries) => {
            text(nar, b"directory");
            let mut listed = serde_json::Map::new();
            for (name, node) in entries {
                text(nar, b"entry");
                text(nar, b"(");
                text(nar, b"name");
                text(nar, name.as_bytes());
                text(nar, b"node");
                listed.insert(name.clone(), encode(node, nar));
                text(nar, b")");
            }
            json!({"type": "directory", "entries": listed})
        }
        Node::Symlink(target) => {
            text(nar, b"symlink");
            text(nar, b"target");
            text(nar, target.as_bytes());
            json!({"type": "symlink", "target": target})
        }
    };
    text(nar, b")");
    listed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected value is the output of `nix-hash --to-base32 --type sha256` for the digest of
    /// the empty string.
    #[test]
    fn hashes_are_spelled_as_nix_does() {
        let digest = Sha256::digest(b"");
        assert_eq!(
            base32(&digest),
            "0mdqa9w1p6cmli6976v4wi0sw9r4p5prkj7lzfd1877wk11c9c73"
        );
    }
}
