//! The commands that `pull` prints join two repositories, also if earlier ones of the same day were
//! joined in the same way.

mod support;
mod support_git;
mod support_uploads;
mod support_workspaces;

use std::path::Path;

use support_git::Git;
use support_workspaces::{Home, write};
use testkit::process::output;

fn commit(git: &Git, file: &str) -> String {
    write(&git.dir, file, "text\n");
    git.run(&["add", file]);
    git.run(&["commit", "--quiet", "--message", file]);
    git.run(&["rev-parse", "HEAD"])
}

/// Pulls, and joins the repositories by the commands of the report.
fn join(home: &Home, git: &Git) {
    let report = home.exits(&git.dir, &["pull"], 1);
    for line in report.lines().filter_map(|line| line.strip_prefix("    ")) {
        output(git.shell(line).env("GIT_EDITOR", "true"));
    }
    output(&mut git.shell("rm -rf .git.conflict-* *.git.conflict-* .bare.conflict-*"));
}

/// Creates a repository in a directory, with a work tree that names it by a file. Returns the work
/// tree.
fn apart(repository: &Path, tree: &Path, name: &str) -> Git {
    Git::init(repository.to_owned(), &["--bare"]);
    write(tree, ".git", format!("gitdir: {name}\n"));
    let tree = Git::of(tree.to_owned());
    tree.run(&["config", "core.bare", "false"]);
    tree
}

#[test]
fn repositories_with_other_names_are_joined() {
    for (repository, tree, name) in [(".bare", "", "./.bare"), ("a b.git", "tree", "../a b.git")] {
        let home = Home::new();
        let root = home.dir("one");
        let one = apart(&root.join(repository), &root.join(tree), name);
        commit(&one, "first");
        home.open("mr/app", "one");
        home.push(&root);
        let other = home.open("mr/app", "two");
        let two = Git::of(other.join(tree));
        let of_one = commit(&one, "one");
        one.run(&["checkout", "--quiet", "-b", "topic"]);
        let of_topic = commit(&one, "topic");
        one.run(&["checkout", "--quiet", "main"]);
        home.push(&root);
        let of_two = commit(&two, "two");
        join(&home, &Git::of(other.clone()));
        for commit in [&of_one, &of_two] {
            two.run(&["merge-base", "--is-ancestor", commit, "main"]);
        }
        assert_eq!(two.run(&["rev-parse", "topic"]), of_topic);
        let tracked = ["status", "--porcelain", "--untracked-files=no"];
        assert_eq!(two.run(&tracked), "");
        two.check();
        home.push(&other);
        home.run(&root, &["pull"]);
        assert_eq!(
            one.run(&["rev-parse", "main"]),
            two.run(&["rev-parse", "main"])
        );
    }
}

/// Nothing can be merged in a repository without a work tree: the commits get branches.
#[test]
fn bare_repositories_get_branches_of_the_other_one() {
    let home = Home::new();
    let root = home.dir("one");
    let one = Git::init(root.join("app.git"), &["--bare"]);
    let commit = |git: &Git, branch: &str, text: &str| {
        let tree = "git hash-object -w -t tree /dev/null";
        let made = format!("git commit-tree -m {text} $({tree})");
        output(&mut git.shell(&format!("git update-ref refs/heads/{branch} $({made})")));
        git.run(&["rev-parse", branch])
    };
    commit(&one, "main", "first");
    home.open("mr/app", "one");
    home.push(&root);
    let other = home.open("mr/app", "two");
    let two = Git::of_repository(&other.join("app.git"));
    let (of_one, of_topic) = (commit(&one, "main", "one"), commit(&one, "topic", "topic"));
    home.push(&root);
    let of_two = commit(&two, "main", "two");
    join(&home, &Git::of(other.clone()));
    assert_eq!(two.run(&["rev-parse", "main"]), of_two);
    assert_eq!(two.run(&["rev-parse", "topic"]), of_topic);
    let branches = two.run(&["for-each-ref", "--contains", &of_one, "refs/heads"]);
    assert!(branches.contains("refs/heads/conflict-"), "{branches}");
    two.check();
    home.push(&other);
    home.run(&root, &["pull"]);
}

#[test]
fn a_second_conflict_of_the_day_is_joined_although_history_was_rewritten() {
    let home = Home::new();
    let one = Git::init(home.dir("one"), &[]);
    let first = commit(&one, "first");
    home.open("mr/app", "one");
    home.push(&one.dir);
    let two = Git::of(home.open("mr/app", "two"));
    for number in 1..=3 {
        // Not a descendant of the commit that was joined before.
        one.run(&["reset", "--quiet", "--hard", &first]);
        let of_one = commit(&one, &format!("one-{number}"));
        home.push(&one.dir);
        let of_two = commit(&two, &format!("two-{number}"));
        join(&home, &two);
        for commit in [&of_one, &of_two] {
            two.run(&["merge-base", "--is-ancestor", commit, "HEAD"]);
        }
        two.check();
        home.push(&two.dir);
        home.run(&one.dir, &["pull"]);
    }
}
