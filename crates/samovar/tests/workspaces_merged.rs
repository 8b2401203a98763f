//! A pull merges the files of other machines by path. It overwrites no unpushed change: if both
//! sides changed a file, both versions stay. Older states can be brought back.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_git;
mod support_uploads;
mod support_workspaces;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use support_workspaces::{Home, assert_has, exits, read, tree, write};

/// Two workspaces of the same ref, at the same generation.
fn two(home: &Home) -> (PathBuf, PathBuf) {
    let one = home.dir("one");
    write(&one, "a/first", "first");
    write(&one, "a/second", "second");
    write(&one, "b/deep/third", "third");
    write(&one, "shared", "shared");
    write(&one, "gone/x", "x");
    home.open("mr/app", "one");
    home.push(&one);
    let two = home.open("mr/app", "two");
    (one, two)
}

/// Returns the names in a directory that contain `.conflict-`.
fn conflicts(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| {
        let name = entry.unwrap().file_name();
        name.to_string_lossy().into_owned()
    });
    names.filter(|name| name.contains(".conflict-")).collect()
}

#[test]
fn changes_of_different_files_are_merged() {
    let home = Home::new();
    let (one, two) = two(&home);
    write(&one, "a/first", "FIRST");
    write(&one, "new/file", "new");
    fs::write(one.join("new").join(OsStr::from_bytes(b"\n\xff")), "odd").unwrap();
    symlink("a/first", one.join("link")).unwrap();
    write(&one, "shared-twice", "same contents");
    write(&one, "b/shared-twice", "same contents");
    fs::remove_dir_all(one.join("gone")).unwrap();
    fs::set_permissions(one.join("a/second"), fs::Permissions::from_mode(0o755)).unwrap();
    home.push(&one);
    write(&two, "b/deep/third", "THIRD");
    write(&two, "mine", "mine");
    let text = home.run(&two, &["pull"]);
    assert_has(&text, "merged mr/app@2");
    let text = home.exits(&two, &["diff"], 1);
    assert_has(&text, "1 added, 1 modified");
    let mode = fs::metadata(two.join("a/second"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o755);
    assert!(!two.join("gone").exists());
    assert_eq!(home.push(&two), 3);
    home.run(&one, &["pull"]);
    assert_eq!(tree(&one), tree(&two));
    assert_eq!(
        (read(&one, "b/deep/third"), read(&one, "mine")),
        ("THIRD".into(), "mine".into())
    );
    home.assert_clean(&one);
    home.assert_clean(&two);
    assert_has(&home.run(&one, &["pull"]), "is the newest generation");
}

#[test]
fn both_versions_of_a_file_stay() {
    let home = Home::new();
    let (one, two) = two(&home);
    write(&one, "shared", "of one");
    write(&one, "a/first", "the same");
    fs::remove_file(one.join("a/second")).unwrap();
    write(&one, "b/deep/third", "changed");
    home.push(&one);
    write(&two, "shared", "of two");
    write(&two, "a/first", "the same");
    write(&two, "a/second", "changed");
    fs::remove_file(two.join("b/deep/third")).unwrap();
    let text = home.exits(&two, &["pull"], 1);
    assert_has(&text, "conflict: shared stays as it is");
    let copies = conflicts(&two);
    assert_eq!(copies.len(), 1, "{copies:?}");
    assert!(copies[0].starts_with("shared.conflict-"), "{copies:?}");
    assert_eq!(read(&two, "shared"), "of two");
    assert_eq!(read(&two, &copies[0]), "of one");
    // A change wins against a removal.
    assert_eq!(read(&two, "a/second"), "changed");
    assert_eq!(read(&two, "b/deep/third"), "changed");
    assert_eq!(conflicts(&two.join("a")), [""; 0]);
    home.push(&two);
    home.run(&one, &["pull"]);
    assert_eq!(tree(&one), tree(&two));
}

/// Who takes the other version of a file renames its copy.
#[test]
fn a_conflict_copy_that_is_removed_is_made_again() {
    let home = Home::new();
    let (one, two) = two(&home);
    for file in ["1", "2", "3"] {
        write(&one, &format!("{file}/file"), "base");
        symlink("base", one.join(file).join("link")).unwrap();
    }
    home.push(&one);
    home.run(&two, &["pull"]);
    let change = |directory: &Path, text: &str| {
        for file in ["1", "2", "3"] {
            let link = directory.join(file).join("link");
            write(directory, &format!("{file}/file"), text);
            fs::remove_file(&link).unwrap();
            symlink(text, &link).unwrap();
        }
    };
    change(&one, "of one");
    home.push(&one);
    change(&two, "of two");
    home.exits(&two, &["pull"], 1);
    home.push(&two);
    home.run(&one, &["pull"]);
    // One removes the copies, replaces them, or leaves them where they are.
    change(&one, "of one");
    for name in conflicts(&one.join("1")) {
        fs::remove_file(one.join("1").join(name)).unwrap();
    }
    for name in conflicts(&one.join("2")) {
        fs::remove_file(one.join("2").join(&name)).unwrap();
        write(&one, &format!("2/{name}"), "another");
    }
    home.push(&one);
    change(&two, "more of two");
    let text = home.exits(&two, &["pull"], 1);
    for file in ["1", "2", "3"] {
        let directory = two.join(file);
        let found = conflicts(&directory);
        let is_copy = |name: &&String| {
            let path = directory.join(name);
            match name.starts_with("link") {
                true => fs::read_link(path).is_ok_and(|target| target == Path::new("of one")),
                false => fs::read(path).unwrap() == b"of one",
            }
        };
        let copies: Vec<_> = found.iter().filter(is_copy).collect();
        assert_eq!(copies.len(), 2, "{found:?} {text}");
        for name in copies {
            assert_has(&text, &format!("is stored as {file}/{name}"));
        }
        assert_eq!(found.len(), if file == "2" { 4 } else { 2 }, "{found:?}");
    }
}

#[test]
fn a_push_after_a_lost_response_is_recognized() {
    let home = Home::new();
    let (one, _) = two(&home);
    write(&one, "shared", "2");
    // The state before the push, as if the process was killed before it got the response. The file
    // of the pushed manifest is there already.
    let state = fs::read(home.state(&one).join("workspace")).unwrap();
    let base: Vec<PathBuf> = bases(&home.state(&one));
    let saved: Vec<(PathBuf, Vec<u8>)> = base
        .into_iter()
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    home.push(&one);
    for (path, content) in saved {
        fs::write(path, content).unwrap();
    }
    fs::write(home.state(&one).join("workspace"), state).unwrap();
    write(&one, "shared", "3");
    assert_has(&home.exits(&one, &["status"], 1), "mr/app@1");
    assert_eq!(home.push(&one), 3);
    home.assert_clean(&one);
    assert_eq!(bases(&home.state(&one)).len(), 1);
}

/// Returns the manifests in a state directory.
fn bases(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.file_name().unwrap().as_bytes().starts_with(b"base-"))
        .collect()
}

