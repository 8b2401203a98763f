//! Contents of store paths, and their hashes. Shares no code with the server, so that the server's
//! code does not verify itself.

use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};
use testkit::random::SplitMix64;

/// The file tree of a store path.
pub(crate) type Node = testkit::nar::Node<Vec<u8>>;

/// One registered content of a store path, and what the server must send for it.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) node: Node,
    pub(crate) nar: Vec<u8>,
    /// NAR hash in Nix's base-32, without the name of the algorithm.
    pub(crate) nar_hash: String,
    pub(crate) nar_hash_hex: String,
    /// The `.ls` listing that the server must send.
    pub(crate) listing: Value,
    /// Store paths to which this content refers, sorted.
    pub(crate) references: Vec<String>,
}

/// Kinds of content, one for each way in which the server sends a NAR.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    /// NARs that an I/O thread sends from memory.
    Tiny,
    /// NARs that a worker sends from memory.
    Small,
    /// NARs that are sent by `sendfile`.
    Large,
    /// NARs of many files, which the server stores in the NAR cache as one file.
    Tree,
    /// Edge cases: files of all lengths, symlinks, an empty directory, names that need escaping.
    Mixed,
}

impl Version {
    pub(crate) fn new(node: Node, mut references: Vec<String>) -> Arc<Self> {
        references.sort();
        let mut nar = Vec::new();
        let listing = node.write_nar(&mut nar).unwrap_or_default();
        let digest = Sha256::digest(&nar);
        Arc::new(Self {
            node,
            nar_hash: base32(&digest),
            nar_hash_hex: hex(&digest),
            listing,
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

/// Generates a random tree of this shape.
pub(crate) fn random_tree(random: &mut SplitMix64, shape: Shape) -> Node {
    let mut file = |len: u64| Node::File {
        executable: random.percent(20),
        content: random.bytes(len as usize),
    };
    match shape {
        Shape::Tiny => {
            let (empty, short) = (file(0), file(1000));
            // The first byte is random, and selects the short file in about three of four cases.
            let is_short = matches!(&short, Node::File { content, .. } if content[0] % 4 > 0);
            if is_short { short } else { empty }
        }
        Shape::Small => file(40_000),
        Shape::Large => file(3_000_000),
        Shape::Tree => {
            Node::dir((0..90).map(|number| (format!("file-{number}"), file(4000 + number * 31))))
        }
        Shape::Mixed => {
            let inner = Node::dir([
                ("empty", Node::dir::<&str>([])),
                ("nothing", file(0)),
                ("link", Node::link("../elsewhere")),
                ("long", file(300_000)),
            ]);
            Node::dir([
                ("a b \"c\"", file(7)),
                ("inner", inner),
                ("é", file(70_001)),
            ])
        }
    }
}

/// Returns the same tree with other bytes in files of the same lengths.
pub(crate) fn twin(node: &Node, random: &mut SplitMix64) -> Node {
    match node {
        Node::File {
            executable,
            content,
        } => Node::File {
            executable: *executable,
            content: random.bytes(content.len()),
        },
        Node::Dir(entries) => {
            let entries = entries.iter();
            Node::dir(entries.map(|(name, node)| (name.clone(), twin(node, random))))
        }
        Node::Link(target) => Node::Link(target.clone()),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected value is the output of `nix-hash --to-base32 --type sha256` for the digest of
    /// the empty string.
    #[test]
    fn base_32_equals_the_output_of_nix_hash() {
        let digest = Sha256::digest(b"");
        assert_eq!(
            base32(&digest),
            "0mdqa9w1p6cmli6976v4wi0sw9r4p5prkj7lzfd1877wk11c9c73"
        );
    }
}
