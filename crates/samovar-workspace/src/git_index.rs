//! [`GitIndex`]: the index of a git repository, as far as a merge needs it.
//!
//! Formats 2, 3 and 4 with SHA-1 or SHA-256. An index that is split over two files is not read.

use std::collections::HashMap;
use std::io::{self, Read};
use std::ops::Range;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::entries::Mtime;

#[cfg(test)]
pub(crate) mod tests;

/// The first bytes of each index.
const MAGIC: &[u8] = b"DIRC";

/// Length of the header, in bytes.
const HEADER_LEN: usize = 12;

/// Length of the stat data of an entry, in bytes: ten numbers of four bytes.
const STAT_LEN: usize = 40;

/// Positions of numbers in the stat data, in bytes.
const MTIME_AT: usize = 8;
const MODE_AT: usize = 24;
const SIZE_AT: usize = 36;

/// Flags of an entry.
const EXTENDED: u16 = 0x4000;
/// The flags that are no stat data: the flags that `git update-index` sets, and the stage.
const KEPT_FLAGS: u16 = 0xb000;
/// The extended flag of an entry without contents (`git add --intent-to-add`).
const INTENT_TO_ADD: u16 = 0x2000;

/// Extensions that only save time: the next git command makes them again.
const CACHES: [&[u8]; 5] = [b"TREE", b"UNTR", b"FSMN", b"EOIE", b"IEOT"];

/// Name of an object of git: a SHA-1 and zeros, or a SHA-256.
pub(crate) type ObjectName = [u8; 32];

/// Names that git gives to the contents of a file: with SHA-1, and with SHA-256.
///
/// # Errors
///
/// The contents cannot be read.
pub(crate) fn blob_names(len: u64, contents: &mut dyn Read) -> io::Result<[ObjectName; 2]> {
    let header = format!("blob {len}\0");
    let (mut sha1, mut sha256) = (Sha1::new(), Sha256::new());
    let mut rest = header.as_bytes().chain(contents);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = match rest.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let bytes = buffer.get(..count).unwrap_or_default();
        sha1.update(bytes);
        sha256.update(bytes);
    }
    Ok([padded(&sha1.finalize()), sha256.finalize().into()])
}

fn padded(id: &[u8]) -> ObjectName {
    let mut name = ObjectName::default();
    for (to, from) in name.iter_mut().zip(id) {
        *to = *from;
    }
    name
}

/// The index of a git repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitIndex {
    /// Equal for indexes that differ only in stat data and in caches.
    pub fingerprint: [u8; 32],
    /// Stat data of the entries, by path relative to the work tree.
    stats: HashMap<Box<[u8]>, Stat>,
}

/// What the index knows about a file of the work tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    /// Time of the last modification. Seconds are modulo 2^32.
    seconds: u32,
    /// 0 if git was built without nanoseconds.
    nanoseconds: u32,
    /// Length modulo 2^32, in bytes.
    size: u32,
    /// Name of the contents. `None` if the repository has none, or several.
    blob: Option<ObjectName>,
}

impl GitIndex {
    /// Parses an index. Returns `None` if it is not one that this module can read.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        // Only one of the lengths of object names gives entries and extensions that end in time.
        Self::parse_with(bytes, 20).or_else(|| Self::parse_with(bytes, 32))
    }

    fn parse_with(bytes: &[u8], id_len: usize) -> Option<Self> {
        if !bytes.starts_with(MAGIC) {
            return None;
        }
        let version = number(bytes, 4)?;
        let count = number(bytes, 8)?;
        // The checksum, which is as long as an object name.
        let body = bytes.get(..bytes.len().checked_sub(id_len)?)?;
        let mut parser = Parser {
            body,
            at: HEADER_LEN,
            id_len,
            version: (2..=4).contains(&version).then_some(version)?,
            path: Vec::new(),
            hasher: Sha256::new(),
            stats: HashMap::new(),
        };
        for _ in 0..count {
            parser.entry()?;
        }
        parser.hasher.update(b"extensions\0");
        while parser.at < body.len() {
            parser.extension()?;
        }
        Some(Self {
            fingerprint: parser.hasher.finalize().into(),
            stats: parser.stats,
        })
    }

    /// Returns whether git tracks a path, relative to the work tree.
    #[must_use]
    pub fn has(&self, path: &[u8]) -> bool {
        self.stats.contains_key(path)
    }

    /// Returns the name of the contents of a file of the work tree, if the file has not changed
    /// since by its length and time. A program may have set the time. `written_at`: time of the
    /// index.
    pub(crate) fn blob(
        &self,
        path: &[u8],
        size: u64,
        mtime: Mtime,
        written_at: Mtime,
    ) -> Option<ObjectName> {
        self.stats.get(path).and_then(|stat| {
            let is_same_time = i64::from(stat.seconds) == mtime.seconds & i64::from(u32::MAX)
                && (stat.nanoseconds == mtime.nanoseconds || stat.nanoseconds == 0);
            let is_same_size = u64::from(stat.size) == size & u64::from(u32::MAX);
            // A file that was changed later has a later time than the index.
            let is_same = is_same_time && is_same_size && mtime < written_at;
            stat.blob.filter(|_| is_same)
        })
    }
}

