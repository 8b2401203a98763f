//! After a conflict of two git repositories, each change of the other machine is in a repository or
//! in a file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_git;
mod support_uploads;
mod support_workspaces;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use support_git::{Git, conflict_copies};
use support_workspaces::{Home, assert_has, read, write};
use testkit::process::output;

/// Creates a repository in the workspace `one`.
fn first(home: &Home) -> Git {
    let one = Git::init(home.dir("one"), &[]);
    write(&one.dir, "a", "1\n");
    commit(&one);
    one
}

fn commit(git: &Git) {
    git.run(&["add", "."]);
    git.run(&["commit", "--quiet", "--message", "x"]);
}

/// Opens the workspace `two` of the pushed workspace `one`, with a commit of its own.
fn second(home: &Home, one: &Git) -> Git {
    home.open("mr/app", "one");
    home.push(&one.dir);
    let two = Git::of(home.open("mr/app", "two"));
    write(&two.dir, "of-two", "2\n");
    commit(&two);
    two
}

/// Merges what `one` has pushed into `two`. Returns the paths of the conflict copies of files, with
/// what is in them.
fn copies(home: &Home, one: &Git, two: &Git) -> Vec<(String, String)> {
    home.push(&one.dir);
    home.exits(&two.dir, &["pull"], 1);
    two.check();
    let names = fs::read_dir(&two.dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let copied = names.filter_map(|name| {
        let (kept, _) = name.split_once(".conflict-")?;
        let text = match fs::read_link(two.dir.join(&name)) {
            Ok(target) => target.to_str().unwrap().to_owned(),
            Err(_) if kept == ".git" => return None,
            Err(_) => read(&two.dir, &name),
        };
        Some((kept.to_owned(), text))
    });
    let mut copied: Vec<_> = copied.collect();
    copied.sort();
    copied
}

/// Sets the time of a file to that of an archive.
fn set_old(dir: &Path, name: &str) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_577_836_800);
    let file = File::open(dir.join(name)).unwrap();
    file.set_modified(time).unwrap();
}

#[test]
fn a_change_that_keeps_size_and_time_is_copied() {
    let home = Home::new();
    let one = first(&home);
    let link = |target: &str| {
        fs::remove_file(one.dir.join("link")).unwrap_or_default();
        symlink(target, one.dir.join("link")).unwrap();
        output(&mut one.shell("touch --no-dereference --date 2020-01-01 link"));
    };
    for name in ["kept", "committed", "staged"] {
        write(&one.dir, name, "1\n");
        set_old(&one.dir, name);
    }
    link("old");
    commit(&one);
    let two = second(&home, &one);
    write(&one.dir, "committed", "22\n");
    set_old(&one.dir, "committed");
    write(&one.dir, "a", "of one\n");
    commit(&one);
    for (name, text) in [("kept", "3\n"), ("committed", "33\n")] {
        write(&one.dir, name, text);
        set_old(&one.dir, name);
    }
    link("new");
    write(&one.dir, "staged", "3\n");
    set_old(&one.dir, "staged");
    // Git would take the file for unchanged in the second in which it was committed.
    one.run(&["rm", "--quiet", "--cached", "staged"]);
    one.run(&["add", "staged"]);
    let expected = [("committed", "33\n"), ("kept", "3\n"), ("link", "new")];
    let expected = expected.map(|(name, text)| (name.to_owned(), text.to_owned()));
    assert_eq!(copies(&home, &one, &two), expected);
}

#[test]
fn contents_that_a_filter_removes_are_copied() {
    let home = Home::new();
    let one = first(&home);
    one.run(&["config", "filter.strip.clean", "sed s/#.*//"]);
    // As Git LFS does.
    let large = "f=.git/lfs/objects/new; cat >$f; set -- $(sha256sum $f); \
                 mv $f .git/lfs/objects/$1; echo $1";
    one.run(&["config", "filter.large.clean", large]);
    fs::create_dir_all(one.dir.join(".git/lfs/objects")).unwrap();
    write(
        &one.dir,
        ".gitattributes",
        "*.nb filter=strip\n*.bin filter=large\n",
    );
    write(&one.dir, "x.nb", "1\n");
    write(&one.dir, "x.bin", "1\n");
    commit(&one);
    let two = second(&home, &one);
    write(&one.dir, "x.nb", "2#output\n");
    write(&one.dir, "x.bin", "2\n");
    commit(&one);
    assert_eq!(one.status(), "");
    let expected = [("x.nb".to_owned(), "2#output\n".to_owned())];
    assert_eq!(copies(&home, &one, &two), expected);
}

