use super::*;
use crate::test_tree::{Data, Tree, digest as digest_of, paths};

fn entries(texts: &[&str]) -> Entries {
    paths(texts).entries()
}

/// Returns the contents of all files of a tree.
fn contents(tree: &Tree) -> Contents {
    let mut contents = Contents::default();
    for node in tree.0.values() {
        if let Data::File(bytes) = &node.data {
            contents.add(digest_of(bytes), bytes.clone());
        }
    }
    contents
}

fn shown(entries: &Entries, indices: &[usize]) -> Vec<String> {
    let paths = indices.iter().map(|index| entries.path(*index));
    paths.map(|path| String::from_utf8(path).unwrap()).collect()
}

const REPOSITORY: [&str; 13] = [
    ".git/",
    ".git/HEAD=ref: refs/heads/main",
    ".git/index=1",
    ".git/logs/",
    ".git/logs/HEAD=log",
    ".git/modules/",
    ".git/modules/a/",
    ".git/modules/a/HEAD=aa",
    ".git/modules/a/index=2",
    ".git/modules/a/objects/",
    ".git/objects/",
    ".git/refs/",
    ".git/refs/main=bb",
];

#[test]
fn units_have_the_names_of_repositories() {
    for name in [&b".git"[..], b".hg", b".jj", b".svn"] {
        assert_eq!(Unit::of(name), Some(Unit::Repository));
        let copy = [name, b".conflict-host-2026-11-28"].concat();
        assert_eq!(Unit::of(&copy), Some(Unit::Copy));
    }
    for name in [
        &b"git"[..],
        b".gitignore",
        b".git-x",
        b"app.git",
        b".git.conflict",
    ] {
        assert_eq!(Unit::of(name), None);
    }
}

#[test]
fn files_are_wanted_if_both_sides_differ_from_the_base() {
    let base = entries(&REPOSITORY);
    let mut changed = REPOSITORY;
    changed[2] = ".git/index=3";
    let changed = entries(&changed);
    assert_eq!(wanted(&base, &changed, &base), Wanted::default());
    assert_eq!(wanted(&base, &base, &changed), Wanted::default());
    let wanted = wanted(&base, &changed, &changed);
    let expected = [".git/HEAD", ".git/index", ".git/refs/main"].map(str::to_owned);
    assert_eq!(shown(&changed, &wanted.ours)[..2], expected[..2]);
    assert_eq!(shown(&changed, &wanted.ours)[2], expected[2]);
    let expected = [".git/modules/a/HEAD", ".git/modules/a/index"];
    assert_eq!(shown(&changed, &wanted.theirs)[3..], expected);
    assert_eq!(
        shown(&base, &indexes(&base)),
        [".git/index", ".git/modules/a/index"]
    );
}

#[test]
fn locks_of_commands_in_progress_are_found() {
    for (path, is_lock) in [
        (".git/index.lock", true),
        (".git/refs/heads.lock", true),
        (".git/modules/a/index.lock", true),
        (".git/objects/maintenance.lock", false),
        (".git/hooks/x.lock", false),
        (".git/index", false),
        (".hg/wlock", true),
        (".hg/store/lock", true),
        (".hg/index.lock", false),
        (".git.conflict-a/index.lock", false),
        ("Cargo.lock", false),
    ] {
        let mut texts = Vec::new();
        for (at, _) in path.match_indices('/') {
            texts.push(path[..=at].to_owned());
        }
        texts.push(format!("{path}=x"));
        texts.push("a.lock=x".to_owned());
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let entries = entries(&texts);
        let found = lock(&entries).map(|index| entries.path(index));
        assert_eq!(found, is_lock.then(|| path.as_bytes().to_vec()), "{path}");
    }
}

#[test]
fn names_are_those_of_files_and_of_the_packed_file() {
    let tree = paths(&[
        ".git/",
        ".git/HEAD=ref: refs/heads/main\n",
        ".git/objects/",
        ".git/packed-refs=# x\na1 refs/tags/t\n^b2\n",
        ".git/refs/",
        ".git/refs/heads/",
        ".git/refs/heads/main=c3\n",
        ".git/refs/heads/x=ref: refs/heads/y\n",
        ".git/worktrees/",
        ".git/worktrees/w/",
        ".git/worktrees/w/HEAD=d4\n",
    ]);
    let entries = tree.entries();
    let names = Names::of_unit(&entries, 1, &contents(&tree));
    assert_eq!(names.len(), 1);
    assert_eq!(
        (&*names[0].path, &*names[0].head),
        (&b""[..], "refs/heads/main")
    );
    let commits: Vec<_> = names[0].commits.iter().map(|(a, b)| (&**a, &**b)).collect();
    assert_eq!(commits, [("refs/heads/main", "c3"), ("refs/tags/t", "a1")]);
    assert_eq!(names[0].head_commit(), Some("c3"));
}
