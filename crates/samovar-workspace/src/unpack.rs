//! [`unpack`]: from a NAR to files.
//!
//! # Theory of operation
//!
//! The calling thread reads, hashes and parses the archive, and creates directories and links. It
//! hands files in batches to threads that create them. A file that exceeds a batch goes to one
//! thread in parts, so memory is bounded.
//!
//! Everything happens in a directory with a temporary name beside the destination. The directory
//! gets the destination's name when the archive is complete and verified, and is on stable storage.
//! After an error, the directory is removed. The left-overs of a process that was killed are
//! removed by the next call with a destination in the same directory.

use std::io::{self, Read};
use std::num::NonZero;
use std::path::Path;
use std::thread;

use samovar_nix::NarHash;

use crate::entries::Kind;
use crate::manifest::Manifest;
use crate::root::{Attributes, Root, set_open_attributes};

mod batch;
mod check;
mod error;
mod progress;
mod reader;
mod temporary;
mod writers;

pub use error::UnpackError;
pub use progress::Progress;
use reader::{Abort, Reader, SINGLE, Summary};
use temporary::{Destination, Temporary};
use writers::Writers;

/// Maximum default number of threads that write files. More only wait for each other.
const THREAD_COUNT_MAX: usize = 4;

/// Options of [`unpack`].
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// Expected hash of the NAR, from its narinfo. A manifest contains one, too.
    pub nar_hash: Option<NarHash>,
    /// Expected length of the NAR in bytes, from its narinfo.
    pub nar_size: Option<u64>,
    /// Maximum length of the NAR, in bytes. With a manifest, at most the length stated there.
    pub nar_size_max: u64,
    /// Maximum number of entries, without the root.
    pub entry_count_max: u64,
    /// Number of threads that write files. `None`: the number of processors, at most 4.
    pub thread_count: Option<NonZero<usize>>,
    /// Whether the files are written to stable storage before they appear at the destination.
    pub sync: bool,
    /// Counters to be updated.
    pub progress: Option<&'a Progress>,
}

/// Summary of an unpacked archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unpacked {
    /// Hash of the NAR.
    pub nar_hash: NarHash,
    /// Length of the NAR, in bytes.
    pub nar_size: u64,
    /// Number of regular files.
    pub file_count: u64,
    /// Number of directories, without the root.
    pub directory_count: u64,
    /// Number of symbolic links.
    pub symlink_count: u64,
    /// Sum of the sizes of all files, in bytes.
    pub content_size: u64,
}

impl Default for Options<'_> {
    /// No limits and no expected hash, with `sync`.
    fn default() -> Self {
        Self {
            nar_hash: None,
            nar_size: None,
            nar_size_max: u64::MAX,
            entry_count_max: u64::MAX,
            thread_count: None,
            sync: true,
            progress: None,
        }
    }
}

impl Unpacked {
    const fn empty() -> Self {
        Self {
            nar_hash: NarHash::from_bytes([0; 32]),
            nar_size: 0,
            file_count: 0,
            directory_count: 0,
            symlink_count: 0,
            content_size: 0,
        }
    }
}

/// Unpacks a NAR, which must not be compressed, at `into`.
///
/// The destination must not exist or be an empty directory, and its parent directory must exist. It
/// appears complete, or not at all.
///
/// With a manifest, the archive must agree with it in every entry, size, digest and the NAR hash.
/// Permissions and modification times are set from the manifest, also for directories and links.
///
/// Without a manifest, the files are for use and change outside of a store, as with
/// `nix-store --restore`: directories and executable files get the mode 0755, other files 0644,
/// both restricted by the umask, and the current time. The archive may be a single file or link.
///
/// # Errors
///
/// Any [`UnpackError`]. Nothing is left of the archive, except if only writing the parent directory
/// to stable storage has failed.
pub fn unpack(
    source: &mut dyn Read,
    manifest: Option<&Manifest>,
    into: &Path,
    options: &Options<'_>,
) -> Result<Unpacked, UnpackError> {
    let destination = Destination::open(into)?;
    let temporary = Temporary::create(&destination, reader::root_mode(manifest))?;
    let root = temporary.root();
    let summary = unpack_below(source, manifest, root, &destination, options)?;
    let found = summary.unpacked.nar_size;
    if let Some(expected) = options.nar_size.filter(|expected| *expected != found) {
        return Err(UnpackError::NarSize { expected, found });
    }
    let found = summary.unpacked.nar_hash;
    let manifest_hash = manifest.map(|manifest| manifest.nar_hash);
    for expected in [options.nar_hash, manifest_hash].into_iter().flatten() {
        if found != expected {
            return Err(UnpackError::NarHash { expected, found });
        }
    }
    if let Some(manifest) = manifest {
        set_directories(manifest, root, &destination)?;
    }
    if options.sync {
        let synced = root.sync();
        synced.map_err(|error| destination.error("sync", b"", error))?;
    }
    match summary.is_single {
        false => temporary.publish(options.sync)?,
        true => temporary.publish_entry(SINGLE, options.sync)?,
    }
    Ok(summary.unpacked)
}

/// Unpacks an archive below `root`, without the attributes of directories.
fn unpack_below(
    source: &mut dyn Read,
    manifest: Option<&Manifest>,
    root: &Root,
    destination: &Destination<'_>,
    options: &Options<'_>,
) -> Result<Summary, UnpackError> {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let count = options
        .thread_count
        .map_or(processors.min(THREAD_COUNT_MAX), NonZero::get);
    thread::scope(|scope| {
        let mut writers = Writers::start(scope, count, root, destination, options.progress)?;
        let reader = Reader::new(root, destination, manifest, options, &mut writers);
        let read = reader.run(source);
        let written = writers.finish();
        match read {
            Ok(summary) => written.map(|()| summary),
            Err(Abort::Error(error)) => Err(error),
            Err(Abort::Writer) => {
                written?;
                // Unreachable: a thread ends early only with an error.
                Err(UnpackError::Thread(io::ErrorKind::BrokenPipe.into()))
            }
        }
    })
}

/// Sets the attributes of all directories, the root last: a directory may be read-only, and
/// creating entries changes its time.
fn set_directories(
    manifest: &Manifest,
    root: &Root,
    destination: &Destination<'_>,
) -> Result<(), UnpackError> {
    for (index, entry) in manifest.entries.list().iter().enumerate().rev() {
        if !matches!(entry.kind, Kind::Directory { .. }) {
            continue;
        }
        let attributes = Attributes {
            mode: entry.mode,
            mtime: Some(entry.mtime),
        };
        let path = manifest.entries.path(index);
        let set = match index {
            0 => set_open_attributes(root, attributes),
            _ => root
                .directory(&path)
                .and_then(|directory| set_open_attributes(directory, attributes)),
        };
        set.map_err(|error| destination.error("set the mode or the time of", &path, error))?;
    }
    Ok(())
}
