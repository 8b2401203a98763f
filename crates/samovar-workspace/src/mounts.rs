//! [`Mount`]: the mounted file systems, as `/proc/self/mountinfo` lists them.
//!
//! # Source
//!
//! Linux, `Documentation/filesystems/proc.rst`, section 3.5.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// A mounted file system.
#[derive(Debug)]
pub struct Mount {
    /// Number of the mount, unique among all mount namespaces.
    pub id: u64,
    /// Numbers of the device, as `0:40`.
    pub device: String,
    /// Absolute path of the directory on which it is mounted.
    pub point: PathBuf,
    /// Name of the device, or what the program that mounted it gave instead.
    pub source: OsString,
}

/// Returns the mounts that this process sees. Later ones hide earlier ones on the same directory.
///
/// # Errors
///
/// `/proc` is not mounted.
pub fn mounts() -> io::Result<Vec<Mount>> {
    mounts_of(Path::new("/proc/self"))
}

/// Returns the mounts that a process sees. `process`: its directory in `/proc`.
///
/// # Errors
///
/// The process has ended, or this one may not examine it.
pub fn mounts_of(process: &Path) -> io::Result<Vec<Mount>> {
    Ok(parse(&fs::read(process.join("mountinfo"))?))
}

/// Returns the mount points below a directory, which may be files, as paths relative to it. Without
/// `/proc`, there are none.
pub(crate) fn points_below(root: &Path) -> HashSet<Vec<u8>> {
    below(&mounts().unwrap_or_default(), root)
}

fn below(mounts: &[Mount], root: &Path) -> HashSet<Vec<u8>> {
    let points = mounts.iter().map(|mount| mount.point.strip_prefix(root));
    let below = points.flatten().map(|path| path.as_os_str().as_bytes());
    below
        .filter(|path| !path.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n')
        .filter_map(parse_line)
        .collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    // The number of words before the dash varies.
    let end = words.iter().position(|word| *word == b"-")?;
    let text = |index: usize| std::str::from_utf8(words.get(index)?).ok();
    Some(Mount {
        id: text(0)?.parse().ok()?,
        device: text(2)?.to_owned(),
        point: decoded(words.get(4)?).into(),
        source: decoded(words.get(end + 2)?),
    })
}

/// Decodes a word, in which white space is `\` and three octal digits.
fn decoded(word: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        let digits = after.get(..3).filter(|_| *byte == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(decoded) => {
                out.push(decoded);
                rest = after.get(3..).unwrap_or_default();
            }
            None => out.push(*byte),
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_in_their_order_with_any_bytes() {
        let text = b"22 1 0:20 / / rw - ext4 /dev/sda rw\n\
              40 22 0:40 / /a\\040b rw,nosuid shared:1 master:2 - fuse samovar:x-app ro,user_id=0\n\
              41 22 0:41 / /\xff rw - tmpfs none rw\n\
              42 22 0:42 / /c rw - fuse.samovar samovar:y rw\n\
              damaged\n";
        let found = parse(text);
        assert_eq!((found[1].id, &*found[1].device), (40, "0:40"));
        let found: Vec<_> = found
            .into_iter()
            .map(|one| (one.point.into_os_string().into_vec(), one.source))
            .collect();
        let expected: [(&[u8], &str); 4] = [
            (b"/", "/dev/sda"),
            (b"/a b", "samovar:x-app"),
            (b"/\xff", "none"),
            (b"/c", "samovar:y"),
        ];
        assert_eq!(
            found,
            expected.map(|(point, source)| (point.to_vec(), source.into()))
        );
    }

    #[test]
    fn mount_points_below_a_directory() {
        let text = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            23 22 0:5 / /w rw shared:1 - tmpfs tmpfs rw\n\
            24 23 0:6 /a /w/a\\040b\\134/\\303\\244 rw - tmpfs tmpfs rw\n\
            25 23 0:6 /f /w/f rw - tmpfs tmpfs rw\n\
            26 22 0:6 /f /wide rw - tmpfs tmpfs rw\n";
        let mounts = parse(text);
        let expected = ["a b\\/\u{e4}", "f"].map(|path| path.as_bytes().to_vec());
        assert_eq!(below(&mounts, Path::new("/w")), HashSet::from(expected));
        assert_eq!(below(&mounts, Path::new("/")).len(), 4);
        assert!(parse(b"\\\n1 2 3 4 \\9\\").is_empty());
    }

    #[test]
    fn words_are_decoded() {
        assert_eq!(decoded(b"a\\040b\\134\\012"), "a b\\\n");
        assert_eq!(decoded(b"\\04"), "\\04");
        assert_eq!(decoded(b"\\999"), "\\999");
    }
}
