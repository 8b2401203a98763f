use super::*;

fn example() -> Entries {
    let time = Mtime::default();
    let mut tree = Builder::new(0o755, time);
    tree.enter(b"a", 0o700, time).unwrap();
    tree.file(b"x", 0o755, time, 3, None).unwrap();
    assert!(!tree.leave().unwrap());
    tree.file(b"b", 0o644, time, 6, None).unwrap();
    tree.symlink(b"c", time, b"a/x").unwrap();
    assert!(tree.leave().unwrap());
    tree.finish().unwrap()
}

#[test]
fn offsets_are_those_of_the_nar() {
    let tree = example();
    let mut nar: Vec<u8> = Vec::new();
    let mut framing = tree.framing();
    let mut files = Vec::new();
    while let Some(index) = framing.next_file(&mut nar).unwrap() {
        let Kind::File { size, offset, .. } = tree.list()[index].kind else {
            panic!("{index} is no file");
        };
        assert_eq!(nar.len() as u64, offset);
        nar.resize(nar.len() + usize::try_from(size).unwrap(), b'z');
        files.push(tree.path(index));
    }
    assert_eq!(files, [&b"a/x"[..], b"b"]);
    assert_eq!(nar.len() as u64, tree.nar_size());
    let mut decoder = samovar_nix::nar::Decoder::new();
    let mut input = &nar[..];
    while !decoder.is_done() {
        decoder.decode(&mut input).unwrap();
    }
    assert_eq!(decoder.finish().unwrap(), tree.nar_size());
}

#[test]
fn a_root_may_be_a_file_or_a_link() {
    let time = Mtime::default();
    let file = Entries::of_file(0o755, time, 3, None).unwrap();
    let link = Entries::of_symlink(time, b"x").unwrap();
    for (entries, content) in [(file, &b"abc"[..]), (link, b"")] {
        let mut nar: Vec<u8> = Vec::new();
        let mut framing = entries.framing();
        while let Some(index) = framing.next_file(&mut nar).unwrap() {
            assert_eq!(index, 0);
            nar.extend_from_slice(content);
        }
        assert_eq!(nar.len() as u64, entries.nar_size());
        let mut decoder = samovar_nix::nar::Decoder::new();
        let mut input = &nar[..];
        while !decoder.is_done() {
            decoder.decode(&mut input).unwrap();
        }
        assert!(input.is_empty());
    }
    assert!(Entries::of_symlink(time, b"").is_err());
}

#[test]
fn children_of_a_directory() {
    let tree = example();
    assert_eq!(tree.children(0).collect::<Vec<_>>(), [1, 3, 4]);
    assert_eq!(tree.children(1).collect::<Vec<_>>(), [2]);
    assert_eq!(tree.children(2).count(), 0);
    assert_eq!(tree.children(99).count(), 0);
}

#[test]
fn entries_are_found_by_path() {
    let tree = example();
    for index in 0..tree.list().len() {
        assert_eq!(tree.find(&tree.path(index)), Some(index));
    }
    for path in ["x", "a/", "/a", "a//x", "a/y", "b/x", "c/x", "."] {
        assert_eq!(tree.find(path.as_bytes()), None, "{path}");
    }
}

#[test]
fn data_is_compared_without_names_and_modes() {
    let tree = example();
    let list = tree.list();
    assert!(list[0].has_same_data(&list[1]));
    assert!(list[4].has_same_data(&list[4]));
    assert!(list[2].has_same_type(&list[3]));
    assert!(!list[2].has_same_data(&list[2]), "without a digest");
    assert!(!list[3].has_same_type(&list[4]));
}

#[test]
fn depth_is_limited_like_in_nix() {
    let time = Mtime::default();
    let mut tree = Builder::new(0o755, time);
    for _ in 0..DEPTH_MAX - 2 {
        tree.enter(b"d", 0o755, time).unwrap();
    }
    tree.clone_at().file(b"f", 0o644, time, 0, None).unwrap();
    tree.enter(b"d", 0o755, time).unwrap();
    assert_eq!(
        tree.file(b"f", 0o644, time, 0, None),
        Err(TreeError::TooDeep)
    );
}

impl Builder {
    fn clone_at(&self) -> Self {
        Self {
            list: self.list.clone(),
            open: self.open.clone(),
            encoder: self.encoder.clone(),
        }
    }
}

#[test]
fn times_have_one_text() {
    for text in ["0", "-1", "1700000000", "1.000000001", "-1.999999999"] {
        assert_eq!(Mtime::parse(text).unwrap().to_string(), text);
    }
    for wrong in [
        "",
        "-",
        "-0",
        "+1",
        "01",
        "1.",
        "1.0",
        "1.000000000",
        "1.1",
        "x",
        "1.00000000x",
        "9223372036854775808",
    ] {
        assert_eq!(Mtime::parse(wrong), None, "{wrong}");
    }
}
