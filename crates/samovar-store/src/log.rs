//! Build logs.
//!
//! # Location
//!
//! `<log dir>/drvs/<first two characters of the base name>/<the rest>`; in very old stores
//! `<log dir>/drvs/<base name>`. Both are plain text, or compressed with the suffix `.bz2`.
//!
//! # Quirks
//!
//! A log exists whether or not its derivation is valid. It may still be growing: then a `.bz2` ends
//! inside a block, and its text ends with the last complete block. Logs hold arbitrary bytes.
//!
//! A log must be a regular file. Unlike Nix, which opens any file of that name, this module ignores
//! symbolic links, devices and pipes. Directories on the way may be symbolic links.
//!
//! # Source
//!
//! Nix 2.36, `src/libstore/local-fs-store.cc`, `getBuildLogExact`.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use bzip2::read::MultiBzDecoder;
use rustix::fs::OFlags;
use rustix::io::Errno;
use samovar_nix::StorePath;

use crate::error::StoreError;

/// A build log, open for reading; [`Read`] yields its text.
pub struct Log {
    text: Text,
    file_len: u64,
    /// Bytes of text read so far.
    read_len: u64,
}

enum Text {
    /// An uncompressed log, limited to its length when opened.
    Plain(io::Take<File>),
    Bzip2(Box<MultiBzDecoder<File>>),
}

impl Log {
    fn new(file: File, is_bzip2: bool) -> io::Result<Self> {
        let file_len = file.metadata()?.len();
        let text = if is_bzip2 {
            Text::Bzip2(Box::new(MultiBzDecoder::new(file)))
        } else {
            Text::Plain(file.take(file_len))
        };
        Ok(Self {
            text,
            file_len,
            read_len: 0,
        })
    }

    /// Converts the log to its compressed file and the length of that file, for clients that accept
    /// bzip2.
    ///
    /// # Errors
    ///
    /// The log itself, unchanged, if it is not compressed or was partly read.
    pub fn into_bzip2(self) -> Result<(File, u64), Self> {
        match self.text {
            Text::Bzip2(decoder) if self.read_len == 0 => Ok((decoder.into_inner(), self.file_len)),
            text => Err(Self { text, ..self }),
        }
    }

    /// Returns whether the file is compressed with bzip2.
    #[must_use]
    pub fn is_bzip2(&self) -> bool {
        matches!(self.text, Text::Bzip2(_))
    }
}

impl Read for Log {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = match &mut self.text {
            Text::Plain(file) => file.read(buffer)?,
            Text::Bzip2(decoder) => match decoder.read(buffer) {
                // While the build is running, the compressed stream is truncated: count that as its
                // end.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
                other => other?,
            },
        };
        self.read_len += len as u64;
        Ok(len)
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("is_bzip2", &self.is_bzip2())
            .field("file_len", &self.file_len)
            .field("read_len", &self.read_len)
            .finish_non_exhaustive()
    }
}

/// Opens the log of a path; returns `None` if there is none.
pub(crate) fn open(log_dir: &Path, path: &StorePath) -> Result<Option<Log>, StoreError> {
    let base_name = path.base_name();
    let (first, rest) = base_name.split_at(2);
    let drvs = log_dir.join("drvs");
    let nested = drvs.join(first);
    for (dir, name) in [(&nested, rest), (&drvs, base_name)] {
        for suffix in ["", ".bz2"] {
            if let Some(log) = open_file(&dir.join(format!("{name}{suffix}")), suffix == ".bz2")? {
                return Ok(Some(log));
            }
        }
    }
    Ok(None)
}

fn open_file(path: &Path, is_bzip2: bool) -> Result<Option<Log>, StoreError> {
    // Without NONBLOCK, opening a FIFO would block forever.
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let flags = flags.bits().cast_signed();
    let opened = File::options().read(true).custom_flags(flags).open(path);
    let log = opened.and_then(|file| {
        if file.metadata()?.is_file() {
            Log::new(file, is_bzip2).map(Some)
        } else {
            Ok(None)
        }
    });
    match log {
        Ok(log) => Ok(log),
        Err(error) if is_no_file(&error, path) => Ok(None),
        Err(error) => Err(StoreError::io("reading a build log", &error)),
    }
}

/// Returns whether the error means that there is no regular file at `path`.
fn is_no_file(error: &io::Error, path: &Path) -> bool {
    match Errno::from_io_error(error) {
        Some(Errno::NOENT | Errno::NOTDIR | Errno::NXIO | Errno::NODEV) => true,
        // Distinguishes a symbolic link in place of the file from a loop among the directories,
        // which is a failure.
        Some(Errno::LOOP) => path.symlink_metadata().is_ok(),
        _ => false,
    }
}
