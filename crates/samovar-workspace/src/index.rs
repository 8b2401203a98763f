//! [`Index`]: the digests of the files of a workspace, with the metadata at the time of hashing.
//!
//! A file whose metadata is unchanged keeps its digest, so that only changed files are read again.
//!
//! # Format of the file `index`
//!
//! Binary; numbers are little-endian, times are 64 bits of seconds and 32 bits of nanoseconds.
//!
//! ```text
//! "samovar-index 2\n"
//! boot ID     of the kernel that wrote the index: 36 bytes, NUL bytes if unknown
//! time        files with a stamp from this time on are not trusted
//! state       of the root: mode (16 bits), mtime, ctime, inode (64), device (64)
//! records, in the order of a NAR:
//!   'd' state, name                  a directory; its entries follow
//!   'f' state, size (64), digest (32 bytes), name
//!   'u' state, size (64), name       a file without a digest
//!   'l' mtime, ctime, inode, device, target, name
//!   '.'                              end of the innermost directory, also of the root
//! SHA-256 of all bytes before
//! ```
//!
//! Names and targets are their length (16 bits) and their bytes. There is one encoding for each
//! index. A file that is cut off or damaged is refused as a whole: the digests are then computed
//! again, so an index need not be flushed to the disk.
//!
//! # Power loss
//!
//! Programs need not flush their files either. After a power loss, a file can have its last mtime,
//! but its earlier contents. So an index that was made in another boot is not trusted for files
//! that changed less than a minute before the index was made.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::entries::{Builder, Entries, Kind, MODE_MASK, Mtime, TreeError};
use crate::scan::{FileState, Scanned};
use crate::walk::Walk;

const MAGIC: &[u8] = b"samovar-index 2\n";

const FILE_NAME: &str = "index";

/// Length of a boot ID in bytes.
const BOOT_ID_LEN: usize = 36;

/// Maximum time until Linux has written a change to the disk: by default, it starts to write after
/// 30 seconds, and looks every 5 seconds.
const WRITEBACK: Mtime = Mtime {
    seconds: 60,
    nanoseconds: 0,
};

/// The digests of the files of a workspace, with the metadata at the time of hashing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    entries: Entries,
    states: Vec<FileState>,
    boot_id: [u8; BOOT_ID_LEN],
    settled: Mtime,
}

/// Returns the ID of this boot of the kernel, a UUID as text, or NUL bytes if it cannot be read.
#[must_use]
pub fn boot_id() -> [u8; BOOT_ID_LEN] {
    let text = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.first_chunk().copied().unwrap_or([0; BOOT_ID_LEN])
}

/// Reason why an index cannot be used. All files must be hashed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not a complete index.
    #[error("the index is damaged")]
    Damaged,
}

impl Index {
    /// Creates the index of a scanned tree, with the digests that are known.
    #[must_use]
    pub fn of(scanned: &Scanned) -> Self {
        Self {
            entries: scanned.entries.clone(),
            states: scanned.states.clone(),
            boot_id: boot_id(),
            settled: scanned.settled,
        }
    }

    /// Sets the digests of the files without one that are unchanged since the index was made.
    /// Returns the indices of the files that have no digest then.
    ///
    /// A file is unchanged if path, size, mtime, ctime and inode are the same, and both times are
    /// before [`Scanned::settled`] of the index: two changes could have the same later time.
    pub fn apply(&self, scanned: &mut Scanned) -> Vec<usize> {
        let mut known = Vec::new();
        for item in Walk::new([&self.entries, &scanned.entries]) {
            let [Some(old), Some(new)] = item else {
                continue;
            };
            let old_kind = &self.entries.list()[old].kind;
            let new_kind = &scanned.entries.list()[new].kind;
            if let (Kind::File { digest, .. }, Kind::File { digest: None, .. }) =
                (old_kind, new_kind)
                && self.is_unchanged(old, &scanned.states[new])
            {
                known.extend(digest.map(|digest| (new, digest)));
            }
        }
        for (index, digest) in known {
            scanned.entries.set_digest(index, digest);
        }
        scanned.files_without_digest().collect()
    }

