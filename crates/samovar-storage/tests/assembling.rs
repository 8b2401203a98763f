//! A NAR assembled from a recipe equals the NAR that the recipe describes, whatever the compression
//! of its base. Its frames stay long, however often a NAR is the base of the next one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support_assemble;

use proptest::prelude::*;
use support_assemble::{
    Change, FORMS, Fixture, Form, KIB, MIB, Tree, changed, hash_of, large, nar_of, noise, recipe,
    recipe_of_edit, seek_table,
};

fn content() -> impl Strategy<Value = Vec<u8>> {
    let len = prop_oneof![3 => 0..2 * KIB, 2 => 0..100 * KIB, 2 => 500 * KIB..2 * MIB];
    (any::<u64>(), len).prop_map(|(seed, len)| noise(seed, len))
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        ("[a-z]{1,3}", content()).prop_map(|(name, content)| Change::Add(name, content)),
        any::<usize>().prop_map(Change::Remove),
        (any::<usize>(), "[a-z]{1,3}").prop_map(|(index, name)| Change::Rename(index, name)),
        (
            any::<usize>(),
            any::<usize>(),
            prop::collection::vec(any::<u8>(), 1..100)
        )
            .prop_map(|(index, at, bytes)| Change::Edit(index, at, bytes)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// The assembled NAR is the one that the recipe describes, byte by byte.
    #[test]
    fn assembled_nars_are_those_of_the_edited_trees(
        tree in prop::collection::btree_map("[a-z]{1,3}", content(), 0..9),
        changes in prop::collection::vec(change(), 1..5),
        forms in prop::sample::subsequence(FORMS.to_vec(), 2),
    ) {
        let new = changes.iter().fold(tree.clone(), |tree, change| changed(&tree, change));
        let (base, new) = (nar_of(&tree), nar_of(&new));
        prop_assume!(base != new);
        for form in forms {
            let fixture = Fixture::new();
            fixture.send(&base, form);
            let is_ascending = matches!(form, Form::Xz | Form::OneFrame);
            fixture.assembled(&base, &new, &recipe(&base, &new, is_ascending));
        }
    }
}

#[test]
fn frames_stay_long_over_many_generations() {
    let fixture = Fixture::new();
    let mut tree = large();
    let mut nar = nar_of(&tree);
    fixture.send(&nar, Form::Seekable(MIB));
    let mut file = Form::Seekable(MIB).file(&nar).1;
    for generation in 0..9_u64 {
        // Insert a few bytes, in turn at the start, in the middle and at the end of some file.
        let name = format!("{:02}", generation * 7 % 16);
        let content = tree.get_mut(&name).unwrap();
        let at = [0, content.len() / 2, content.len()][generation.to_le_bytes()[0] as usize % 3];
        content.splice(at..at, generation.to_be_bytes());
        let new = nar_of(&tree);
        let assembled = fixture.assembled(&nar, &new, &recipe_of_edit(&nar, &new));
        // The frames without the change are those of the base.
        let frames = |file: &[u8]| {
            let mut at = 0;
            let frames = seek_table(file).into_iter().map(|(len, _)| {
                at += len;
                file[at - len..at].to_vec()
            });
            frames.collect::<Vec<_>>()
        };
        let before = frames(&file);
        let now = frames(&assembled);
        let copied = now.iter().filter(|frame| before.contains(frame)).count();
        assert!(
            now.len() <= 10 && copied + 4 >= now.len(),
            "{copied} of {}",
            now.len()
        );
        (nar, file) = (new, assembled);
    }
}

#[test]
fn an_assembled_nar_is_stored_once() {
    let fixture = Fixture::new();
    let base = nar_of(&large());
    fixture.send(&base, Form::Seekable(MIB));
    let same = recipe(&base, &base, true);
    assert_eq!(fixture.assemble(&base, &same).unwrap().0, hash_of(&base));
    fixture.assert_only(1);
    let new = nar_of(&changed(&large(), &Change::Remove(3)));
    let recipe = recipe(&base, &new, true);
    for _ in 0..2 {
        assert_eq!(fixture.assemble(&base, &recipe).unwrap().0, hash_of(&new));
        fixture.assert_only(2);
    }
}

#[test]
fn files_may_move_unless_the_base_is_one_long_frame() {
    let mut tree = large();
    let base = nar_of(&tree);
    let last = tree.pop_last().unwrap().1;
    tree.insert("0".to_owned(), last);
    let new = nar_of(&tree);
    let recipe = recipe(&base, &new, false);
    for form in [Form::Plain, Form::Frames(100 * KIB), Form::Seekable(MIB)] {
        let fixture = Fixture::new();
        fixture.send(&base, form);
        fixture.assembled(&base, &new, &recipe);
    }
    for form in [Form::Xz, Form::OneFrame, Form::Frames(5 * MIB)] {
        let fixture = Fixture::new();
        fixture.send(&base, form);
        let refused = fixture.assemble(&base, &recipe).unwrap_err();
        let reason = refused.to_string();
        assert!(
            reason.contains("from its start to its end"),
            "{form:?}: {reason}"
        );
        fixture.assert_only(1);
    }
    // A short base is decompressed as a whole, so the same is possible.
    let tree = Tree::from([
        ("a".to_owned(), noise(1, 500)),
        ("b".to_owned(), noise(2, 500)),
    ]);
    let moved = Tree::from([
        ("a".to_owned(), noise(2, 500)),
        ("b".to_owned(), noise(1, 500)),
    ]);
    let (base, new) = (nar_of(&tree), nar_of(&moved));
    for form in [Form::Xz, Form::OneFrame] {
        let fixture = Fixture::new();
        fixture.send(&base, form);
        fixture.assembled(&base, &new, &self::recipe(&base, &new, false));
    }
}
