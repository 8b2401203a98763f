//! [`Local`]: the files of a snapshot on this machine.
//!
//! # Files
//!
//! | file | content |
//! | --- | --- |
//! | `manifest` | the manifest of the snapshot |
//! | `nar` | the uncompressed NAR; blocks that were not fetched are holes |
//! | `marks` | a header; a byte for each block, 1: fetched; a byte for each entry, 1: verified |
//! | `lock` | locked by each mount: shared, or exclusive while the files are created |
//! | `write-lock` | locked while a block is written |
//! | `stream-lock` | locked by the mount that streams missing blocks |
//!
//! Several mounts share the files. Marks are bytes that are only set, so their writes never
//! collide. A block is written once, before its mark, so verified contents do not change.
//!
//! # Power cuts
//!
//! The files are not synced while blocks arrive. So after a restart of the machine, contents may be
//! lost although they are marked. The header has the ID of the boot in which the marks were made:
//! in another boot, every file is verified again, unless all were verified and synced.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, ensure};
use samovar_workspace::{Kind, Manifest, boot_id};
use sha2::{Digest as _, Sha256};

use super::view::{BLOCK_LEN, View, block_count, bytes_of};

const MAGIC: &[u8; 16] = b"samovar-mount 1\n";

/// Offset in `marks` of the byte that states whether all files were verified.
const WHOLE_AT: usize = 56;

/// Length of the header of `marks`, in bytes: the magic, the boot ID and [`WHOLE_AT`].
const HEADER_LEN: usize = 64;

/// All files were verified in the boot of the header.
const WHOLE: u8 = 1;
/// All files were verified and synced.
const WHOLE_DURABLE: u8 = 2;

/// Maximum length of a file that is read into memory to verify it, in bytes.
const SMALL_LEN: u64 = 1 << 20;

/// The files of a snapshot on this machine, while it is mounted.
#[derive(Debug)]
pub(super) struct Local {
    view: View,
    nar_size: u64,
    dir: PathBuf,
    nar: File,
    marks: File,
    write_lock: Mutex<File>,
    /// Blocks that are known to be in `nar`.
    present: Vec<AtomicBool>,
    /// Entries whose contents were verified.
    verified: Vec<AtomicBool>,
    /// Whether all files were verified.
    is_whole: AtomicBool,
    /// The shared lock.
    _lock: File,
}

/// The result of reading from a file of the snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// Verified contents. They are shorter than requested at the end of the file.
    Data(Vec<u8>),
    /// These blocks are needed, and some of them are not on this machine.
    Missing(Range<usize>),
    /// The contents do not match the digest in the manifest.
    Damaged,
}

/// Creates the files in `dir` that do not exist, and adapts them to the boot. The caller holds the
/// exclusive lock. `manifest`: the one in the file `manifest`.
///
/// # Errors
///
/// The files cannot be created.
pub(super) fn prepare(dir: &Path, manifest: &Manifest) -> anyhow::Result<()> {
    let nar_size = manifest.entries.nar_size();
    let failed = || format!("cannot create the files of the snapshot in {dir:?}");
    let nar = create(&dir.join("nar")).with_context(failed)?;
    if nar.metadata()?.len() != nar_size {
        nar.set_len(0).with_context(failed)?;
        fs::remove_file(dir.join("marks")).ok();
        nar.set_len(nar_size).with_context(failed)?;
    }
    let marks = create(&dir.join("marks")).with_context(failed)?;
    let entries_at = (HEADER_LEN + block_count(nar_size)) as u64;
    let len = entries_at + manifest.entries.list().len() as u64;
    let mut header = [0; HEADER_LEN];
    let is_known = marks.metadata()?.len() == len
        && marks.read_exact_at(&mut header, 0).is_ok()
        && header.starts_with(MAGIC);
    if !is_known {
        header = [0; HEADER_LEN];
        marks.set_len(0).with_context(failed)?;
    }
    let is_durable = header.get(WHOLE_AT) == Some(&WHOLE_DURABLE);
    let current = self::header();
    if header.get(..WHOLE_AT) != current.get(..WHOLE_AT) && !is_durable {
        marks.write_all_at(&current, 0).with_context(failed)?;
        // Clear the marks of the entries.
        marks.set_len(entries_at).with_context(failed)?;
    }
    marks.set_len(len).with_context(failed)?;
    Ok(())
}

