//! [`Window`]: passes the bytes of a NAR to the readers of the transfer, through the copy on the
//! disk if there is one.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use samovar_storage::kept::{self, Keeping};
use samovar_verify::Verified;

use crate::known::nar_cache::{NarCache, Recording};
use crate::upstream::one::Found;
use crate::upstream::transfer::Transfer;

/// The copy of a NAR that arrives, from which readers read.
pub(super) enum NarCopy {
    /// In the storage, where it is kept.
    Kept(Keeping),
    /// In the NAR cache.
    Cached(Recording),
}

impl NarCopy {
    /// Starts the copy of a file of this length: in the storage, or else in the NAR cache.
    /// `is_needed`: whether the path is kept beyond `keep-size`.
    pub(super) fn begin(
        found: &Found,
        nar_cache: Option<&Arc<NarCache>>,
        is_needed: bool,
        len: Option<u64>,
    ) -> Option<Self> {
        let Found {
            upstream, narinfo, ..
        } = found;
        if let Some(kept) = &upstream.kept {
            // A file of unknown length is not much longer than its NAR.
            let len_max = len.unwrap_or(narinfo.nar_size.saturating_add(narinfo.nar_size / 8));
            match kept::begin(kept, len_max, is_needed) {
                Ok(keeping) => return Some(Self::Kept(keeping)),
                Err(reason) => upstream.not_kept(narinfo, &reason),
            }
        }
        let form = (&narinfo.nar_hash, narinfo.compression);
        let recording = Recording::start_upstream(nar_cache?, form, narinfo.nar_size, len?);
        recording.map(Self::Cached)
    }

    fn file(&self) -> &Arc<File> {
        match self {
            Self::Kept(keeping) => keeping.file(),
            Self::Cached(recording) => recording.written().0,
        }
    }

    /// Writes the next bytes. Fails if there is no disk space for them.
    fn append(self, bytes: &[u8]) -> io::Result<Self> {
        match self {
            Self::Kept(mut keeping) => {
                keeping.write_all(bytes)?;
                Ok(Self::Kept(keeping))
            }
            Self::Cached(recording) => {
                let appended = recording.append(bytes).map(Self::Cached);
                appended.ok_or_else(|| io::ErrorKind::StorageFull.into())
            }
        }
    }
}

/// Publishes a NAR that was received and verified as one that is kept.
pub(super) fn keep(found: &Found, keeping: Keeping, verified: Verified) {
    if let Err(reason) = keeping.finish(verified, found.narinfo.clone()) {
        found.upstream.not_kept(&found.narinfo, &reason);
    }
}

/// Gives all but the last piece to the readers of a transfer.
pub(super) struct Window<'a> {
    transfer: &'a Transfer,
    /// The last piece, if it is not in the copy.
    held: Option<Arc<[u8]>>,
    is_whole: bool,
    /// The copy; `None`: there is none, or writing has failed.
    copy: Option<NarCopy>,
    /// Length of the copy in bytes.
    copied_len: u64,
}

impl<'a> Window<'a> {
    /// `is_whole`: whether the whole file is received before the first response.
    pub(super) fn new(transfer: &'a Transfer, is_whole: bool, copy: Option<NarCopy>) -> Self {
        Self {
            transfer,
            held: None,
            is_whole,
            copy,
            copied_len: 0,
        }
    }

    /// Gives the last piece to the readers, because the NAR is right. Returns the copy that is to
    /// be kept.
    pub(super) fn finish(mut self) -> io::Result<Option<Keeping>> {
        let keeping = self.copy.take().and_then(|copy| {
            self.transfer.copied(copy.file(), self.copied_len);
            match copy {
                NarCopy::Kept(keeping) => Some(keeping),
                NarCopy::Cached(recording) => {
                    // Without capacity, the copy is only for those who read it now.
                    self.transfer.hold(recording.finish(None));
                    None
                }
            }
        });
        if let Some(last) = self.held.take() {
            self.transfer.add(last, self.is_whole)?;
        }
        Ok(keeping)
    }
}

impl Write for Window<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(copy) = self.copy.take() {
            // What was the last piece is not any longer.
            self.transfer.copied(copy.file(), self.copied_len);
            match copy.append(bytes) {
                Ok(copy) => {
                    self.copy = Some(copy);
                    self.copied_len += bytes.len() as u64;
                    return Ok(bytes.len());
                }
                Err(error) => self.transfer.copy_failed(&error),
            }
        }
        if let Some(before) = self.held.replace(bytes.into()) {
            self.transfer.add(before, self.is_whole)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