    /// Returns for each entry of a scan whether the index has it, with the same metadata unless it
    /// is a directory.
    #[must_use]
    pub fn unchanged(&self, scanned: &Scanned) -> Vec<bool> {
        let mut found = vec![false; scanned.entries.list().len()];
        for item in Walk::new([&self.entries, &scanned.entries]) {
            let [Some(old), Some(new)] = item else {
                continue;
            };
            let (old_entry, new_entry) = (&self.entries.list()[old], &scanned.entries.list()[new]);
            let is_directory = matches!(new_entry.kind, Kind::Directory { .. });
            found[new] = old_entry.has_same_type(new_entry)
                && (is_directory || self.states[old].is_same(&scanned.states[new]));
        }
        found
    }

    fn is_unchanged(&self, old: usize, new: &FileState) -> bool {
        let old = &self.states[old];
        old.is_same(new) && old.mtime < self.settled && old.ctime < self.settled
    }

    /// Reads the index in a state directory; `None` if there is none. If the index was written in
    /// another boot, it is not trusted for files that changed in the minute before.
    ///
    /// # Errors
    ///
    /// Any [`IndexError`].
    pub fn read(directory: &Path) -> Result<Option<Self>, IndexError> {
        let bytes = match fs::read(path(directory)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes?,
        };
        let mut index = Self::decode(&bytes)?;
        if index.boot_id != boot_id() || index.boot_id == [0; BOOT_ID_LEN] {
            index.settled = index.settled.minus(WRITEBACK);
        }
        Ok(Some(index))
    }

    /// Replaces the index in a state directory.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        // Two commands at the same time write different files.
        let temporary = path(directory).with_extension(format!("{}.tmp", std::process::id()));
        let mut options = fs::File::options();
        // Names and digests of private files are private too.
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&temporary)?;
        let written = file.write_all(&self.encode());
        let renamed = written.and_then(|()| fs::rename(&temporary, path(directory)));
        if renamed.is_err() {
            // The first error matters.
            drop(fs::remove_file(&temporary));
        }
        renamed
    }

    /// Returns path, inode number, and time of the last change of each file.
    pub fn files(&self) -> impl Iterator<Item = (Vec<u8>, u64, Mtime)> + '_ {
        let list = self.entries.list().iter().zip(&self.states).enumerate();
        list.filter(|(_, (entry, _))| matches!(entry.kind, Kind::File { .. }))
            .map(|(index, (_, state))| (self.entries.path(index), state.inode, state.ctime))
    }

    /// Returns the bytes of the index.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.states.len().saturating_mul(128));
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.boot_id);
        put_time(&mut out, self.settled);
        let mut open = Vec::new();
        let list = self.entries.list();
        for (index, (entry, state)) in list.iter().zip(&self.states).enumerate() {
            close(&mut out, &mut open, index);
            let mode = entry.mode.to_le_bytes();
            match &entry.kind {
                Kind::Directory { end } => {
                    open.push(*end);
                    if index > 0 {
                        out.push(b'd');
                    }
                    out.extend_from_slice(&mode);
                    put_state(&mut out, state);
                }
                Kind::File { size, digest, .. } => {
                    out.push(if digest.is_some() { b'f' } else { b'u' });
                    out.extend_from_slice(&mode);
                    put_state(&mut out, state);
                    out.extend_from_slice(&size.to_le_bytes());
                    out.extend_from_slice(digest.as_ref().map_or(&[], |digest| &digest[..]));
                }
                Kind::Symlink { target } => {
                    out.push(b'l');
                    put_state(&mut out, state);
                    put_string(&mut out, target);
                }
            }
            if index > 0 {
                put_string(&mut out, &entry.name);
            }
        }
        close(&mut out, &mut open, list.len());
        let hash = Sha256::digest(&out);
        out.extend_from_slice(&hash);
        out
    }

    /// Parses an index.
    ///
    /// # Errors
    ///
    /// [`IndexError::Damaged`] if [`encode`](Self::encode) does not return these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, IndexError> {
        let (body, hash) = bytes.split_last_chunk::<32>().ok_or(IndexError::Damaged)?;
        if Sha256::digest(body)[..] != hash[..] {
            return Err(IndexError::Damaged);
        }
        decode_body(body).ok_or(IndexError::Damaged)
    }
}

