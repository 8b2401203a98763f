//! Trees in memory, and their NARs.
//!
//! Implemented independently of the server's NAR code on purpose: the server is tested against the
//! sample store, and Nix verifies every NAR on import.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use testkit::random::SplitMix64;

use super::random::{write_noise, write_prose};

/// File system object of a NAR.
#[derive(Debug, Clone)]
pub(crate) enum Node {
    /// A regular file.
    File {
        /// Content of the file.
        content: Content,
        /// Whether the file is executable.
        executable: bool,
    },
    /// Symbolic link with its target.
    Link(Vec<u8>),
    /// Directory. A NAR sorts entries by the bytes of their names, and so does the map.
    Dir(BTreeMap<Vec<u8>, Self>),
}

/// Content of a file: bytes, or a recipe for them, so that a large tree need not be in memory.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// The bytes themselves.
    Bytes(Vec<u8>),
    /// Incompressible bytes.
    Noise { seed: u64, len: u64 },
    /// Words and lines, about as compressible as source code.
    Prose { seed: u64, len: u64 },
}

impl Content {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Noise { len, .. } | Self::Prose { len, .. } => *len,
        }
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Bytes(bytes) => out.write_all(bytes),
            Self::Noise { seed, len } => write_noise(SplitMix64::new(*seed), *len, out),
            Self::Prose { seed, len } => write_prose(SplitMix64::new(*seed), *len, out),
        }
    }
}

impl Node {
    /// Creates a regular file that is not executable.
    pub(crate) fn file(bytes: impl Into<Vec<u8>>) -> Self {
        Self::File {
            content: Content::Bytes(bytes.into()),
            executable: false,
        }
    }

    /// Creates an executable file.
    pub(crate) fn program(bytes: impl Into<Vec<u8>>) -> Self {
        Self::File {
            content: Content::Bytes(bytes.into()),
            executable: true,
        }
    }

    /// Creates a symbolic link.
    pub(crate) fn link(target: impl Into<Vec<u8>>) -> Self {
        Self::Link(target.into())
    }

    /// Creates a directory with these entries.
    pub(crate) fn dir<N: Into<Vec<u8>>>(entries: impl IntoIterator<Item = (N, Self)>) -> Self {
        Self::Dir(
            entries
                .into_iter()
                .map(|(name, node)| (name.into(), node))
                .collect(),
        )
    }

    /// Writes the NAR of the tree.
    pub(crate) fn write_nar(&self, out: &mut dyn Write) -> io::Result<()> {
        write_bytes(out, b"nix-archive-1")?;
        self.write_object(out)
    }

    fn write_object(&self, out: &mut dyn Write) -> io::Result<()> {
        write_words(out, &["(", "type"])?;
        match self {
            Self::File {
                content,
                executable,
            } => {
                write_words(out, &["regular"])?;
                if *executable {
                    write_words(out, &["executable", ""])?;
                }
                write_words(out, &["contents"])?;
                write_u64(out, content.len())?;
                content.write(out)?;
                write_padding(out, content.len())?;
            }
            Self::Link(target) => {
                write_words(out, &["symlink", "target"])?;
                write_bytes(out, target)?;
            }
            Self::Dir(entries) => {
                write_words(out, &["directory"])?;
                for (name, node) in entries {
                    write_words(out, &["entry", "(", "name"])?;
                    write_bytes(out, name)?;
                    write_words(out, &["node"])?;
                    node.write_object(out)?;
                    write_words(out, &[")"])?;
                }
            }
        }
        write_words(out, &[")"])
    }

    /// Writes the tree to disk at `path`, which must not exist.
    pub(crate) fn write_tree(&self, path: &Path) -> io::Result<()> {
        match self {
            Self::File {
                content,
                executable,
            } => {
                let mut file = io::BufWriter::new(fs::File::create_new(path)?);
                content.write(&mut file)?;
                file.flush()?;
                let mode = if *executable { 0o755 } else { 0o644 };
                fs::set_permissions(path, fs::Permissions::from_mode(mode))
            }
            Self::Link(target) => {
                std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(target), path)
            }
            Self::Dir(entries) => {
                fs::create_dir(path)?;
                entries.iter().try_for_each(|(name, node)| {
                    node.write_tree(&path.join(std::ffi::OsStr::from_bytes(name)))
                })
            }
        }
    }
}

/// Writes an integer in Nix's encoding: 64 bits, little-endian.
pub(crate) fn write_u64(out: &mut dyn Write, value: u64) -> io::Result<()> {
    out.write_all(&value.to_le_bytes())
}

/// Writes a byte string: length, bytes, and zeros up to the next multiple of eight.
pub(crate) fn write_bytes(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    let len = bytes.len() as u64;
    write_u64(out, len)?;
    out.write_all(bytes)?;
    write_padding(out, len)
}

fn write_words(out: &mut dyn Write, words: &[&str]) -> io::Result<()> {
    words
        .iter()
        .try_for_each(|word| write_bytes(out, word.as_bytes()))
}

fn write_padding(out: &mut dyn Write, len: u64) -> io::Result<()> {
    const ZEROS: [u8; 7] = [0; 7];
    let missing = (8 - len % 8) % 8;
    out.write_all(ZEROS.get(..missing as usize).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nar(node: &Node) -> Vec<u8> {
        let mut out = Vec::new();
        node.write_nar(&mut out).unwrap();
        out
    }

    #[test]
    fn sizes_are_those_of_nix() {
        assert_eq!(nar(&Node::file("hello\n")).len(), 120);
        let tree = Node::dir([
            ("a.txt", Node::file("hello\n")),
            ("bin", Node::dir([("run", Node::program("#!/bin/sh\n"))])),
            ("empty", Node::dir::<&str>([])),
            ("link", Node::link("a.txt")),
            ("zero", Node::file("")),
        ]);
        assert_eq!(nar(&tree).len(), 1232);
    }

    #[test]
    fn recipes_keep_their_length() {
        for len in [0, 1, 7, 8, 9, 4095, 4096, 4097, 100_000] {
            for content in [
                Content::Noise { seed: 1, len },
                Content::Prose { seed: 1, len },
            ] {
                let mut out = Vec::new();
                content.write(&mut out).unwrap();
                assert_eq!(out.len() as u64, len, "{content:?}");
            }
        }
    }
}
