//! The mount points below a directory, which may be files.

use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// List of the mounts that this process sees.
///
/// # Source
///
/// Linux, `Documentation/filesystems/proc.rst`, section 3.5.
const MOUNTS: &str = "/proc/self/mountinfo";

/// Returns the mount points below a directory, relative to it. None without `/proc`.
pub(crate) fn below(root: &Path) -> HashSet<Vec<u8>> {
    parse(&fs::read(MOUNTS).unwrap_or_default(), root)
}

fn parse(text: &[u8], root: &Path) -> HashSet<Vec<u8>> {
    let mut root = root.as_os_str().as_bytes().to_vec();
    if !root.ends_with(b"/") {
        root.push(b'/');
    }
    let lines = text.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    let below = points.filter_map(|point| Some(unescaped(point).strip_prefix(&*root)?.to_vec()));
    below.filter(|path| !path.is_empty()).collect()
}

/// Replaces each `\NNN`, three octal digits, by the byte with this number.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = after
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match byte.filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_below_a_directory() {
        let text = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            23 22 0:5 / /w rw shared:1 - tmpfs tmpfs rw\n\
            24 23 0:6 /a /w/a\\040b\\134/\\303\\244 rw - tmpfs tmpfs rw\n\
            25 23 0:6 /f /w/f rw - tmpfs tmpfs rw\n\
            26 22 0:6 /f /wide rw - tmpfs tmpfs rw\n";
        let expected = ["a b\\/\u{e4}", "f"].map(|path| path.as_bytes().to_vec());
        assert_eq!(parse(text, Path::new("/w")), HashSet::from(expected));
        assert_eq!(parse(text, Path::new("/")).len(), 4);
        assert!(parse(b"\\\n1 2 3 4 \\9\\", Path::new("/")).is_empty());
    }
}
