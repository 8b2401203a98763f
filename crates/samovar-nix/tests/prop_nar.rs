//! For any tree and any split of the input, decoding an encoded NAR gives the tree again. Arbitrary
//! bytes cause no panic.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

mod common;

use std::collections::BTreeMap;

use common::Owned;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use samovar_nix::nar::{Decoder, Discard};

#[derive(Debug, Clone)]
enum Tree {
    File { executable: bool, contents: Vec<u8> },
    Symlink(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, Self>),
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(b'a'), Just(b'.'), any::<u8>()]
        .prop_filter("no slash, no NUL", |byte| !matches!(byte, 0 | b'/'));
    vec(byte, 1..12).prop_filter("no dots", |name| !matches!(&name[..], b"." | b".."))
}

fn target() -> impl Strategy<Value = Vec<u8>> {
    vec(1..=255_u8, 1..20)
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        (any::<bool>(), vec(any::<u8>(), 0..40)).prop_map(|(executable, contents)| Tree::File {
            executable,
            contents
        }),
        target().prop_map(Tree::Symlink),
    ];
    leaf.prop_recursive(5, 40, 6, |child| {
        btree_map(name(), child, 0..6).prop_map(Tree::Directory)
    })
}

/// Returns the events of a tree; the offsets of its files come from the encoder.
fn events(tree: &Tree) -> Vec<Owned> {
    fn walk(tree: &Tree, events: &mut Vec<Owned>) {
        match tree {
            Tree::File {
                executable,
                contents,
            } => events.push(Owned::File {
                executable: *executable,
                offset: 0,
                contents: contents.clone(),
            }),
            Tree::Symlink(target) => events.push(Owned::Symlink(target.clone())),
            Tree::Directory(children) => {
                events.push(Owned::DirectoryBegin);
                for (name, child) in children {
                    events.push(Owned::Entry(name.clone()));
                    walk(child, events);
                    events.push(Owned::EntryEnd);
                }
                events.push(Owned::DirectoryEnd);
            }
        }
    }
    let mut events = Vec::new();
    walk(tree, &mut events);
    let mut nar = samovar_nix::nar::Encoder::new();
    nar.begin(&mut Discard).unwrap();
    for event in &mut events {
        match event {
            Owned::DirectoryBegin => nar.begin_directory(&mut Discard),
            Owned::Entry(name) => nar.entry(&mut Discard, name),
            Owned::EntryEnd => nar.end_entry(&mut Discard),
            Owned::DirectoryEnd => nar.end_directory(&mut Discard),
            Owned::Symlink(target) => nar.symlink(&mut Discard, target),
            Owned::File {
                executable,
                offset,
                contents,
            } => {
                *offset = nar
                    .file(&mut Discard, *executable, contents.len() as u64)
                    .unwrap();
                nar.end_file(&mut Discard)
            }
        }
        .unwrap();
    }
    events
}

/// Splits the bytes at these offsets, taken modulo the length.
fn cut<'a>(bytes: &'a [u8], places: &[usize]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = places
        .iter()
        .map(|place| place % (bytes.len() + 1))
        .collect();
    places.sort_unstable();
    places.push(bytes.len());
    let mut start = 0;
    places
        .into_iter()
        .map(|end| &bytes[std::mem::replace(&mut start, end)..end])
        .collect()
}

proptest! {
    #[test]
    fn nars_round_trip(tree in tree()) {
        let events = events(&tree);
        let nar = common::encode_all(&events);
        prop_assert_eq!(nar.len() % 8, 0);
        let decoded = common::decode(Decoder::new(), [nar.as_slice()]);
        prop_assert_eq!(decoded, Ok((events, nar.len() as u64)));
    }

    #[test]
    fn any_split_gives_the_same_events(tree in tree(), places in vec(any::<usize>(), 0..20)) {
        let nar = common::encode_all(&events(&tree));
        let whole = common::decode(Decoder::new(), [nar.as_slice()]);
        prop_assert_eq!(&common::decode(Decoder::new(), cut(&nar, &places)), &whole);
        prop_assert_eq!(&common::decode(Decoder::new(), nar.chunks(1)), &whole);
    }

    #[test]
    fn any_split_gives_the_same_error(
        tree in tree(),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        places in vec(any::<usize>(), 0..20),
    ) {
        let mut nar = common::encode_all(&events(&tree));
        let place = place.index(nar.len());
        nar[place] = byte;
        let whole = common::decode(Decoder::new(), [nar.as_slice()]);
        prop_assert_eq!(&common::decode(Decoder::new(), cut(&nar, &places)), &whole);
        prop_assert_eq!(&common::decode(Decoder::new(), nar.chunks(1)), &whole);
        if let Ok((events, len)) = whole {
            // The encoding is canonical, so encoding again gives the same bytes.
            let len = usize::try_from(len).unwrap();
            prop_assert_eq!(&common::encode_all(&events)[..], &nar[..len]);
        }
    }

    #[test]
    fn listing_offsets_point_at_the_contents(tree in tree()) {
        let events = events(&tree);
        let nar = common::encode_all(&events);
        let listing = common::listing(&events);
        for event in &events {
            if let Owned::File { offset, contents, .. } = event {
                let start = usize::try_from(*offset).unwrap();
                prop_assert_eq!(&nar[start..start + contents.len()], &contents[..]);
                let member = format!("\"narOffset\":{offset}}}");
                prop_assert!(listing.contains(&member));
            }
        }
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..300)) {
        prop_assert!(common::decode(Decoder::new(), [bytes.as_slice()]).is_err());
    }

    #[test]
    fn arbitrary_words_do_no_harm(words in vec(0..13_usize, 0..60)) {
        const WORDS: [&str; 13] = [
            "(", ")", "type", "regular", "symlink", "directory", "executable", "", "contents",
            "target", "entry", "name", "node",
        ];
        let mut nar = b"\x0d\0\0\0\0\0\0\0nix-archive-1\0\0\0".to_vec();
        for word in words {
            nar.extend((WORDS[word].len() as u64).to_le_bytes());
            nar.extend(WORDS[word].as_bytes());
            nar.resize(nar.len().next_multiple_of(8), 0);
        }
        let whole = common::decode(Decoder::new(), [nar.as_slice()]);
        prop_assert_eq!(common::decode(Decoder::new(), nar.chunks(3)), whole);
    }
}
