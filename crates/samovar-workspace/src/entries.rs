//! The entries of a tree, in the order of a NAR.

use std::fmt;

use samovar_nix::nar::{DEPTH_MAX, Discard, EncodeError, Encoder, Sink};

/// The permission bits that a snapshot keeps: read, write and execute for owner, group and others.
pub const MODE_MASK: u16 = 0o777;

const OWNER_EXECUTE: u16 = 0o100;

/// The entries of a tree, in the order of a NAR: names ascend as unsigned bytes, and the entries of
/// a directory follow it. The first entry is the root, a directory unless the entries were made by
/// [`of_file`](Entries::of_file) or [`of_symlink`](Entries::of_symlink).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entries {
    list: Vec<Entry>,
    nar_size: u64,
}

/// A file, directory or symbolic link of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name in the directory; empty for the root.
    pub name: Box<[u8]>,
    /// Index of the directory that has the entry; 0 for the root.
    pub parent: usize,
    /// Number of names in the path from the root; 0 for the root.
    pub depth: usize,
    /// Permission bits, within [`MODE_MASK`]. Those of links have no meaning.
    pub mode: u16,
    /// Time of the last modification.
    pub mtime: Mtime,
    /// Type, with the data that only entries of this type have.
    pub kind: Kind,
}

/// The type of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory {
        /// Index after the last entry below the directory. The entries of the directory
        /// begin at its own index + 1.
        end: usize,
    },
    /// A regular file.
    File {
        /// Length of the contents, in bytes.
        size: u64,
        /// SHA-256 of the contents. `None`: not known.
        digest: Option<[u8; 32]>,
        /// Offset of the contents in the NAR of the tree, in bytes.
        offset: u64,
    },
    /// A symbolic link.
    Symlink {
        /// Target, 1 to 4095 bytes.
        target: Box<[u8]>,
    },
}

/// A time of modification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mtime {
    /// Seconds since 1970, rounded down.
    pub seconds: i64,
    /// Nanoseconds after that, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// Reason why entries do not form a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The path of an entry has too many names. Nix refuses such NARs.
    #[error("the path has {DEPTH_MAX} names or more, which Nix refuses: move the files up")]
    TooDeep,
    /// A NAR cannot contain the entry.
    #[error(transparent)]
    Entry(#[from] EncodeError),
}

impl Entry {
    /// Returns whether the NAR marks the entry as executable: the owner may execute the file.
    #[must_use]
    pub fn is_executable(&self) -> bool {
        self.mode & OWNER_EXECUTE != 0
    }

    /// Returns whether both entries are files, directories, or symbolic links.
    #[must_use]
    pub fn has_same_type(&self, other: &Self) -> bool {
        std::mem::discriminant(&self.kind) == std::mem::discriminant(&other.kind)
    }

    /// Returns whether the entries have the same type, and the same contents or target. Contents
    /// without a digest differ from all others; the entries of directories are not compared.
    #[must_use]
    pub fn has_same_data(&self, other: &Self) -> bool {
        match (&self.kind, &other.kind) {
            (Kind::Directory { .. }, Kind::Directory { .. }) => true,
            (
                Kind::File { size, digest, .. },
                Kind::File {
                    size: other_size,
                    digest: other_digest,
                    ..
                },
            ) => size == other_size && digest.is_some() && digest == other_digest,
            (Kind::Symlink { target }, Kind::Symlink { target: other }) => target == other,
            _ => false,
        }
    }
}

impl Entries {
    /// Returns the entries of a NAR that is a single regular file. No manifest can contain them.
    ///
    /// # Errors
    ///
    /// The NAR would be longer than 2^64 bytes.
    pub fn of_file(
        mode: u16,
        mtime: Mtime,
        size: u64,
        digest: Option<[u8; 32]>,
    ) -> Result<Self, TreeError> {
        Self::of_root(mode, mtime, |encoder| {
            let offset = encoder.file(&mut Discard, mode & OWNER_EXECUTE != 0, size)?;
            encoder.end_file(&mut Discard)?;
            Ok(Kind::File {
                size,
                digest,
                offset,
            })
        })
    }

