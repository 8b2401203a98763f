//! Reads packs without the database: which files a pack has, and where.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;

use sha2::{Digest as _, Sha256};

use super::pack::{MAGIC, sha256_of};

/// Maximum length of a pack, in bytes: its files have at most 8 MiB, and each has a short line.
const LEN_MAX: u64 = 64 << 20;

/// Files of a pack: the key of each, and its place in the pack.
type Files = Vec<(String, Range<usize>)>;

/// Returns whether an object with this key is a pack.
pub(crate) fn is_pack(key: &str) -> bool {
    sha256_of(key).is_some()
}

/// Reads a pack, and checks its hash. Returns its bytes and the places of its files.
///
/// # Errors
///
/// If the pack cannot be read, has another hash than its key states, or is malformed.
pub(crate) fn read(key: &str, file: File) -> io::Result<(Vec<u8>, Files)> {
    let mut bytes = Vec::new();
    file.take(LEN_MAX).read_to_end(&mut bytes)?;
    let sha256: [u8; 32] = Sha256::digest(&bytes).into();
    let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text);
    if sha256_of(key) != Some(sha256) {
        return Err(invalid("it has wrong bytes"));
    }
    let files = files(&bytes).ok_or_else(|| invalid("it is malformed"))?;
    Ok((bytes, files))
}

/// Returns the places of the files in the bytes of a pack. `None`: it is malformed.
fn files(bytes: &[u8]) -> Option<Files> {
    let (magic, mut at) = line(bytes, 0)?;
    magic.strip_prefix(MAGIC)?;
    let mut files = Vec::new();
    while at < bytes.len() {
        let (head, start) = line(bytes, at)?;
        let (key, len) = head.split_once(' ')?;
        let end = start.checked_add(len.parse().ok()?)?;
        if end > bytes.len() {
            return None;
        }
        files.push((key.to_owned(), start..end));
        at = end;
    }
    Some(files)
}

/// Returns the line that begins at `at`, and the place after it.
fn line(bytes: &[u8], at: usize) -> Option<(&str, usize)> {
    let rest = bytes.get(at..)?;
    let len = rest.iter().position(|byte| *byte == b'\n')?;
    let text = std::str::from_utf8(rest.get(..len)?).ok()?;
    Some((text, at + len + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_packs() {
        let check = |text: &str, expected: Option<Files>| {
            assert_eq!(files(text.as_bytes()), expected, "{text:?}");
        };
        check("samovar pack 1 salt\n", Some(Vec::new()));
        let two = "samovar pack 1 salt\nnar/a 3\n\n\nxnar/b 0\n";
        let files = [("nar/a".to_owned(), 28..31), ("nar/b".to_owned(), 39..39)];
        check(two, Some(files.to_vec()));
        check("samovar pack 2 salt\n", None);
        check("samovar pack 1 salt\nnar/a 3\nab", None);
        check("samovar pack 1 salt\nnar/a 18446744073709551615\n", None);
        check("samovar pack 1 salt\nnar/a -1\n", None);
        check("", None);
    }
}
