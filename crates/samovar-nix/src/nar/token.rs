//! The constant strings of a NAR, with their framing.

/// Concatenates framed strings; see the grammar of [`nar`](crate::nar).
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

/// Returns the padding that follows a string of `len` bytes.
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
    use std::collections::BTreeSet;

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

    /// The grammar in the documentation of `nar` names exactly the strings that the encoder writes.
    #[test]
    fn documented_grammar_has_the_same_strings() {
        let grammar = include_str!("mod.rs").split("```").nth(1).unwrap();
        let documented: BTreeSet<&str> = grammar
            .split("str(\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap())
            .collect();
        let mut written = BTreeSet::new();
        for token in [
            MAGIC,
            FILE,
            EXECUTABLE_FILE,
            SYMLINK,
            DIRECTORY,
            ENTRY,
            NODE,
            CLOSE,
        ] {
            let mut rest = token;
            while let Some((len, after)) = rest.split_first_chunk() {
                let len = usize::try_from(u64::from_le_bytes(*len)).unwrap();
                written.insert(std::str::from_utf8(&after[..len]).unwrap());
                rest = &after[len.next_multiple_of(8)..];
            }
        }
        assert_eq!(documented, written);
    }

    #[test]
    fn padding_fills_up_to_eight() {
        for len in 0..32_u64 {
            let padded = len + u64::try_from(padding(len).len()).unwrap();
            assert_eq!(padded, len.next_multiple_of(8));
        }
    }
}
