//! The strings of a NAR that never change, framed beforehand.

/// Appends one framed string after another; see the grammar of [`nar`](crate::nar).
macro_rules! framed {
    ($($token:ident)*) => {
        concat!($(framed!(@ $token)),*).as_bytes()
    };
    (@ magic) => { "\x0d\0\0\0\0\0\0\0nix-archive-1\0\0\0" };
    (@ open) => { "\x01\0\0\0\0\0\0\0(\0\0\0\0\0\0\0" };
    (@ close) => { "\x01\0\0\0\0\0\0\0)\0\0\0\0\0\0\0" };
    (@ kind) => { "\x04\0\0\0\0\0\0\0type\0\0\0\0" };
    (@ regular) => { "\x07\0\0\0\0\0\0\0regular\0" };
    (@ executable) => { "\x0a\0\0\0\0\0\0\0executable\0\0\0\0\0\0" };
    (@ marker) => { "\0\0\0\0\0\0\0\0" };
    (@ contents) => { "\x08\0\0\0\0\0\0\0contents" };
    (@ symlink) => { "\x07\0\0\0\0\0\0\0symlink\0" };
    (@ target) => { "\x06\0\0\0\0\0\0\0target\0\0" };
    (@ directory) => { "\x09\0\0\0\0\0\0\0directory\0\0\0\0\0\0\0" };
    (@ entry) => { "\x05\0\0\0\0\0\0\0entry\0\0\0" };
    (@ name) => { "\x04\0\0\0\0\0\0\0name\0\0\0\0" };
    (@ node) => { "\x04\0\0\0\0\0\0\0node\0\0\0\0" };
}

pub(super) const MAGIC: &[u8] = framed!(magic);
pub(super) const FILE: &[u8] = framed!(open kind regular contents);
pub(super) const EXECUTABLE_FILE: &[u8] = framed!(open kind regular executable marker contents);
pub(super) const SYMLINK: &[u8] = framed!(open kind symlink target);
pub(super) const DIRECTORY: &[u8] = framed!(open kind directory);
pub(super) const ENTRY: &[u8] = framed!(entry open name);
pub(super) const NODE: &[u8] = framed!(node);
pub(super) const CLOSE: &[u8] = framed!(close);

/// The zeros that follow `len` bytes.
pub(super) const fn padding(len: u64) -> &'static [u8] {
    match len % 8 {
        1 => &[0; 7],
        2 => &[0; 6],
        3 => &[0; 5],
        4 => &[0; 4],
        5 => &[0; 3],
        6 => &[0; 2],
        7 => &[0; 1],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(framed: &[u8], strings: &[&str]) {
        let mut expected = Vec::new();
        for string in strings {
            let len = u64::try_from(string.len()).unwrap();
            expected.extend(len.to_le_bytes());
            expected.extend(string.as_bytes());
            expected.resize(expected.len().next_multiple_of(8), 0);
        }
        assert_eq!(framed, expected);
    }

    #[test]
    fn every_constant_is_the_framing_of_its_strings() {
        check(MAGIC, &["nix-archive-1"]);
        check(FILE, &["(", "type", "regular", "contents"]);
        check(
            EXECUTABLE_FILE,
            &["(", "type", "regular", "executable", "", "contents"],
        );
        check(SYMLINK, &["(", "type", "symlink", "target"]);
        check(DIRECTORY, &["(", "type", "directory"]);
        check(ENTRY, &["entry", "(", "name"]);
        check(NODE, &["node"]);
        check(CLOSE, &[")"]);
    }

    #[test]
    fn padding_fills_up_to_eight() {
        for len in 0..32_u64 {
            let padded = len + u64::try_from(padding(len).len()).unwrap();
            assert_eq!(padded, len.next_multiple_of(8));
        }
    }
}
