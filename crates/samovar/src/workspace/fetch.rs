//! [`Staged`]: contents of files that a command needs, received before any file is changed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, anyhow, ensure};
use samovar_client::workspace::place::Place;
use samovar_text::shown_path;
use samovar_workspace::{Entries, Kind, Manifest};
use sha2::{Digest as _, Sha256};

use crate::outcome::Failed;
use crate::progress::Progress;
use crate::snapshot::Snapshots;

/// Suffix of files that are not complete.
const PARTIAL: &str = ".part";

const BUFFER_LEN: usize = 256 << 10;

/// Contents of files, verified, in the directory [`Place::incoming`]. The names of the files are
/// their digests in hexadecimal digits. If the command is killed, the next one uses the files.
#[derive(Debug)]
pub(super) struct Staged {
    directory: PathBuf,
    /// Number of files to be created from each content.
    counts: BTreeMap<[u8; 32], usize>,
    /// Number of bytes received from the server.
    pub(super) received_len: u64,
}

impl Staged {
    /// Downloads the contents of these files of a snapshot.
    ///
    /// # Errors
    ///
    /// The cache is unavailable or sends other contents, or the disk is full. No file outside of
    /// [`Place::incoming`] was changed. If the disk is full, nothing of the contents stays.
    pub(super) fn download(
        place: &Place,
        snapshots: &Snapshots,
        manifest: &Manifest,
        files: &[usize],
    ) -> anyhow::Result<Self> {
        let directory = place.incoming.clone();
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {directory:?}"))?;
        let mut staged = Self {
            directory,
            counts: BTreeMap::new(),
            received_len: 0,
        };
        let mut missing = BTreeMap::new();
        for index in files {
            let (digest, size, offset) = file(&manifest.entries, *index)?;
            *staged.counts.entry(digest).or_default() += 1;
            if staged.counts.get(&digest) == Some(&1) && !staged.has(&digest, size) {
                missing.insert(offset, *index);
            }
        }
        if missing.is_empty() {
            return Ok(staged);
        }
        let narinfo = snapshots.narinfo(&manifest.tree)?;
        let received = Arc::new(AtomicU64::new(0));
        let indices: Vec<usize> = missing.values().copied().collect();
        let ends = missing.iter().map(|(offset, index)| {
            let (_, size, _) = file(&manifest.entries, *index)?;
            Ok(*offset..offset + size)
        });
        let parts = ends.collect::<anyhow::Result<Vec<Range<u64>>>>()?;
        let len = parts.iter().map(|part| part.end - part.start).sum();
        let progress = Progress::start("pulled", len);
        let read = snapshots.read_parts(&narinfo, &parts, &received, &mut |number, content| {
            let index = *indices.get(number).context("a file is missing")?;
            let (digest, size, _) = file(&manifest.entries, index)?;
            let path = shown_path(&manifest.entries.path(index));
            let is_intact = staged.receive(&mut progress.counted(content), &digest, size);
            let is_intact = is_intact.with_context(|| format!("cannot receive {path}"))?;
            let reason = "the contents have another hash";
            ensure!(is_intact, snapshots.damaged(&narinfo, &path, reason));
            Ok(())
        });
        progress.end();
        read?;
        staged.received_len = received.load(Ordering::Relaxed);
        Ok(staged)
    }

    /// Returns whether an earlier command has received this content.
    fn has(&self, digest: &[u8; 32], size: u64) -> bool {
        let Ok(mut file) = File::open(self.path(digest)) else {
            return false;
        };
        let mut hasher = Sha256::new();
        let copied = io::copy(&mut file, &mut Hashing(&mut hasher));
        copied.is_ok_and(|len| len == size) && <[u8; 32]>::from(hasher.finalize()) == *digest
    }

    /// Writes a content. Returns false, and writes none, if it has another digest.
    fn receive(&self, nar: &mut dyn Read, digest: &[u8; 32], size: u64) -> anyhow::Result<bool> {
        let path = self.path(digest);
        let partial = path.with_extension(&PARTIAL[1..]);
        let failed = |error: io::Error| {
            // Other programs need the space on a full disk.
            fs::remove_dir_all(&self.directory).unwrap_or_default();
            anyhow!("cannot write {partial:?}: {error}")
        };
        let mut file = File::create(&partial).map_err(failed)?;
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; BUFFER_LEN];
        let mut rest = nar.take(size);
        loop {
            let count = match rest.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Failed::Unavailable.because(error)),
            };
            let bytes = buffer.get(..count).unwrap_or_default();
            hasher.update(bytes);
            file.write_all(bytes).map_err(failed)?;
        }
        let is_intact = rest.limit() == 0 && <[u8; 32]>::from(hasher.finalize()) == *digest;
        if is_intact {
            fs::rename(&partial, &path).map_err(failed)?;
        }
        Ok(is_intact)
    }

    /// Takes a file with a content, to be renamed.
    pub(super) fn take(&mut self, digest: &[u8; 32]) -> anyhow::Result<PathBuf> {
        let path = self.path(digest);
        let count = self
            .counts
            .get_mut(digest)
            .context("the content was not received")?;
        *count = count.saturating_sub(1);
        let count = *count;
        if count == 0 {
            return Ok(path);
        }
        let copy = self.path(digest).with_extension(format!("{count}"));
        fs::copy(&path, &copy).with_context(|| format!("cannot write {copy:?}"))?;
        Ok(copy)
    }

    /// Reads a content.
    pub(super) fn read(&self, digest: &[u8; 32]) -> anyhow::Result<Vec<u8>> {
        let path = self.path(digest);
        fs::read(&path).with_context(|| format!("cannot read {path:?}"))
    }

    /// Opens a content.
    pub(super) fn open(&self, digest: &[u8; 32]) -> anyhow::Result<File> {
        let path = self.path(digest);
        File::open(&path).with_context(|| format!("cannot read {path:?}"))
    }

    /// Removes the directory.
    pub(super) fn remove(self) {
        // If this fails, a later command removes the directory.
        fs::remove_dir_all(&self.directory).unwrap_or_default();
    }

    fn path(&self, digest: &[u8; 32]) -> PathBuf {
        let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        self.directory.join(name)
    }
}

/// Returns digest, size and offset of a file.
pub(super) fn file(entries: &Entries, index: usize) -> anyhow::Result<([u8; 32], u64, u64)> {
    match entries.get(index).map(|entry| &entry.kind) {
        Some(Kind::File {
            size,
            digest: Some(digest),
            offset,
        }) => Ok((*digest, *size, *offset)),
        _ => Err(anyhow!(
            "entry {index} of the manifest is not a file with a digest"
        )),
    }
}

struct Hashing<'a>(&'a mut Sha256);

impl io::Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
