//! [`Reader`]: reads an archive, creates its directories and links, and hands its files to the
//! threads that write them.

use std::io::{self, Read};

use samovar_nix::NarHash;
use samovar_nix::nar::{Decoder, Event};
use sha2::{Digest, Sha256};

use super::batch::{Batch, NewFile};
use super::check::Check;
use super::temporary::Destination;
use super::writers::{Stopped, Writers};
use super::{Options, UnpackError, Unpacked};
use crate::manifest::Manifest;
use crate::root::Root;

/// Mode of directories until they get the mode in the manifest.
const PRIVATE: u16 = 0o700;

/// Mode of directories without a manifest.
const DIRECTORY: u16 = 0o755;

/// Name of the entry in the temporary directory if the archive is a single file or link.
pub(super) const SINGLE: &[u8] = b"content";

/// Number of bytes to read at a time.
const READ_LEN: usize = 128 << 10;

/// Reason why reading has ended early.
#[derive(Debug)]
pub(super) enum Abort {
    Error(UnpackError),
    /// A writer has failed, and has the error.
    Writer,
}

/// Result of reading an archive.
#[derive(Debug)]
pub(super) struct Summary {
    pub(super) unpacked: Unpacked,
    /// Whether the archive is a file or link instead of a directory.
    pub(super) is_single: bool,
}

/// Reads an archive.
pub(super) struct Reader<'a, 'scope> {
    root: &'a Root,
    destination: &'a Destination<'a>,
    options: &'a Options<'a>,
    nar_size_max: u64,
    check: Option<Check<'a>>,
    writers: &'a mut Writers<'scope>,
    /// Path of the current entry.
    path: Vec<u8>,
    /// Length of the path of each open directory, in bytes.
    open: Vec<usize>,
    is_single: bool,
    /// The current file.
    new_file: NewFile,
    batch: Batch,
    /// Thread that has the previous parts of the current file.
    thread: Option<usize>,
    entry_count: u64,
    unpacked: Unpacked,
}

/// Returns the mode with which the root of the tree is created.
pub(super) fn root_mode(manifest: Option<&Manifest>) -> u16 {
    manifest.map_or(DIRECTORY, |_| PRIVATE)
}

impl<'a, 'scope> Reader<'a, 'scope> {
    pub(super) fn new(
        root: &'a Root,
        destination: &'a Destination<'a>,
        manifest: Option<&'a Manifest>,
        options: &'a Options<'a>,
        writers: &'a mut Writers<'scope>,
    ) -> Self {
        let of_manifest = manifest.map(|manifest| manifest.entries.nar_size());
        let sizes = [Some(options.nar_size_max), options.nar_size, of_manifest];
        let batch = writers.batch();
        Self {
            root,
            destination,
            options,
            nar_size_max: sizes.into_iter().flatten().min().unwrap_or(u64::MAX),
            check: manifest.map(|manifest| Check::new(&manifest.entries)),
            writers,
            path: Vec::new(),
            open: Vec::new(),
            is_single: false,
            new_file: NewFile {
                mode: 0,
                attributes: None,
                digest: None,
            },
            batch,
            thread: None,
            entry_count: 0,
            unpacked: Unpacked::empty(),
        }
    }