/// Adds a work tree beside a repository, with paths that are the same on each machine.
fn add_tree(of: &Git, repository: &str, name: &str) -> Git {
    let dir = of.dir.parent().unwrap().join(name);
    let path = dir.to_str().unwrap();
    of.run(&["worktree", "add", "--quiet", "-b", name, path]);
    let link = format!("gitdir: ../{repository}/worktrees/{name}\n");
    write(&dir, ".git", link);
    Git::of(dir)
}

fn commit_file(git: &Git, file: &str, text: &str) {
    write(&git.dir, file, text);
    commit(git);
}

#[test]
fn work_trees_of_a_repository_with_another_name_stay_with_it() {
    let home = Home::new();
    let root = home.dir("one");
    let one = Git::init(root.join("tree"), &["--separate-git-dir=../app.git"]);
    write(&one.dir, ".git", "gitdir: ../app.git\n");
    for name in ["a", "dirty", "gone"] {
        write(&one.dir, name, "1\n");
    }
    commit(&one);
    let more = add_tree(&one, "app.git", "more");
    home.open("mr/app", "one");
    home.push(&root);
    let two = Git::of(home.open("mr/app", "two").join("tree"));
    let more_of_two = Git::of(home.dir("two/more"));
    // On each machine, the directory is that of another work tree.
    let extra = add_tree(&one, "app.git", "extra");
    commit_file(&extra, "extra", "1\n");
    let of_one = extra.run(&["rev-parse", "HEAD"]);
    two.run(&["worktree", "add", "--quiet", "-b", "other", "../x/extra"]);
    two.run(&["worktree", "remove", "../x/extra"]);
    fs::create_dir_all(home.dir("two/app.git/worktrees/extra")).unwrap();
    two.run(&["worktree", "add", "--quiet", "-b", "extra", "../extra"]);
    let extra_of_two = Git::of(home.dir("two/extra"));
    let link = read(&extra_of_two.dir, ".git");
    commit_file(&extra_of_two, "extra", "2\n");

    fs::remove_file(one.dir.join("gone")).unwrap();
    commit_file(&one, "a", "of one\n");
    commit_file(&more, "more", "of one\n");
    write(&one.dir, "dirty", "of one\n");
    home.push(&root);
    commit_file(&two, "b", "of two\n");
    let text = home.exits(two.dir.parent().unwrap(), &["pull"], 1);
    assert_has(&text, "conflict: app.git stays as it is");
    let status = two.status();
    assert!(
        status.starts_with("?? dirty.conflict-") && status.lines().count() == 1,
        "{status}"
    );
    assert_eq!(read(&two.dir, "a"), "1\n");
    assert_eq!(more_of_two.status(), "");
    assert_eq!(
        (extra_of_two.status(), read(&extra_of_two.dir, ".git")),
        (String::new(), link)
    );
    two.check();
    let kept = Git::of_repository(&conflict_copies(two.dir.parent().unwrap())[0]);
    kept.check();
    assert_eq!(kept.run(&["rev-parse", "extra"]), of_one);
}

#[test]
fn a_work_tree_is_merged_with_the_repository_that_its_link_names() {
    let home = Home::new();
    let root = home.dir("one");
    let repositories = ["first", "second"].map(|name| {
        let git = Git::init(root.join(name), &[]);
        commit_file(&git, "a", "1\n");
        let tree = add_tree(&git, &format!("{name}/.git"), &format!("{name}-tree"));
        (git, tree)
    });
    home.open("mr/app", "one");
    home.push(&root);
    let two = home.open("mr/app", "two");
    let [(first, _), (_, second_tree)] = &repositories;
    commit_file(first, "a", "of one\n");
    commit_file(second_tree, "a", "of one\n");
    home.push(&root);
    commit_file(&Git::of(two.join("first")), "b", "of two\n");
    let text = home.exits(&two, &["pull"], 1);
    assert_eq!(text.matches("conflict: ").count(), 1, "{text}");
    for name in ["first", "first-tree", "second", "second-tree"] {
        let git = Git::of(two.join(name));
        let status = git.status();
        assert!(status.is_empty(), "{name}: {status}");
        git.check();
    }
    assert_eq!(read(&two, "first/a"), "1\n");
    assert_eq!(read(&two, "second-tree/a"), "of one\n");
}
