//! [`is_as_scanned`]: whether a file is unchanged since a scan, before it is deleted or replaced.

use std::fs::File;
use std::io::{self, Read as _};

use samovar_workspace::{FileState, Kind, Mtime, Root, Scanned};
use sha2::{Digest as _, Sha256};

/// Returns whether a file or link is unchanged since the scan. Reads the contents of a file that
/// may have other ones with the same metadata: a program has changed it right before the scan, or
/// the file system gives files that are mapped no new times.
pub(super) fn is_as_scanned(root: &Root, scanned: &Scanned, index: usize) -> bool {
    let path = scanned.entries.path(index);
    let (Some(expected), Some(entry)) = (scanned.states.get(index), scanned.entries.get(index))
    else {
        return false;
    };
    if !has_state(root, &path, expected) {
        return false;
    }
    match entry.kind {
        Kind::File {
            digest: Some(digest),
            ..
        } if !scanned.is_notified || !expected.is_settled(scanned) => {
            let found = root.file(&path).and_then(digest_of);
            found.is_ok_and(|found| found == digest) && has_state(root, &path, expected)
        }
        _ => true,
    }
}

fn digest_of(mut file: File) -> io::Result<[u8; 32]> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 128 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finalize().into()),
            count => hasher.update(&buffer[..count]),
        }
    }
}

fn has_state(root: &Root, path: &[u8], expected: &FileState) -> bool {
    root.stat(path).is_ok_and(|found| {
        let time = |seconds, nanoseconds| Mtime {
            seconds,
            nanoseconds,
        };
        let nanoseconds = |number: u64| u32::try_from(number).unwrap_or_default();
        u64::try_from(found.st_size).is_ok_and(|size| size == expected.size)
            && found.st_ino == expected.inode
            && time(found.st_mtime, nanoseconds(found.st_mtime_nsec)) == expected.mtime
            && time(found.st_ctime, nanoseconds(found.st_ctime_nsec)) == expected.ctime
    })
}
