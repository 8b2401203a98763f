//! Malformed NARs are refused.

use samovar_nix::nar::{DecodeErrorKind, NameError};

use super::*;

/// Encodes strings as in a NAR: length, bytes, padding.
fn strings(strings: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for string in strings {
        bytes.extend((string.len() as u64).to_le_bytes());
        bytes.extend(*string);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    bytes
}

/// Returns the NAR of a directory that has an empty file of each name.
fn names(names: &[&[u8]]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = vec![b"nix-archive-1", b"(", b"type", b"directory"];
    for name in names {
        parts.extend([&b"entry"[..], b"(", b"name", name, b"node"]);
        parts.extend([&b"("[..], b"type", b"regular", b"contents", b"", b")", b")"]);
    }
    parts.push(b")");
    strings(&parts)
}

#[track_caller]
fn check_refused(nar: &[u8], expected: Option<DecodeErrorKind>) {
    for compression in [Compression::None, Compression::Zstd, Compression::Xz] {
        match run(compression, &compress(compression, nar)) {
            Err(Refusal::NotANar(error)) => {
                assert!(expected.is_none_or(|kind| kind == error.kind), "{error}");
            }
            result => panic!("{result:?}"),
        }
    }
}

#[test]
fn names_that_leave_the_directory_are_refused() {
    check(
        Compression::None,
        &names(&[b"a", b"b"]),
        &names(&[b"a", b"b"]),
    );
    for (wrong, error) in [
        (&[&b"a/b"[..]][..], NameError::Slash),
        (&[b"/"], NameError::Slash),
        (&[b".."], NameError::Dots),
        (&[b"."], NameError::Dots),
        (&[b""], NameError::Empty),
        (&[b"a\0b"], NameError::Nul),
        (&[b"b", b"a"], NameError::Order),
        (&[b"a", b"a"], NameError::Order),
        (&[&[b'a'; 256]], NameError::TooLong),
    ] {
        check_refused(&names(wrong), Some(DecodeErrorKind::Name(error)));
    }
}

#[test]
fn lengths_near_the_greatest_number_are_refused() {
    let nar = file_nar(b"12345678");
    let at = nar.len() - 32;
    assert_eq!(nar[at..at + 8], 8_u64.to_le_bytes());
    for len in [u64::MAX, u64::MAX - 7, 1 << 63, (1 << 62) + 1] {
        let mut wrong = nar.clone();
        wrong[at..at + 8].copy_from_slice(&len.to_le_bytes());
        check_refused(&wrong, Some(DecodeErrorKind::TooLong));
        // Replace each earlier group of eight bytes, which includes the lengths of all other
        // strings.
        for at in (0..at).step_by(8) {
            let mut wrong = nar.clone();
            wrong[at..at + 8].copy_from_slice(&len.to_le_bytes());
            check_refused(&wrong, None);
        }
    }
    // The format allows contents of this length, but the limit is lower.
    let mut wrong = nar;
    wrong[at..at + 8].copy_from_slice(&(1_u64 << 61).to_le_bytes());
    let limit = Limits::default().nar_size_max;
    assert_eq!(
        run(Compression::None, &wrong).unwrap_err(),
        Refusal::TooLarge { limit }
    );
}

#[test]
fn other_content_is_refused() {
    for content in [
        &b""[..],
        b"x",
        b"<html><body>502 Bad Gateway</body></html>",
        b"nix-archive-1",
        &[0; 1_000],
        &strings(&[b"nix-archive-1"]),
        &strings(&[b"nix-archive-2", b"("]),
        &strings(&[b"nix-archive-1", b"(", b"type", b"fifo", b")"]),
    ] {
        check_refused_unless_truncated(content);
    }
}

fn check_refused_unless_truncated(content: &[u8]) {
    for compression in COMPRESSIONS {
        let refusal = run(compression, &compress(compression, content)).unwrap_err();
        assert!(
            matches!(refusal, Refusal::NotANar(_)),
            "{compression:?} {refusal:?}"
        );
        let sentence = refusal.to_string();
        assert!(sentence.contains("not a NAR: at byte "), "{sentence}");
    }
}

#[test]
fn deep_nars_are_refused() {
    let nar = |depth: usize| {
        let mut parts: Vec<&[u8]> = vec![b"nix-archive-1"];
        for _ in 0..depth {
            parts.extend([
                &b"("[..],
                b"type",
                b"directory",
                b"entry",
                b"(",
                b"name",
                b"a",
            ]);
            parts.push(b"node");
        }
        parts.extend([&b"("[..], b"type", b"symlink", b"target", b"t", b")"]);
        parts.resize(parts.len() + depth * 2, b")");
        strings(&parts)
    };
    check(Compression::None, &nar(63), &nar(63));
    check_refused(&nar(64), Some(DecodeErrorKind::Depth));
    check_refused(&nar(10_000), Some(DecodeErrorKind::Depth));
}