    /// Returns the entries of a NAR that is a single symbolic link. No manifest can contain them.
    ///
    /// # Errors
    ///
    /// A NAR cannot contain the target.
    pub fn of_symlink(mtime: Mtime, target: &[u8]) -> Result<Self, TreeError> {
        Self::of_root(MODE_MASK, mtime, |encoder| {
            encoder.symlink(&mut Discard, target)?;
            let target = target.into();
            Ok(Kind::Symlink { target })
        })
    }

    fn of_root(
        mode: u16,
        mtime: Mtime,
        encode: impl FnOnce(&mut Encoder) -> Result<Kind, TreeError>,
    ) -> Result<Self, TreeError> {
        let mut encoder = Encoder::new();
        encoder.begin(&mut Discard)?;
        let root = root(mode, mtime, encode(&mut encoder)?);
        Ok(Self {
            list: vec![root],
            nar_size: encoder.finish()?,
        })
    }

    /// Returns a tree of entries of other trees. The entries come in the order of a NAR, beginning
    /// with the root, which is a directory.
    ///
    /// # Errors
    ///
    /// The entries do not form a tree.
    pub(crate) fn of<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Result<Self, TreeError> {
        let mut entries = entries.into_iter();
        let (mode, mtime) = match entries.next() {
            Some(root) => (root.mode, root.mtime),
            None => (MODE_MASK, Mtime::default()),
        };
        let mut builder = Builder::new(mode, mtime);
        for entry in entries {
            while builder.open.len() > entry.depth {
                builder.leave()?;
            }
            let (name, mode, mtime) = (&entry.name, entry.mode, entry.mtime);
            match &entry.kind {
                Kind::Directory { .. } => builder.enter(name, mode, mtime)?,
                Kind::File { size, digest, .. } => {
                    builder.file(name, mode, mtime, *size, *digest)?;
                }
                Kind::Symlink { target } => builder.symlink(name, mtime, target)?,
            }
        }
        while !builder.leave()? {}
        builder.finish()
    }

    /// Returns all entries, beginning with the root.
    #[must_use]
    pub fn list(&self) -> &[Entry] {
        &self.list
    }

    /// Returns the entry with this index.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Entry> {
        self.list.get(index)
    }

    /// Returns the length of the tree's NAR, in bytes.
    #[must_use]
    pub fn nar_size(&self) -> u64 {
        self.nar_size
    }

    /// Sets the digest of a file. Has no effect on other entries.
    pub fn set_digest(&mut self, index: usize, new: [u8; 32]) {
        let entry = self.list.get_mut(index);
        if let Some(Kind::File { digest, .. }) = entry.map(|entry| &mut entry.kind) {
            *digest = Some(new);
        }
    }

    /// Returns the indices of the entries of a directory. Returns none for other entries.
    pub fn children(&self, directory: usize) -> impl Iterator<Item = usize> + '_ {
        let end = match self.get(directory).map(|entry| &entry.kind) {
            Some(Kind::Directory { end }) => *end,
            _ => 0,
        };
        let mut next = directory + 1;
        std::iter::from_fn(move || {
            let index = next;
            if index >= end {
                return None;
            }
            next = match self.get(index)?.kind {
                Kind::Directory { end } => end,
                _ => index + 1,
            };
            Some(index)
        })
    }

    /// Returns the index of the entry with this path, as [`path`](Self::path) writes it. Takes time
    /// in proportion to the number of entries in the directories of the path.
    #[must_use]
    pub fn find(&self, path: &[u8]) -> Option<usize> {
        if path.is_empty() {
            return Some(0);
        }
        path.split(|byte| *byte == b'/')
            .try_fold(0, |directory, name| {
                let mut children = self.children(directory);
                children.find(|child| self.get(*child).is_some_and(|entry| *entry.name == *name))
            })
    }

    /// Returns the path of an entry, relative to the root, with `/` between the names. The root's
    /// is empty.
    #[must_use]
    pub fn path(&self, index: usize) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = index;
        while at != 0 {
            let Some(entry) = self.get(at) else { break };
            names.push(&*entry.name);
            at = entry.parent;
        }
        names.reverse();
        names.join(&b'/')
    }

    /// Starts writing the framing of the NAR.
    #[must_use]
    pub fn framing(&self) -> Framing<'_> {
        Framing {
            entries: &self.list,
            next: 0,
            open: Vec::new(),
            is_in_file: false,
            encoder: Encoder::new(),
        }
    }
}

