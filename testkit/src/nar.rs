//! File trees and their NARs. Shares no code with the server, because tests compare the two.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use serde_json::{Map, Value, json};

/// Content of a file: bytes, or a recipe for them, so that a large tree need not be in memory.
pub trait Content {
    /// Returns the length in bytes.
    fn size(&self) -> u64;

    /// Writes all bytes.
    ///
    /// # Errors
    ///
    /// If `out` fails.
    fn write(&self, out: &mut dyn Write) -> io::Result<()>;
}

impl Content for Vec<u8> {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(self)
    }
}

/// A file system object in a NAR.
#[derive(Debug, Clone)]
pub enum Node<C = Vec<u8>> {
    /// A regular file.
    File {
        /// Content of the file.
        content: C,
        /// Whether the file is executable.
        executable: bool,
    },
    /// Symbolic link with its target.
    Link(Vec<u8>),
    /// Directory. A NAR sorts entries by the bytes of their names, and so does the map.
    Dir(BTreeMap<Vec<u8>, Self>),
}

impl<C: From<Vec<u8>>> Node<C> {
    /// Creates a regular file that is not executable.
    pub fn file(bytes: impl Into<Vec<u8>>) -> Self {
        Self::File {
            content: bytes.into().into(),
            executable: false,
        }
    }

    /// Creates an executable file.
    pub fn program(bytes: impl Into<Vec<u8>>) -> Self {
        Self::File {
            content: bytes.into().into(),
            executable: true,
        }
    }
}

impl<C> Node<C> {
    /// Creates a symbolic link.
    pub fn link(target: impl Into<Vec<u8>>) -> Self {
        Self::Link(target.into())
    }

    /// Creates a directory with these entries.
    pub fn dir<N: Into<Vec<u8>>>(entries: impl IntoIterator<Item = (N, Self)>) -> Self {
        let entries = entries.into_iter();
        Self::Dir(entries.map(|(name, node)| (name.into(), node)).collect())
    }
}

impl<C: Content> Node<C> {
    /// Writes the NAR of the tree; returns the tree's `.ls` listing.
    ///
    /// # Errors
    ///
    /// If `out` fails.
    pub fn write_nar(&self, out: &mut dyn Write) -> io::Result<Value> {
        let mut archive = Archive { out, position: 0 };
        archive.strings(&["nix-archive-1"])?;
        let root = archive.node(self)?;
        Ok(json!({"version": 1, "root": root}))
    }

    /// Returns the NAR of the tree.
    pub fn nar(&self) -> Vec<u8> {
        let mut nar = Vec::new();
        self.write_nar(&mut nar).unwrap();
        nar
    }

    /// Writes the tree to disk at `path`, which must not exist.
    ///
    /// # Errors
    ///
    /// If a file or directory cannot be created.
    pub fn write_tree(&self, path: &Path) -> io::Result<()> {
        match self {
            Self::File {
                content,
                executable,
            } => {
                let mut file = io::BufWriter::new(fs::File::create_new(path)?);
                content.write(&mut file)?;
                file.flush()?;
                let mode = if *executable { 0o555 } else { 0o444 };
                fs::set_permissions(path, fs::Permissions::from_mode(mode))
            }
            Self::Link(target) => symlink(OsStr::from_bytes(target), path),
            Self::Dir(entries) => {
                fs::create_dir(path)?;
                let mut entries = entries.iter();
                entries.try_for_each(|(name, node)| {
                    node.write_tree(&path.join(OsStr::from_bytes(name)))
                })
            }
        }
    }
}

/// Writes an integer in Nix's encoding: 64 bits, little-endian.
///
/// # Errors
///
/// If `out` fails.
pub fn write_u64(out: &mut dyn Write, value: u64) -> io::Result<()> {
    out.write_all(&value.to_le_bytes())
}

/// Writes a byte string: length, bytes, and zeros up to the next multiple of eight.
///
/// # Errors
///
/// If `out` fails.
pub fn write_bytes(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    let len = bytes.len() as u64;
    write_u64(out, len)?;
    out.write_all(bytes)?;
    write_padding(out, len)
}

fn write_padding(out: &mut dyn Write, len: u64) -> io::Result<()> {
    let padded = [0; 7].into_iter().take(((8 - len % 8) % 8) as usize);
    out.write_all(&padded.collect::<Vec<u8>>())
}

/// A NAR that is being written.
struct Archive<'a> {
    out: &'a mut dyn Write,
    /// Number of bytes of the NAR written so far.
    position: u64,
}

impl Archive<'_> {
    fn string(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.position += 8 + (bytes.len() as u64).next_multiple_of(8);
        write_bytes(self.out, bytes)
    }

    fn strings(&mut self, words: &[&str]) -> io::Result<()> {
        let mut words = words.iter();
        words.try_for_each(|word| self.string(word.as_bytes()))
    }

    /// Writes a node; returns its entry in the listing.
    fn node<C: Content>(&mut self, node: &Node<C>) -> io::Result<Value> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.strings(&["(", "type"])?;
        let listed = match node {
            Node::File {
                content,
                executable,
            } => {
                self.strings(&["regular"])?;
                if *executable {
                    self.strings(&["executable", ""])?;
                }
                self.strings(&["contents"])?;
                let (size, offset) = (content.size(), self.position + 8);
                write_u64(self.out, size)?;
                content.write(self.out)?;
                write_padding(self.out, size)?;
                self.position = offset + size.next_multiple_of(8);
                let mut listed = json!({"type": "regular", "size": size, "narOffset": offset});
                if *executable {
                    listed["executable"] = json!(true);
                }
                listed
            }
            Node::Link(target) => {
                self.strings(&["symlink", "target"])?;
                self.string(target)?;
                json!({"type": "symlink", "target": text(target)})
            }
            Node::Dir(entries) => {
                self.strings(&["directory"])?;
                let mut listed = Map::new();
                for (name, node) in entries {
                    self.strings(&["entry", "(", "name"])?;
                    self.string(name)?;
                    self.strings(&["node"])?;
                    listed.insert(text(name), self.node(node)?);
                    self.strings(&[")"])?;
                }
                json!({"type": "directory", "entries": listed})
            }
        };
        self.strings(&[")"])?;
        Ok(listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected sizes are those of `nix-store --dump`.
    #[test]
    fn nars_have_the_sizes_that_nix_computes() {
        let hello: Node = Node::file("hello\n");
        assert_eq!(hello.nar().len(), 120);
        let tree: Node = Node::dir([
            ("a.txt", hello),
            ("bin", Node::dir([("run", Node::program("#!/bin/sh\n"))])),
            ("empty", Node::dir::<&str>([])),
            ("link", Node::link("a.txt")),
            ("zero", Node::file("")),
        ]);
        assert_eq!(tree.nar().len(), 1232);
    }

    #[test]
    fn offsets_in_the_listing_are_those_of_the_contents() {
        let tree: Node = Node::dir([("a", Node::file("first")), ("b", Node::program("second"))]);
        let mut nar = Vec::new();
        let listing = tree.write_nar(&mut nar).unwrap();
        for (name, content) in [("a", "first"), ("b", "second")] {
            let offset = listing["root"]["entries"][name]["narOffset"].as_u64();
            let offset = usize::try_from(offset.unwrap()).unwrap();
            assert_eq!(&nar[offset..][..content.len()], content.as_bytes());
        }
    }
}