fn path(directory: &Path) -> PathBuf {
    directory.join(FILE_NAME)
}

/// Ends the directories whose last entry precedes `index`.
fn close(out: &mut Vec<u8>, open: &mut Vec<usize>, index: usize) {
    while open.last() == Some(&index) {
        open.pop();
        out.push(b'.');
    }
}

fn put_time(out: &mut Vec<u8>, time: Mtime) {
    out.extend_from_slice(&time.seconds.to_le_bytes());
    out.extend_from_slice(&time.nanoseconds.to_le_bytes());
}

fn put_state(out: &mut Vec<u8>, state: &FileState) {
    put_time(out, state.mtime);
    put_time(out, state.ctime);
    out.extend_from_slice(&state.inode.to_le_bytes());
    out.extend_from_slice(&state.device.to_le_bytes());
}

/// Names have at most 255 bytes, targets 4,095.
fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(bytes);
}

fn decode_body(body: &[u8]) -> Option<Index> {
    let mut input = Input(body.strip_prefix(MAGIC)?);
    let boot_id = input.array()?;
    let settled = input.time()?;
    let mode = input.mode()?;
    let root = input.state()?;
    let mut builder = Builder::new(mode, root.mtime);
    let mut states = vec![root];
    loop {
        let added = match input.array()? {
            [b'.'] => {
                if builder.leave().ok()? {
                    break;
                }
                continue;
            }
            [b'd'] => {
                let (mode, state) = (input.mode()?, input.state()?);
                states.push(state);
                builder.enter(input.string()?, mode, state.mtime)
            }
            [b'l'] => {
                let (state, target) = (input.state()?, input.string()?);
                let size = target.len() as u64;
                states.push(FileState { size, ..state });
                builder.symlink(input.string()?, state.mtime, target)
            }
            tag @ ([b'f'] | [b'u']) => input.file(tag == [b'f'], &mut builder, &mut states)?,
            _ => return None,
        };
        added.ok()?;
    }
    let entries = builder.finish().ok()?;
    input.0.is_empty().then_some(Index {
        entries,
        states,
        boot_id,
        settled,
    })
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn array<const LEN: usize>(&mut self) -> Option<[u8; LEN]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn mode(&mut self) -> Option<u16> {
        let mode = u16::from_le_bytes(self.array()?);
        (mode <= MODE_MASK).then_some(mode)
    }

    fn time(&mut self) -> Option<Mtime> {
        let seconds = i64::from_le_bytes(self.array()?);
        let nanoseconds = u32::from_le_bytes(self.array()?);
        (nanoseconds < 1_000_000_000).then_some(Mtime {
            seconds,
            nanoseconds,
        })
    }

    /// Reads a state without the size.
    fn state(&mut self) -> Option<FileState> {
        Some(FileState {
            size: 0,
            mtime: self.time()?,
            ctime: self.time()?,
            inode: self.number()?,
            device: self.number()?,
        })
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        let len = u16::from_le_bytes(self.array()?);
        let (string, rest) = self.0.split_at_checked(len.into())?;
        self.0 = rest;
        Some(string)
    }

    fn file(
        &mut self,
        has_digest: bool,
        builder: &mut Builder,
        states: &mut Vec<FileState>,
    ) -> Option<Result<(), TreeError>> {
        let (mode, state, size) = (self.mode()?, self.state()?, self.number()?);
        let digest = match has_digest {
            true => Some(self.array()?),
            false => None,
        };
        states.push(FileState { size, ..state });
        Some(builder.file(self.string()?, mode, state.mtime, size, digest))
    }
}
