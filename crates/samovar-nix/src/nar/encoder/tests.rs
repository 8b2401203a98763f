use super::*;

/// The NAR of a file with the contents `hello\n`, made by the real Nix.
const HELLO: &[u8] = include_bytes!("../../../../../testdata/nix/nar/hello.nar");

fn hello(out: &mut Vec<u8>) -> Encoder {
    let mut nar = Encoder::new();
    nar.begin(out).unwrap();
    assert_eq!(nar.file(out, false, 6), Ok(96));
    out.extend_from_slice(b"hello\n");
    nar.end_file(out).unwrap();
    nar
}

/// Creates an encoder after the magic, and another inside the root directory.
fn at_node_and_in_directory() -> (Encoder, Encoder) {
    let mut directory = Encoder::begun();
    directory.begin_directory(&mut Discard).unwrap();
    (Encoder::begun(), directory)
}

#[test]
fn a_file_to_the_byte() {
    let mut out = Vec::new();
    let nar = hello(&mut out);
    assert_eq!(out, HELLO);
    assert_eq!(nar.offset(), 120);
    assert_eq!(nar.finish(), Ok(120));
}

#[test]
fn without_writing_the_offsets_are_the_same() {
    let mut nar = Encoder::new();
    nar.begin(&mut Discard).unwrap();
    assert_eq!(nar.offset(), 24);
    assert_eq!(nar.file(&mut Discard, true, 7), Ok(128));
    assert_eq!(nar.offset(), 135);
    nar.end_file(&mut Discard).unwrap();
    assert_eq!(nar.finish(), Ok(152));
}

#[test]
fn every_step_in_the_wrong_place_is_refused_and_writes_nothing() {
    let mut out = Vec::new();
    let (node, directory) = at_node_and_in_directory();
    let mut in_file = node.clone();
    in_file.file(&mut Discard, false, 1).unwrap();
    let mut entry_end = directory.clone();
    entry_end.entry(&mut Discard, b"a").unwrap();
    entry_end.symlink(&mut Discard, b"t").unwrap();
    let mut done = node.clone();
    done.symlink(&mut Discard, b"t").unwrap();
    // Each state, and whether it allows the calls begin, file, end_file, symlink, begin_directory,
    // entry, end_entry, end_directory, finish.
    let table = [
        (
            Encoder::new(),
            [true, false, false, false, false, false, false, false, false],
        ),
        (
            node,
            [false, true, false, true, true, false, false, false, false],
        ),
        (
            in_file,
            [false, false, true, false, false, false, false, false, false],
        ),
        (
            directory,
            [false, false, false, false, false, true, false, true, false],
        ),
        (
            entry_end,
            [false, false, false, false, false, false, true, false, false],
        ),
        (
            done,
            [false, false, false, false, false, false, false, false, true],
        ),
    ];
    for (encoder, fits) in table {
        let mut results = Vec::new();
        let mut step = |call: &mut dyn FnMut(&mut Encoder, &mut Vec<u8>) -> bool| {
            let mut encoder = encoder.clone();
            let before = (encoder.offset(), out.len());
            let fit = call(&mut encoder, &mut out);
            assert!(fit || before == (encoder.offset(), out.len()));
            results.push(fit);
        };
        step(&mut |e, out| e.begin(out).is_ok());
        step(&mut |e, out| e.file(out, false, 0).is_ok());
        step(&mut |e, out| e.end_file(out).is_ok());
        step(&mut |e, out| e.symlink(out, b"t").is_ok());
        step(&mut |e, out| e.begin_directory(out).is_ok());
        step(&mut |e, out| e.entry(out, b"a").is_ok());
        step(&mut |e, out| e.end_entry(out).is_ok());
        step(&mut |e, out| e.end_directory(out).is_ok());
        step(&mut |e, _| e.clone().finish().is_ok());
        assert_eq!(results, fits, "{encoder:?}");
    }
}

