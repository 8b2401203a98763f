use super::*;

const MAGIC: &str = "nix-archive-1";

/// Encodes NAR strings: length, bytes and padding.
fn strings(strings: &[&[u8]]) -> Vec<u8> {
    let mut nar = Vec::new();
    for string in strings {
        nar.extend(u64::try_from(string.len()).unwrap().to_le_bytes());
        nar.extend_from_slice(string);
        nar.resize(nar.len().next_multiple_of(8), 0);
    }
    nar
}

fn words(text: &str) -> Vec<u8> {
    let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
    strings(&words)
}

/// Decodes a NAR in one piece; returns its length.
fn read(nar: &[u8], mut decoder: Decoder) -> Result<u64, DecodeError> {
    let mut input = nar;
    while decoder.decode(&mut input)?.is_some() {}
    decoder.finish()
}

#[track_caller]
fn check_accepted(nar: &[u8]) {
    assert_eq!(read(nar, Decoder::new()), Ok(nar.len() as u64));
}

#[track_caller]
fn check_refused(nar: &[u8], kind: DecodeErrorKind) {
    assert_eq!(
        read(nar, Decoder::new()).map_err(|error| error.kind),
        Err(kind)
    );
    // The error must be the same for input byte by byte, and in later calls.
    let mut decoder = Decoder::new();
    let mut error = None;
    for byte in nar {
        let mut input = std::slice::from_ref(byte);
        while let Some(result) = decoder.decode(&mut input).transpose() {
            error = error.or(result.err());
            if error.is_some() {
                break;
            }
        }
    }
    let last = decoder.finish().unwrap_err();
    assert_eq!((last.kind, error.unwrap_or(last)), (kind, last));
}

#[track_caller]
fn check_token(text: &str, expected: &'static str) {
    check_refused(&words(text), DecodeErrorKind::Token { expected });
}

/// Returns the NAR of a directory with symbolic links of these names.
fn directory(names: &[&[u8]]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = vec![MAGIC.as_bytes(), b"(", b"type", b"directory"];
    for name in names {
        parts.extend([b"entry" as &[u8], b"(", b"name", name, b"node"]);
        parts.extend([
            b"(" as &[u8],
            b"type",
            b"symlink",
            b"target",
            b"t",
            b")",
            b")",
        ]);
    }
    parts.push(b")");
    strings(&parts)
}

fn symlink(target: &[u8]) -> Vec<u8> {
    strings(&[
        MAGIC.as_bytes(),
        b"(",
        b"type",
        b"symlink",
        b"target",
        target,
        b")",
    ])
}

fn nested(depth: usize) -> Vec<u8> {
    let mut text = format!("{MAGIC} ( type directory");
    for _ in 0..depth {
        text.push_str(" entry ( name d node ( type directory");
    }
    for _ in 0..depth {
        text.push_str(" ) )");
    }
    words(&(text + " )"))
}

#[test]
fn accepts_every_kind_of_node() {
    check_accepted(&words("nix-archive-1 ( type regular contents hello )"));
    check_accepted(&words("nix-archive-1 ( type regular contents  )"));
    check_accepted(&words(
        "nix-archive-1 ( type regular executable  contents hello )",
    ));
    check_accepted(&symlink(b"../x"));
    check_accepted(&directory(&[]));
    check_accepted(&directory(&[
        b"A", b"a", b"a b", b"a-b", b"ab", b"\x7f", b"\xff",
    ]));
}

#[test]
fn refuses_wrong_words_in_every_place() {
    check_token("nix-archive-2 ( type directory )", "\"nix-archive-1\"");
    check_token("nix-archive-11 ( type directory )", "\"nix-archive-1\"");
    check_token("nix-archive-1 )", "\"(\"");
    check_token("nix-archive-1 ( kind regular", "\"type\"");
    check_token(
        "nix-archive-1 ( type fifo",
        "\"regular\", \"symlink\" or \"directory\"",
    );
    let contents_or_executable = "\"executable\" or \"contents\"";
    check_token("nix-archive-1 ( type regular )", contents_or_executable);
    check_token("nix-archive-1 ( type regular type", contents_or_executable);
    check_token("nix-archive-1 ( type regular executable  )", "\"contents\"");
    check_token(
        "nix-archive-1 ( type regular executable  executable  ",
        "\"contents\"",
    );
    check_token(
        "nix-archive-1 ( type regular contents a contents b )",
        "\")\"",
    );
    check_token(
        "nix-archive-1 ( type regular contents a executable  )",
        "\")\"",
    );
    check_token("nix-archive-1 ( type symlink )", "\"target\"");
    check_token("nix-archive-1 ( type symlink target t target t )", "\")\"");
    check_token("nix-archive-1 ( type directory type", "\"entry\" or \")\"");
    check_token("nix-archive-1 ( type directory entry )", "\"(\"");
    check_token("nix-archive-1 ( type directory entry ( node", "\"name\"");
    check_token(
        "nix-archive-1 ( type directory entry ( name a name",
        "\"node\"",
    );
    check_token(
        "nix-archive-1 ( type directory entry ( name a node )",
        "\"(\"",
    );
    let twice = "nix-archive-1 ( type directory entry ( name a node ( type directory ) node";
    check_token(twice, "\")\"");
}

#[test]
fn refuses_a_marker_with_a_value() {
    let nar = words("nix-archive-1 ( type regular executable x contents a )");
    check_refused(&nar, DecodeErrorKind::ExecutableMarker);
}