    /// Reads the whole archive.
    pub(super) fn run(mut self, source: &mut dyn Read) -> Result<Summary, Abort> {
        let mut decoder = Decoder::new();
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; READ_LEN];
        loop {
            let len = match source.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read.map_err(UnpackError::Source)?,
            };
            let mut input = buffer.get(..len).unwrap_or_default();
            if input.is_empty() {
                break;
            }
            hasher.update(input);
            while let Some(event) = decoder.decode(&mut input).map_err(UnpackError::NotANar)? {
                self.event(&event)?;
            }
            if !input.is_empty() {
                let nar_size = decoder.offset();
                return Err(UnpackError::BytesAfterNar { nar_size }.into());
            }
            self.check_size(decoder.offset())?;
            if let Some(progress) = self.options.progress {
                progress.add_bytes(len);
            }
        }
        self.unpacked.nar_size = decoder.finish().map_err(UnpackError::NotANar)?;
        self.unpacked.nar_hash = NarHash::from_bytes(hasher.finalize().into());
        self.send()?;
        Ok(Summary {
            unpacked: self.unpacked,
            is_single: self.is_single,
        })
    }

    fn event(&mut self, event: &Event<'_>) -> Result<(), Abort> {
        match *event {
            Event::Entry { name } => self.entry(name),
            Event::DirectoryBegin => self.begin_directory(),
            Event::DirectoryEnd => self.end_directory(),
            Event::Symlink { target } => self.symlink(target),
            Event::File {
                executable,
                size,
                offset,
            } => {
                self.check_size(offset.saturating_add(size))?;
                self.file(executable, size)
            }
            Event::Contents(content) => self.contents(content),
            Event::FileEnd => self.end_file(),
            Event::EntryEnd => Ok(()),
        }
    }

    fn entry(&mut self, name: &[u8]) -> Result<(), Abort> {
        self.entry_count += 1;
        let limit = self.options.entry_count_max;
        if self.entry_count > limit {
            return Err(UnpackError::TooManyEntries { limit }.into());
        }
        let parent_len = self.open.last().copied().unwrap_or_default();
        self.path.truncate(parent_len);
        if parent_len > 0 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        Ok(())
    }

    fn begin_directory(&mut self) -> Result<(), Abort> {
        self.checked(Check::begin_directory)?;
        if !self.open.is_empty() {
            let mode = if self.check.is_some() {
                PRIVATE
            } else {
                DIRECTORY
            };
            let created = self.root.create_directory(&self.path, mode);
            created.map_err(|error| self.destination.error("create", &self.path, error))?;
            self.unpacked.directory_count += 1;
        }
        self.open.push(self.path.len());
        Ok(())
    }

    fn end_directory(&mut self) -> Result<(), Abort> {
        self.path.truncate(self.open.pop().unwrap_or_default());
        self.checked(|check, _| check.end_directory())?;
        Ok(())
    }

    fn symlink(&mut self, target: &[u8]) -> Result<(), Abort> {
        let mtime = self.checked(|check, path| check.symlink(path, target))?;
        self.begin_leaf();
        let created = self.root.create_symlink(&self.path, target, mtime);
        created.map_err(|error| self.destination.error("create", &self.path, error))?;
        self.unpacked.symlink_count += 1;
        Ok(())
    }

    fn file(&mut self, executable: bool, size: u64) -> Result<(), Abort> {
        let stated = self.checked(|check, path| check.file(path, executable, size))?;
        self.new_file = match stated {
            Some((attributes, digest)) => NewFile {
                mode: attributes.mode,
                attributes: Some(attributes),
                digest,
            },
            None => NewFile {
                mode: if executable { 0o755 } else { 0o644 },
                attributes: None,
                digest: None,
            },
        };
        self.begin_leaf();
        self.unpacked.file_count += 1;
        self.unpacked.content_size += size;
        if self.batch.is_full_for(size) {
            self.send()?;
        }
        self.batch.begin(&self.path, true, self.new_file);
        Ok(())
    }

    fn contents(&mut self, mut content: &[u8]) -> Result<(), Abort> {
        loop {
            self.batch.fill(&mut content);
            if content.is_empty() {
                return Ok(());
            }
            self.thread = Some(self.send()?);
            self.batch.begin(&self.path, false, self.new_file);
        }
    }

    fn end_file(&mut self) -> Result<(), Abort> {
        self.batch.end();
        // The rest of a large file goes to its thread alone.
        if self.thread.is_some() {
            self.send()?;
            self.thread = None;
        }
        Ok(())
    }

    /// Sends the batch, and returns the index of the thread that gets it.
    fn send(&mut self) -> Result<usize, Abort> {
        let next = self.writers.batch();
        let batch = std::mem::replace(&mut self.batch, next);
        Ok(self.writers.send(batch, self.thread)?)
    }

    /// Gives an archive of a single file or link a path in the temporary directory.
    fn begin_leaf(&mut self) {
        if self.open.is_empty() {
            self.path = SINGLE.to_vec();
            self.is_single = true;
        }
    }

    /// Compares with the manifest. Returns `None` if there is none.
    fn checked<T>(
        &mut self,
        compare: impl FnOnce(&mut Check<'a>, &[u8]) -> Result<T, &'static str>,
    ) -> Result<Option<T>, Abort> {
        let Some(check) = &mut self.check else {
            return Ok(None);
        };
        let compared = compare(check, &self.path);
        let compared =
            compared.map_err(|difference| self.destination.differs(&self.path, difference));
        Ok(Some(compared?))
    }

    fn check_size(&self, size: u64) -> Result<(), Abort> {
        let limit = self.nar_size_max;
        match size > limit {
            true => Err(UnpackError::TooLarge { limit }.into()),
            false => Ok(()),
        }
    }
}

impl From<UnpackError> for Abort {
    fn from(error: UnpackError) -> Self {
        Self::Error(error)
    }
}

impl From<Stopped> for Abort {
    fn from(_: Stopped) -> Self {
        Self::Writer
    }
}
