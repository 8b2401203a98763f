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

use support_git::Git;
use support_workspaces::{Home, read, write};
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
    let staged = ["update-index", "--add", "staged"];
    one.run(&staged);
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
