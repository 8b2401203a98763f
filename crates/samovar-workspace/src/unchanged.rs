//! [`is_as_scanned`]: whether a file is unchanged since a scan, before it is deleted or replaced.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _};

use rustix::fs::{Dev, Stat};
use sha2::{Digest as _, Sha256};

use crate::{FileState, Kind, Mtime, Root, Scanned};

/// Files of which this command has removed or replaced a link, by device and inode. This has
/// changed the ctime of their other links.
#[derive(Debug, Default)]
pub struct Links(HashSet<(Dev, u64)>);

impl Links {
    /// If a file has several links, notes that one of them is about to be removed.
    pub fn change(&mut self, found: &Stat) {
        if found.st_nlink > 1 {
            self.0.insert((found.st_dev, found.st_ino));
        }
    }

    fn has(&self, found: &Stat) -> bool {
        self.0.contains(&(found.st_dev, found.st_ino))
    }
}

/// Returns whether a file or link is unchanged since the scan, before it is removed or replaced.
/// Reads the contents of a file if they may have changed although the metadata are the same: a
/// program has changed the file right before the scan, or the file system does not give new times
/// to mapped files.
pub fn is_as_scanned(root: &Root, scanned: &Scanned, index: usize, links: &mut Links) -> bool {
    let path = scanned.entries.path(index);
    let (Some(expected), Some(entry)) = (scanned.states.get(index), scanned.entries.get(index))
    else {
        return false;
    };
    let Ok(found) = root.stat(&path) else {
        return false;
    };
    let is_relinked = links.has(&found);
    // The time of the last change also shows a change of the mode.
    let expected = match is_relinked && permissions(&found) == entry.mode {
        true => &FileState {
            ctime: state(&found).ctime,
            ..*expected
        },
        false => expected,
    };
    let is_settled = scanned.is_notified && expected.is_settled(scanned) && !is_relinked;
    let is_same = has_state(root, &path, expected)
        && match entry.kind {
            Kind::File {
                digest: Some(digest),
                ..
            } if !is_settled => {
                let found = root.file(&path).and_then(digest_of);
                found.is_ok_and(|found| found == digest) && has_state(root, &path, expected)
            }
            _ => !is_relinked,
        };
    if is_same {
        links.change(&found);
    }
    is_same
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
    let found = root.stat(path);
    found.is_ok_and(|found| state(&found).is_same(expected))
}

/// Returns the state of a file, without its device.
fn state(found: &Stat) -> FileState {
    FileState {
        size: u64::try_from(found.st_size).unwrap_or_default(),
        mtime: time(found.st_mtime, found.st_mtime_nsec),
        ctime: time(found.st_ctime, found.st_ctime_nsec),
        inode: found.st_ino,
        device: 0,
    }
}

fn time(seconds: i64, nanoseconds: impl TryInto<u32>) -> Mtime {
    Mtime {
        seconds,
        nanoseconds: nanoseconds.try_into().unwrap_or_default(),
    }
}

fn permissions(found: &Stat) -> u16 {
    u16::try_from(found.st_mode & 0o777).unwrap_or_default()
}