/// Writes the framing of a NAR: all its bytes except the contents of files.
#[derive(Debug)]
pub struct Framing<'a> {
    entries: &'a [Entry],
    next: usize,
    /// `end` of each open directory.
    open: Vec<usize>,
    is_in_file: bool,
    encoder: Encoder,
}

impl Framing<'_> {
    /// Appends the framing up to the contents of the next file, and returns the index of the file.
    /// After the last file, appends the end of the NAR and returns `None`.
    ///
    /// # Errors
    ///
    /// [`EncodeError`], only if it is called again after the end.
    pub fn next_file<S: Sink + ?Sized>(
        &mut self,
        out: &mut S,
    ) -> Result<Option<usize>, EncodeError> {
        match self.step(out, usize::MAX)? {
            Step::File(index) => Ok(Some(index)),
            Step::More | Step::End => Ok(None),
        }
    }

    /// Like [`next_file`](Self::next_file), but pauses after `count_max` entries that are no files,
    /// so that the appended framing is bounded.
    ///
    /// # Errors
    ///
    /// [`EncodeError`], only if it is called again after the end.
    pub(crate) fn step<S: Sink + ?Sized>(
        &mut self,
        out: &mut S,
        count_max: usize,
    ) -> Result<Step, EncodeError> {
        if self.next == 0 {
            self.encoder.begin(out)?;
        } else if self.is_in_file {
            self.encoder.end_file(out)?;
            self.is_in_file = false;
            // The root is not an entry of a directory.
            if self.next > 1 {
                self.encoder.end_entry(out)?;
            }
        }
        for _ in 0..count_max {
            while self.open.last().is_some_and(|end| *end == self.next) {
                self.open.pop();
                self.encoder.end_directory(out)?;
                if !self.open.is_empty() {
                    self.encoder.end_entry(out)?;
                }
            }
            let index = self.next;
            let Some(entry) = self.entries.get(index) else {
                return Ok(Step::End);
            };
            self.next += 1;
            if index > 0 {
                self.encoder.entry(out, &entry.name)?;
            }
            match &entry.kind {
                Kind::Directory { end } => {
                    self.encoder.begin_directory(out)?;
                    self.open.push(*end);
                }
                Kind::File { size, .. } => {
                    self.encoder.file(out, entry.is_executable(), *size)?;
                    self.is_in_file = true;
                    return Ok(Step::File(index));
                }
                Kind::Symlink { target } => {
                    self.encoder.symlink(out, target)?;
                    if index > 0 {
                        self.encoder.end_entry(out)?;
                    }
                }
            }
        }
        Ok(Step::More)
    }
}

/// Where a step of [`Framing`] has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Before the contents of the file with this index.
    File(usize),
    /// Before another entry.
    More,
    /// At the end of the NAR.
    End,
}

/// Collects the entries of a tree, which must come in the order of a NAR, and checks them.
#[derive(Debug)]
pub struct Builder {
    list: Vec<Entry>,
    /// Indices of the open directories, beginning with the root.
    open: Vec<usize>,
    encoder: Encoder,
}

impl Builder {
    /// Starts a tree with its root.
    #[must_use]
    pub fn new(mode: u16, mtime: Mtime) -> Self {
        let mut encoder = Encoder::new();
        let begun = encoder.begin(&mut Discard);
        let begun = begun.and_then(|()| encoder.begin_directory(&mut Discard));
        debug_assert!(begun.is_ok(), "a NAR may begin with a directory");
        Self {
            list: vec![root(mode, mtime, Kind::Directory { end: 1 })],
            open: vec![0],
            encoder,
        }
    }

    /// Opens a directory, to which the following entries belong until [`leave`](Self::leave).
    ///
    /// # Errors
    ///
    /// Any [`TreeError`]. The tree is useless then.
    pub fn enter(&mut self, name: &[u8], mode: u16, mtime: Mtime) -> Result<(), TreeError> {
        let index = self.list.len();
        self.add(name, mode, mtime, Kind::Directory { end: 0 })?;
        self.encoder.begin_directory(&mut Discard)?;
        self.open.push(index);
        Ok(())
    }