#[test]
fn bad_names_and_targets_change_nothing() {
    let (mut node, mut directory) = at_node_and_in_directory();
    let mut out = Vec::new();
    directory.entry(&mut out, b"m").unwrap();
    directory.symlink(&mut out, b"t").unwrap();
    directory.end_entry(&mut out).unwrap();
    let len = out.len();
    assert_eq!(
        directory.entry(&mut out, b"m"),
        Err(EncodeError::Name(NameError::Order))
    );
    assert_eq!(
        directory.entry(&mut out, b"a"),
        Err(EncodeError::Name(NameError::Order))
    );
    assert_eq!(
        directory.entry(&mut out, b".."),
        Err(EncodeError::Name(NameError::Dots))
    );
    assert_eq!(
        node.symlink(&mut out, b""),
        Err(EncodeError::Target(TargetError::Empty))
    );
    assert_eq!(out.len(), len);
    assert_eq!(directory.entry(&mut out, b"n"), Ok(()));
    assert_eq!(node.symlink(&mut out, &[b'a'; 4095]), Ok(()));
}

#[test]
fn contents_may_end_at_the_limit_and_not_after() {
    let (mut nar, _) = at_node_and_in_directory();
    let most = CONTENTS_END_MAX - 128;
    for size in [u64::MAX, u64::MAX - 128, 1 << 63, most + 1] {
        assert_eq!(
            nar.file(&mut Discard, true, size),
            Err(EncodeError::TooLong)
        );
    }
    assert_eq!(nar.offset(), 24);
    assert_eq!(nar.file(&mut Discard, true, most), Ok(128));
    nar.end_file(&mut Discard).unwrap();
    assert_eq!(nar.finish(), Ok(CONTENTS_END_MAX + 16));
}

#[test]
fn a_deep_tree_needs_no_recursion() {
    let mut nar = Encoder::begun();
    for _ in 0..100_000 {
        nar.begin_directory(&mut Discard).unwrap();
        nar.entry(&mut Discard, b"d").unwrap();
    }
    nar.symlink(&mut Discard, b"t").unwrap();
    for _ in 0..100_000 {
        nar.end_entry(&mut Discard).unwrap();
        nar.end_directory(&mut Discard).unwrap();
    }
    assert!(nar.finish().is_ok());
}

#[test]
fn a_clone_goes_on_from_the_same_offset() {
    let mut out = Vec::new();
    let mut nar = Encoder::new();
    nar.begin(&mut out).unwrap();
    let bookmark = nar.clone();
    let tail = |mut nar: Encoder| {
        let mut out = Vec::new();
        nar.symlink(&mut out, b"t").unwrap();
        (out, nar.finish())
    };
    assert_eq!(tail(nar), tail(bookmark));
}

#[test]
fn resumed_inside_a_directory_it_goes_on_as_before() {
    let mut out = Vec::new();
    let mut nar = Encoder::new();
    nar.begin(&mut out).unwrap();
    nar.begin_directory(&mut out).unwrap();
    nar.entry(&mut out, b"d").unwrap();
    nar.begin_directory(&mut out).unwrap();
    let mut resumed = Encoder::resume(nar.offset(), [&b"d"[..]]).unwrap();
    let mut resumed_out = out.clone();
    for (nar, out) in [(&mut nar, &mut out), (&mut resumed, &mut resumed_out)] {
        nar.entry(out, b"l").unwrap();
        nar.symlink(out, b"t").unwrap();
        nar.end_entry(out).unwrap();
        nar.end_directory(out).unwrap();
        nar.end_entry(out).unwrap();
        // The encoder still knows the earlier names, and refuses a duplicate.
        assert!(matches!(nar.entry(out, b"d"), Err(EncodeError::Name(_))));
        nar.entry(out, b"e").unwrap();
        nar.symlink(out, b"t").unwrap();
        nar.end_entry(out).unwrap();
        nar.end_directory(out).unwrap();
    }
    assert_eq!(resumed_out, out);
    assert_eq!(resumed.finish(), nar.finish());
    for name in [&b""[..], b"..", b"a/b"] {
        let refused = Encoder::resume(100, [name]);
        assert!(matches!(refused, Err(EncodeError::Name(_))));
    }
}
