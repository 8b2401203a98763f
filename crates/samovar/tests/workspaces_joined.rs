//! The commands that `pull` prints join two repositories, also if earlier ones of the same day were
//! joined in the same way.

mod support;
mod support_git;
mod support_uploads;
mod support_workspaces;

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
    output(&mut git.shell("rm -rf .git.conflict-*"));
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