#[test]
fn older_states_are_brought_back() {
    let home = Home::new();
    let (one, _) = two(&home);
    let first = tree(&one);
    write(&one, "shared", "2");
    write(&one, "a/later", "2");
    fs::remove_dir_all(one.join("gone")).unwrap();
    home.push(&one);
    let second = tree(&one);
    write(&one, "shared", "unpushed");
    let text = home.exits(&one, &["restore", "@1"], 1);
    assert_has(
        &text,
        "unpushed changes of 1 path would be overwritten (shared)",
    );
    assert_eq!(read(&one, "shared"), "unpushed");
    assert!(!one.join("gone").exists());
    home.run(&one, &["restore", "1", "gone"]);
    assert_eq!(read(&one, "gone/x"), "x");
    assert_eq!(read(&one, "shared"), "unpushed");
    home.run(&one, &["restore", "@1", "--force"]);
    assert_eq!(tree(&one), first);
    assert_has(&home.exits(&one, &["status"], 1), "mr/app@2");
    write(&one, "added", "x");
    let text = home.exits(&one, &["discard"], 2);
    assert_has(&text, "confirm by --yes");
    home.run(&one, &["discard", "--yes", "gone"]);
    assert!(!one.join("gone").exists() && one.join("added").exists());
    home.run(&one.join("a"), &["discard", "--yes", "../added"]);
    assert!(!one.join("added").exists());
    home.run(&one, &["discard", "--yes"]);
    assert_eq!(tree(&one), second);
    home.assert_clean(&one);
    home.exits(&one, &["restore", "@9"], 1);
    home.exits(&one, &["restore", "@1", "nowhere"], 1);
    home.exits(&one, &["restore", "@1", "/etc"], 2);
}