/// Marks all contents as verified. The caller holds the exclusive lock and has verified the NAR in
/// the file `nar`.
///
/// # Errors
///
/// The marks cannot be written.
pub(super) fn mark_whole(dir: &Path, manifest: &Manifest) -> anyhow::Result<()> {
    let failed = || format!("cannot write to {dir:?}");
    prepare(dir, manifest)?;
    let marks = create(&dir.join("marks")).with_context(failed)?;
    let blocks = block_count(manifest.entries.nar_size());
    let ones = vec![1; blocks + manifest.entries.list().len()];
    marks
        .write_all_at(&ones, HEADER_LEN as u64)
        .with_context(failed)?;
    marks
        .write_all_at(&[WHOLE], WHOLE_AT as u64)
        .with_context(failed)
}

/// Returns whether the whole NAR in `dir` was verified, and no power cut can have damaged it since.
/// The caller has called [`prepare`].
pub(super) fn is_whole(dir: &Path) -> bool {
    let mut byte = [0];
    let read = File::open(dir.join("marks"));
    let read = read.and_then(|marks| marks.read_exact_at(&mut byte, WHOLE_AT as u64));
    read.is_ok() && matches!(byte, [WHOLE | WHOLE_DURABLE])
}

/// Returns the header of `marks` in this boot.
fn header() -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    let boot_id = boot_id();
    let text = MAGIC.iter().chain(&boot_id);
    for (to, from) in header.iter_mut().take(WHOLE_AT).zip(text) {
        *to = *from;
    }
    header
}

fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path)
}

impl Local {
    /// Opens the files in `dir`, which [`prepare`] has created. `lock`: the shared lock, which this
    /// holds until it is dropped.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or has too many entries.
    pub(super) fn open(dir: &Path, lock: File, manifest: Manifest) -> anyhow::Result<Self> {
        let failed = || format!("cannot open the files of the snapshot in {dir:?}");
        let nar_size = manifest.entries.nar_size();
        let nar = create(&dir.join("nar")).with_context(failed)?;
        let marks = create(&dir.join("marks")).with_context(failed)?;
        let write_lock = create(&dir.join("write-lock")).with_context(failed)?;
        let blocks = block_count(nar_size);
        let entries = manifest.entries.list().len();
        let mut bytes = vec![0; HEADER_LEN + blocks + entries];
        marks.read_exact_at(&mut bytes, 0).with_context(failed)?;
        let whole = bytes.get(WHOLE_AT).copied().unwrap_or_default();
        let is_set = |byte: &u8| AtomicBool::new(*byte == 1);
        let mut flags = bytes.iter().skip(HEADER_LEN).map(is_set);
        let present = flags.by_ref().take(blocks).collect();
        let verified = flags.collect();
        let view = View::new(manifest.entries).context("the snapshot has 2^32 entries or more")?;
        ensure!(
            nar.metadata().with_context(failed)?.len() == nar_size,
            "{dir:?} is incomplete: unmount the snapshot everywhere and delete this directory"
        );
        Ok(Self {
            view,
            nar_size,
            dir: dir.to_owned(),
            nar,
            marks,
            write_lock: Mutex::new(write_lock),
            present,
            verified,
            is_whole: AtomicBool::new(matches!(whole, WHOLE | WHOLE_DURABLE)),
            _lock: lock,
        })
    }

    pub(super) fn view(&self) -> &View {
        &self.view
    }

    pub(super) fn nar_size(&self) -> u64 {
        self.nar_size
    }

    pub(super) fn block_count(&self) -> usize {
        self.present.len()
    }

