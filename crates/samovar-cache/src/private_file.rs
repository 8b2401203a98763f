//! Reads files that contain secrets.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use zeroize::Zeroizing;

/// Reads a secret file of at most `len_max` bytes. Returns its text, which is zeroized when
/// dropped, and its mode.
///
/// # Errors
///
/// Errors of the file; `FileTooLarge`; `InvalidData` if it is not UTF-8.
pub(crate) fn read(path: &Path, len_max: u64) -> io::Result<(Zeroizing<String>, u32)> {
    // Without `NONBLOCK`, opening a pipe that has no writer would block forever, at a reload too.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if metadata.len() > len_max {
        let text = format!("it is larger than {} MiB", len_max >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    // The buffer must never be reallocated, because that would leave a copy of the secret in
    // memory.
    let capacity = usize::try_from(metadata.len()).unwrap_or(0) + 1;
    let mut text = Zeroizing::new(String::with_capacity(capacity));
    file.take(len_max).read_to_string(&mut text)?;
    Ok((text, metadata.mode()))
}