#[test]
fn a_damaged_state_is_repaired() {
    let home = Home::new();
    let (one, _) = two(&home);
    let state = home.state(&one);
    let base = bases(&home.state(&one)).remove(0);
    fs::write(&base, "damaged").unwrap();
    fs::write(state.join("index"), "damaged").unwrap();
    let id = state.file_name().unwrap().to_str().unwrap();
    let incoming = one.join(format!(".samovar-tmp-{}", &id[..16]));
    write(&incoming, "left", "x");
    write(&state, "workspace.1.tmp", "x");
    write(&one, ".samovar-tmp-0123456789abcdef", "x");
    let text = home.exits(&one, &["status", "--offline"], 3);
    assert_has(&text, "run samovar workspace repair");
    home.run(&one, &["repair"]);
    for left in [
        incoming,
        state.join("workspace.1.tmp"),
        one.join(".samovar-tmp-0123456789abcdef"),
    ] {
        assert!(!left.exists(), "{left:?}");
    }
    home.assert_clean(&one);
    fs::remove_file(&base).unwrap();
    home.exits(&one, &["push"], 3);
    home.run(&one, &["repair"]);
    home.assert_clean(&one);
    fs::write(state.join("workspace"), "samovar-workspace 9\n").unwrap();
    let text = home.exits(&one, &["status"], 3);
    assert_has(&text, "damaged");
}

#[test]
fn read_only_directories_are_merged() {
    let home = Home::new();
    let (one, two) = two(&home);
    let mode = |directory: &Path, mode| {
        fs::set_permissions(directory, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&one.join("b/deep"), 0o555);
    home.push(&one);
    home.run(&two, &["pull"]);
    mode(&one.join("b/deep"), 0o755);
    write(&one, "b/deep/new", "new");
    mode(&one.join("b/deep"), 0o555);
    home.push(&one);
    home.run(&two, &["pull"]);
    assert_eq!(read(&two, "b/deep/new"), "new");
    let found = fs::metadata(two.join("b/deep"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(found & 0o777, 0o555);
    home.assert_clean(&two);
    mode(&one.join("b/deep"), 0o755);
    mode(&two.join("b/deep"), 0o755);
}

#[test]
fn a_damaged_copy_on_the_server_is_named() {
    // It cannot be compressed, so that the file of the NAR contains it.
    let mut number = 1_u64;
    let content: Vec<u8> = std::iter::repeat_with(|| {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        number.to_be_bytes()[0]
    })
    .take(8192)
    .collect();
    let home = Home::new();
    let (one, two) = two(&home);
    fs::write(one.join("a/first"), &content).unwrap();
    home.push(&one);
    for name in home.site.files() {
        let file = home.site.storage().join(name);
        let mut bytes = fs::read(&file).unwrap();
        let at = bytes
            .windows(64)
            .position(|part| part == &content[4096..4160]);
        if let Some(at) = at {
            bytes[at] ^= 1;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
            fs::write(&file, bytes).unwrap();
        }
    }
    let new = home.dir("new");
    let mut open = home.command(&["open", "mr/app"]);
    for text in [home.exits(&two, &["pull"], 1), exits(open.arg(&new), 1)] {
        assert_has(&text, &format!("{}/upload/nar/", home.server.url()));
        assert_has(&text, " is damaged on the server: ");
        assert_has(&text, "a/first");
        assert_has(
            &text,
            "the operator of the server should run samovar fsck --deep",
        );
        assert!(!text.contains("incoming"), "{text}");
    }
}

/// There is no place beside the root for a copy of the repository.
#[test]
fn a_workspace_that_is_a_repository_is_not_merged() {
    let home = Home::new();
    let one = support_git::Git::init(home.dir("one"), &["--bare"]);
    let tree = one.run(&["hash-object", "-t", "tree", "-w", "/dev/null"]);
    let commit = |git: &support_git::Git, name: &str| {
        let commit = git.run(&["commit-tree", "-m", name, &tree]);
        git.run(&["branch", name, &commit]);
        commit
    };
    let topic = commit(&one, "topic");
    home.open("app", "one");
    home.push(&one.dir);
    let two = support_git::Git::of_repository(&home.open("app", "two"));
    // The change of one side is taken.
    commit(&one, "more");
    home.push(&one.dir);
    home.run(&two.dir, &["pull"]);
    two.check();
    two.run(&["branch", "keep", "topic"]);
    home.push(&two.dir);
    one.run(&["branch", "--quiet", "-D", "topic"]);
    one.run(&["gc", "--quiet", "--prune=now"]);
    let text = home.exits(&one.dir, &["pull"], 1);
    assert_has(&text, "the workspace is a git repository itself");
    one.check();
    // As the message says.
    home.open("app", "third");
    one.run(&["fetch", "--quiet", "../third", "refs/heads/*:refs/heads/*"]);
    assert_eq!(one.run(&["rev-parse", "keep"]), topic);
    one.check();
    home.run(&one.dir, &["push", "--force"]);
}