    /// Returns whether all files are here and verified.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Acquire)
    }

    /// Opens the lock of the mount that streams missing blocks.
    ///
    /// # Errors
    ///
    /// The file cannot be created.
    pub(super) fn stream_lock(&self) -> io::Result<File> {
        create(&self.dir.join("stream-lock"))
    }

    /// Creates an unnamed file beside the files of the snapshot.
    ///
    /// # Errors
    ///
    /// The file cannot be created.
    pub(super) fn temporary(&self) -> io::Result<File> {
        tempfile::tempfile_in(&self.dir)
    }

    /// Returns whether a block is on this machine.
    pub(super) fn has(&self, block: usize) -> bool {
        let Some(present) = self.present.get(block) else {
            return false;
        };
        present.load(Ordering::Acquire) || {
            // Another mount may have fetched it.
            let mut byte = [0];
            let at = (HEADER_LEN + block) as u64;
            let is_marked = self.marks.read_exact_at(&mut byte, at).is_ok() && byte == [1];
            if is_marked {
                present.store(true, Ordering::Release);
            }
            is_marked
        }
    }

    /// Returns whether a block is known to be on this machine.
    pub(super) fn has_noted(&self, block: usize) -> bool {
        let present = self.present.get(block);
        present.is_some_and(|present| present.load(Ordering::Acquire))
    }

    /// Notes all blocks that other mounts have fetched.
    pub(super) fn refresh(&self) {
        let mut bytes = vec![0; self.present.len()];
        if self
            .marks
            .read_exact_at(&mut bytes, HEADER_LEN as u64)
            .is_ok()
        {
            for (present, byte) in self.present.iter().zip(bytes) {
                if byte == 1 {
                    present.store(true, Ordering::Release);
                }
            }
        }
    }

    /// Writes a block, unless it is here. Returns whether it was written.
    ///
    /// # Errors
    ///
    /// The file system is full, or another error of it.
    pub(super) fn store(&self, block: usize, bytes: &[u8]) -> io::Result<bool> {
        let _guard = self.write_lock()?;
        if self.has(block) {
            return Ok(false);
        }
        self.nar.write_all_at(bytes, block as u64 * BLOCK_LEN)?;
        self.marks.write_all_at(&[1], (HEADER_LEN + block) as u64)?;
        if let Some(present) = self.present.get(block) {
            present.store(true, Ordering::Release);
        }
        Ok(true)
    }

    /// Replaces the contents of a file by verified ones. `contents`: a file with the whole
    /// contents, from its start.
    ///
    /// # Errors
    ///
    /// An error of the file system.
    pub(super) fn repair(&self, entry: usize, contents: &File) -> io::Result<()> {
        let Some((start, size, _)) = self.file(entry) else {
            return Ok(());
        };
        let _guard = self.write_lock()?;
        let mut piece = vec![0; 256 << 10];
        let mut at = 0;
        while at < size {
            let len = piece
                .len()
                .min(usize::try_from(size - at).unwrap_or(usize::MAX));
            let piece = piece.get_mut(..len).unwrap_or_default();
            contents.read_exact_at(piece, at)?;
            self.nar.write_all_at(piece, start + at)?;
            at += len as u64;
        }
        self.set_verified(entry..entry + 1);
        Ok(())
    }

    /// Reads from a file. Nothing is returned before the whole file was verified.
    ///
    /// # Errors
    ///
    /// An error of the file system.
    pub(super) fn read(&self, entry: usize, at: u64, len: usize) -> io::Result<Read> {
        let Some((start, size, digest)) = self.file(entry) else {
            return Ok(Read::Data(Vec::new()));
        };
        let end = size.min(at.saturating_add(len as u64));
        if at >= end {
            return Ok(Read::Data(Vec::new()));
        }
        if !self.is_whole() && !self.is_verified(entry) {
            let blocks = self.view.blocks(entry);
            if !blocks.clone().all(|block| self.has(block)) {
                return Ok(Read::Missing(blocks));
            }
            if size <= SMALL_LEN {
                let contents = self.bytes(&(start..start + size))?;
                if digest != Some(Sha256::digest(&contents).into()) {
                    return Ok(Read::Damaged);
                }
                self.set_verified(entry..entry + 1);
                let range = usize::try_from(at).ok().zip(usize::try_from(end).ok());
                let part = range.and_then(|(at, end)| contents.get(at..end));
                return Ok(Read::Data(part.unwrap_or_default().to_vec()));
            }
            if digest != Some(self.digest(&(start..start + size))?) {
                return Ok(Read::Damaged);
            }
            self.set_verified(entry..entry + 1);
        }
        self.bytes(&(start + at..start + end)).map(Read::Data)
    }

    /// Returns the offset in the NAR, the size and the digest of a file. Returns `None` for other
    /// entries.
    pub(super) fn file(&self, entry: usize) -> Option<(u64, u64, Option<[u8; 32]>)> {
        match &self.view.entries().get(entry)?.kind {
            Kind::File {
                size,
                digest,
                offset,
            } => Some((*offset, *size, *digest)),
            _ => None,
        }
    }

    /// Verifies all files that were not verified yet. All blocks are here. Returns whether all
    /// files match their digests. If so, they are synced, and not verified any more.
    ///
    /// # Errors
    ///
    /// An error of the file system.
    pub(super) fn verify_all(&self) -> io::Result<bool> {
        if self.is_whole() {
            return Ok(true);
        }
        let mut are_verified = true;
        for entry in 0..self.verified.len() {
            if let Some((start, size, digest)) = self.file(entry)
                && size > 0
                && !self.is_verified(entry)
            {
                match digest == Some(self.digest(&(start..start + size))?) {
                    true => self.set_verified(entry..entry + 1),
                    false => are_verified = false,
                }
            }
        }
        if !are_verified {
            return Ok(false);
        }
        self.is_whole.store(true, Ordering::Release);
        self.marks.write_all_at(&[WHOLE], WHOLE_AT as u64)?;
        self.nar.sync_data()?;
        self.marks.write_all_at(&[WHOLE_DURABLE], WHOLE_AT as u64)?;
        self.marks.sync_data()?;
        Ok(true)
    }

    fn digest(&self, range: &Range<u64>) -> io::Result<[u8; 32]> {
        let mut hasher = Sha256::new();
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let mut piece = vec![0; len.min(256 << 10)];
        let mut at = range.start;
        while at < range.end {
            let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            let len = piece.len().min(left);
            let piece = piece.get_mut(..len).unwrap_or_default();
            self.nar.read_exact_at(piece, at)?;
            hasher.update(&*piece);
            at += len as u64;
        }
        Ok(hasher.finalize().into())
    }

    fn bytes(&self, range: &Range<u64>) -> io::Result<Vec<u8>> {
        let len = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
        let mut bytes = vec![0; len];
        self.nar.read_exact_at(&mut bytes, range.start)?;
        Ok(bytes)
    }

    fn is_verified(&self, entry: usize) -> bool {
        let verified = self.verified.get(entry);
        verified.is_some_and(|verified| verified.load(Ordering::Acquire))
    }

    /// Marks these entries as verified. They are files that match their digests, or no files.
    pub(super) fn set_verified(&self, entries: Range<usize>) {
        let marks = vec![1; entries.len()];
        let at = HEADER_LEN + self.present.len() + entries.start;
        for verified in self.verified.get(entries).unwrap_or_default() {
            verified.store(true, Ordering::Release);
        }
        // Without the marks, the files are verified again by the next mount.
        self.marks.write_all_at(&marks, at as u64).ok();
    }

    fn write_lock(&self) -> io::Result<WriteGuard<'_>> {
        let file = self
            .write_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        file.lock()?;
        Ok(WriteGuard(file))
    }

    /// Returns the length of a block, in bytes.
    pub(super) fn block_len(&self, block: usize) -> usize {
        let bytes = bytes_of(&(block..block + 1), self.nar_size);
        usize::try_from(bytes.end - bytes.start).unwrap_or_default()
    }
}

/// The write lock. Dropping it releases it.
struct WriteGuard<'a>(MutexGuard<'a, File>);

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        // Fails only for an invalid descriptor.
        self.0.unlock().ok();
    }
}

#[cfg(test)]
mod tests;