#[test]
fn refuses_bad_names() {
    let long = [b'a'; 256];
    for (names, error) in [
        (&[b"" as &[u8]] as &[&[u8]], NameError::Empty),
        (&[b"."], NameError::Dots),
        (&[b".."], NameError::Dots),
        (&[b"a/b"], NameError::Slash),
        (&[b"a\0b"], NameError::Nul),
        (&[&long], NameError::TooLong),
        (&[b"a", b"a"], NameError::Order),
        (&[b"b", b"a"], NameError::Order),
        (&[b"ab", b"a"], NameError::Order),
        (&[b"a", b"B"], NameError::Order),
        (&[b"\x80", b"\x7f"], NameError::Order),
    ] {
        check_refused(&directory(names), DecodeErrorKind::Name(error));
    }
    check_accepted(&directory(&[&long[1..]]));
}

#[test]
fn refuses_bad_targets() {
    check_refused(&symlink(b""), DecodeErrorKind::Target(TargetError::Empty));
    check_refused(&symlink(b"a\0"), DecodeErrorKind::Target(TargetError::Nul));
    check_refused(
        &symlink(&[b'a'; 4096]),
        DecodeErrorKind::Target(TargetError::TooLong),
    );
    check_accepted(&symlink(&[b'a'; 4095]));
}

#[test]
fn refuses_padding_that_is_not_zero() {
    let nar = words("nix-archive-1 ( type regular contents hello )");
    // Cut after the magic, after "(", after the contents, and after the last ")".
    for place in [21, 23, 33, 39, 101, 103, 113, 119] {
        let mut nar = nar.clone();
        nar[place] = 1;
        check_refused(&nar, DecodeErrorKind::Padding);
    }
}

#[test]
fn refuses_depth_at_the_limit() {
    check_accepted(&nested(63));
    check_refused(&nested(64), DecodeErrorKind::Depth);
    assert!(read(&nested(64), Decoder::with_depth_max(65)).is_ok());
    assert!(read(&nested(5_000), Decoder::with_depth_max(usize::MAX)).is_ok());
    assert!(read(&nested(0), Decoder::with_depth_max(1)).is_ok());
    assert!(read(&nested(1), Decoder::with_depth_max(1)).is_err());
    assert!(read(&symlink(b"t"), Decoder::with_depth_max(0)).is_ok());
}

#[test]
fn huge_lengths_are_refused_before_memory_is_set_aside() {
    let file = words("nix-archive-1 ( type regular contents");
    for size in [u64::MAX, u64::MAX - 7, 1 << 63, CONTENTS_END_MAX - 95] {
        let nar = [file.as_slice(), &size.to_le_bytes()].concat();
        check_refused(&nar, DecodeErrorKind::TooLong);
    }
    let just = [file.as_slice(), &(CONTENTS_END_MAX - 96).to_le_bytes()].concat();
    check_refused(&just, DecodeErrorKind::Truncated);

    let name = words("nix-archive-1 ( type directory entry ( name");
    let target = words("nix-archive-1 ( type symlink target");
    for len in [u64::MAX, u64::MAX - 7, 1 << 63, 1 << 32, 4096] {
        let len = len.to_le_bytes();
        let name = [name.as_slice(), &len].concat();
        check_refused(&name, DecodeErrorKind::Name(NameError::TooLong));
        let target = [target.as_slice(), &len].concat();
        check_refused(&target, DecodeErrorKind::Target(TargetError::TooLong));
        check_refused(
            &len,
            DecodeErrorKind::Token {
                expected: "\"nix-archive-1\"",
            },
        );
    }
}

#[test]
fn every_prefix_is_truncated() {
    let nar = words(
        "nix-archive-1 ( type directory entry ( name a node ( type regular contents hello ) ) )",
    );
    for len in 0..nar.len() {
        check_refused(&nar[..len], DecodeErrorKind::Truncated);
    }
    check_accepted(&nar);
}

#[test]
fn what_follows_is_left_to_the_caller() {
    let nar = [symlink(b"t"), b"more".to_vec()].concat();
    let mut input = nar.as_slice();
    let mut decoder = Decoder::new();
    while decoder.decode(&mut input).unwrap().is_some() {}
    assert_eq!(input, b"more");
    assert!(decoder.is_done());
    assert_eq!(decoder.decode(&mut input), Ok(None));
    assert_eq!(decoder.finish(), Ok(nar.len() as u64 - 4));
}

#[test]
fn errors_tell_where_the_string_begins() {
    let nar = words("nix-archive-1 ( type regular executable x contents a )");
    assert_eq!(
        read(&nar, Decoder::new()).unwrap_err().offset,
        24 + 16 + 16 + 16 + 24
    );
    let nar = words("nix-archive-1 ( type regular contents hello !");
    assert_eq!(read(&nar, Decoder::new()).unwrap_err().offset, 96 + 8);
    let mut nar = words("nix-archive-1 ( type regular contents hello )");
    nar[101] = 1;
    assert_eq!(read(&nar, Decoder::new()).unwrap_err().offset, 96 + 5);
}

#[test]
fn events_in_order() {
    let nar = words(
        "nix-archive-1 ( type directory \
         entry ( name a node ( type regular executable  contents hello ) ) \
         entry ( name b node ( type symlink target t ) ) )",
    );
    let mut input = nar.as_slice();
    let mut decoder = Decoder::new();
    let mut trace = Vec::new();
    while let Some(event) = decoder.decode(&mut input).unwrap() {
        trace.push(format!("{event:?}"));
    }
    assert_eq!(
        trace,
        [
            "DirectoryBegin",
            "Entry { name: [97] }",
            "File { executable: true, size: 5, offset: 264 }",
            "Contents([104, 101, 108, 108, 111])",
            "FileEnd",
            "EntryEnd",
            "Entry { name: [98] }",
            "Symlink { target: [116] }",
            "EntryEnd",
            "DirectoryEnd",
        ]
    );
}