struct Parser<'a> {
    /// The index without its checksum.
    body: &'a [u8],
    /// Position of the next byte.
    at: usize,
    /// Length of an object name, in bytes.
    id_len: usize,
    version: u32,
    /// Path of the last entry.
    path: Vec<u8>,
    hasher: Sha256,
    stats: HashMap<Box<[u8]>, Stat>,
}

impl<'a> Parser<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(len)?;
        let taken = self.body.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn entry(&mut self) -> Option<()> {
        let start = self.at;
        let stat = self.take(STAT_LEN)?;
        let id = self.take(self.id_len)?;
        let flags = self.short()?;
        let extended = match flags & EXTENDED {
            0 => 0,
            _ if self.version >= 3 => self.short()?,
            _ => return None,
        };
        self.read_path(start)?;
        let mode = number(stat, MODE_AT)?;
        self.hasher.update(mode.to_be_bytes());
        self.hasher.update(id);
        self.hasher.update((flags & KEPT_FLAGS).to_be_bytes());
        self.hasher.update(extended.to_be_bytes());
        self.hasher.update(&self.path);
        self.hasher.update([0]);
        let stat = Stat {
            seconds: number(stat, MTIME_AT)?,
            nanoseconds: number(stat, MTIME_AT + 4)?,
            size: number(stat, SIZE_AT)?,
            // An entry in a conflict of git has several contents.
            blob: (extended & INTENT_TO_ADD == 0 && flags & 0x3000 == 0).then(|| padded(id)),
        };
        self.stats.insert(self.path.as_slice().into(), stat);
        Some(())
    }

    /// Reads the path of the entry that began at `start`, and the bytes up to the next one.
    fn read_path(&mut self, start: usize) -> Option<()> {
        if self.version == 4 {
            // An entry begins with the number of bytes to remove from the end of the previous
            // entry's path. The bytes to append follow.
            let removed = self.varint()?;
            let kept = self.path.len().checked_sub(removed)?;
            self.path.truncate(kept);
        } else {
            self.path.clear();
        }
        let rest = self.body.get(self.at..)?;
        let len = rest.iter().position(|byte| *byte == 0)?;
        self.path.extend_from_slice(&rest[..len]);
        self.at += len + 1;
        if self.version < 4 {
            self.at = start + (self.at - start).next_multiple_of(8);
        }
        (!self.path.is_empty()).then_some(())
    }

    fn extension(&mut self) -> Option<()> {
        let signature = self.take(4)?;
        let len = self.take(4)?;
        let data = self.take(usize::try_from(number(len, 0)?).ok()?)?;
        match signature {
            // The other part of the index is in another file.
            b"link" => None,
            cache if CACHES.contains(&cache) => Some(()),
            other => {
                self.hasher.update(other);
                self.hasher.update(len);
                self.hasher.update(data);
                Some(())
            }
        }
    }

    fn short(&mut self) -> Option<u16> {
        let bytes = self.take(2)?.try_into().ok()?;
        Some(u16::from_be_bytes(bytes))
    }

    /// Reads a number as git writes offsets in packs.
    fn varint(&mut self) -> Option<usize> {
        let mut value = 0_usize;
        loop {
            let byte = *self.take(1)?.first()?;
            value = value
                .checked_mul(128)?
                .checked_add(usize::from(byte & 127))?;
            if byte & 128 == 0 {
                return Some(value);
            }
            value = value.checked_add(1)?;
        }
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let range: Range<usize> = at..at.checked_add(4)?;
    let bytes = bytes.get(range)?.try_into().ok()?;
    Some(u32::from_be_bytes(bytes))
}