    /// Closes the innermost directory. Returns whether the tree is complete.
    ///
    /// # Errors
    ///
    /// [`EncodeError::Step`] if the tree was complete before.
    pub fn leave(&mut self) -> Result<bool, TreeError> {
        self.encoder.end_directory(&mut Discard)?;
        let len = self.list.len();
        let closed = self.open.pop().and_then(|index| self.list.get_mut(index));
        if let Some(closed) = closed {
            closed.kind = Kind::Directory { end: len };
        }
        if self.open.is_empty() {
            return Ok(true);
        }
        self.encoder.end_entry(&mut Discard)?;
        Ok(false)
    }

    /// Adds a regular file.
    ///
    /// # Errors
    ///
    /// Any [`TreeError`]. The tree is useless then.
    pub fn file(
        &mut self,
        name: &[u8],
        mode: u16,
        mtime: Mtime,
        size: u64,
        digest: Option<[u8; 32]>,
    ) -> Result<(), TreeError> {
        let index = self.list.len();
        let kind = Kind::File {
            size,
            digest,
            offset: 0,
        };
        self.add(name, mode, mtime, kind)?;
        let is_executable = mode & OWNER_EXECUTE != 0;
        let start = self.encoder.file(&mut Discard, is_executable, size)?;
        self.encoder.end_file(&mut Discard)?;
        self.encoder.end_entry(&mut Discard)?;
        if let Some(Kind::File { offset, .. }) =
            self.list.get_mut(index).map(|entry| &mut entry.kind)
        {
            *offset = start;
        }
        Ok(())
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    ///
    /// Any [`TreeError`]. The tree is useless then.
    pub fn symlink(&mut self, name: &[u8], mtime: Mtime, target: &[u8]) -> Result<(), TreeError> {
        let kind = Kind::Symlink {
            target: target.into(),
        };
        self.add(name, MODE_MASK, mtime, kind)?;
        self.encoder.symlink(&mut Discard, target)?;
        self.encoder.end_entry(&mut Discard)?;
        Ok(())
    }

    /// Returns the entries.
    ///
    /// # Errors
    ///
    /// [`EncodeError::Step`] if a directory is still open.
    pub fn finish(self) -> Result<Entries, TreeError> {
        Ok(Entries {
            list: self.list,
            nar_size: self.encoder.finish()?,
        })
    }

    fn add(&mut self, name: &[u8], mode: u16, mtime: Mtime, kind: Kind) -> Result<(), TreeError> {
        let depth = self.open.len();
        if depth >= DEPTH_MAX {
            return Err(TreeError::TooDeep);
        }
        self.encoder.entry(&mut Discard, name)?;
        self.list.push(Entry {
            name: name.into(),
            parent: self.open.last().copied().unwrap_or_default(),
            depth,
            mode: mode & MODE_MASK,
            mtime,
            kind,
        });
        Ok(())
    }
}

fn root(mode: u16, mtime: Mtime, kind: Kind) -> Entry {
    Entry {
        name: Box::default(),
        parent: 0,
        depth: 0,
        mode: mode & MODE_MASK,
        mtime,
        kind,
    }
}

impl fmt::Display for Mtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seconds,
            nanoseconds,
        } = self;
        match nanoseconds {
            0 => write!(f, "{seconds}"),
            _ => write!(f, "{seconds}.{nanoseconds:09}"),
        }
    }
}

impl Mtime {
    /// Parses the text that [`Display`](fmt::Display) writes, and no other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (seconds, nanoseconds) = match text.split_once('.') {
            Some((seconds, fraction)) => {
                let is_valid =
                    fraction.len() == 9 && fraction.bytes().all(|byte| byte.is_ascii_digit());
                let nanoseconds = fraction.parse().ok().filter(|number| *number > 0);
                (seconds, nanoseconds.filter(|_| is_valid)?)
            }
            None => (text, 0),
        };
        let digits = seconds.strip_prefix('-').unwrap_or(seconds);
        let is_canonical = digits.bytes().all(|byte| byte.is_ascii_digit())
            && (digits == "0" && digits.len() == seconds.len()
                || !digits.is_empty() && !digits.starts_with('0'));
        let seconds = seconds.parse().ok().filter(|_| is_canonical)?;
        Some(Self {
            seconds,
            nanoseconds,
        })
    }
}

#[cfg(test)]
mod tests;
