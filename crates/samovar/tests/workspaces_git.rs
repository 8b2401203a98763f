//! A pull merges git repositories as a whole. No commit is lost, and none reverts another silently.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_git;
mod support_uploads;
mod support_workspaces;

use std::fs;
use std::path::{Path, PathBuf};

use support_git::{Git, conflict_copies};
use support_workspaces::{Home, assert_has, read, write};
use testkit::process::{Process, output};

/// Two workspaces with a repository, at the same generation.
fn two(home: &Home) -> (Git, Git) {
    let one = home.dir("one");
    write(&one, "a", "1\n");
    write(&one, "b", "1\n");
    let one = Git::init(one, &[]);
    one.run(&["add", "a", "b"]);
    one.run(&["commit", "--quiet", "--message", "first"]);
    home.open("mr/app", "one");
    home.push(&one.dir);
    let two = Git::of(home.open("mr/app", "two"));
    (one, two)
}

fn commit(git: &Git, file: &str, text: &str) -> String {
    write(&git.dir, file, text);
    git.run(&["add", file]);
    git.run(&["commit", "--quiet", "--message", text.trim()]);
    git.run(&["rev-parse", "HEAD"])
}

#[test]
fn a_status_on_one_machine_does_not_revert_a_commit_of_another() {
    let home = Home::new();
    let (one, two) = two(&home);
    // Git writes the index, because the files have other inodes here.
    let index = fs::read(two.dir.join(".git/index")).unwrap();
    two.run(&["status"]);
    assert_ne!(fs::read(two.dir.join(".git/index")).unwrap(), index);
    let first = commit(&one, "a", "of one\n");
    home.push(&one.dir);
    let text = home.run(&two.dir, &["pull"]);
    assert!(!text.contains("conflict"), "{text}");
    assert_eq!(conflict_copies(&two.dir), [] as [PathBuf; 0]);
    assert_eq!(two.status(), "");
    let second = commit(&two, "b", "of two\n");
    assert_eq!(two.run(&["rev-parse", "HEAD~1"]), first);
    let changed = ["diff", "--name-only", &first, &second];
    assert_eq!(two.run(&changed), "b");
    assert_eq!(read(&two.dir, "a"), "of one\n");
    two.check();
    // The same in the other direction, after a status on the machine that pulls.
    home.push(&two.dir);
    one.run(&["status"]);
    home.run(&one.dir, &["pull"]);
    assert_eq!(one.run(&["rev-parse", "HEAD"]), second);
    assert_eq!(one.status(), "");
    one.check();
}

#[test]
fn a_status_on_both_machines_is_no_conflict() {
    let home = Home::new();
    let (one, two) = two(&home);
    write(&one.dir, "a", "of one\n");
    one.run(&["status"]);
    home.push(&one.dir);
    two.run(&["status"]);
    let text = home.run(&two.dir, &["pull"]);
    assert!(!text.contains("conflict"), "{text}");
    assert_eq!(two.status(), "M a");
    two.check();
}

#[test]
fn a_repository_of_one_side_is_taken_as_a_whole() {
    for format in [&[][..], &["--object-format=sha256"]] {
        let home = Home::new();
        let one = Git::init(home.dir("one"), format);
        one.run(&["config", "index.version", "4"]);
        commit(&one, "a", "1\n");
        home.open("mr/app", "one");
        home.push(&one.dir);
        let two = Git::of(home.open("mr/app", "two"));
        two.run(&["status"]);
        commit(&one, "dir/b", "2\n");
        one.run(&["branch", "topic"]);
        one.run(&["tag", "v1"]);
        one.run(&["gc", "--quiet"]);
        home.push(&one.dir);
        write(&two.dir, "untracked", "x");
        home.run(&two.dir, &["pull"]);
        two.check();
        let all = ["for-each-ref"];
        assert_eq!(two.run(&all), one.run(&all));
        assert_eq!(two.status(), "?? untracked");
    }
}

#[test]
fn two_changed_repositories_are_joined_by_the_commands_of_the_report() {
    let home = Home::new();
    let (one, two) = two(&home);
    let of_one = commit(&one, "a", "of one\n");
    commit(&one, "new", "new\n");
    one.run(&["branch", "topic"]);
    write(&one.dir, "b", "not committed\n");
    write(&one.dir, "note", "untracked\n");
    home.push(&one.dir);
    let of_two = commit(&two, "c", "of two\n");
    let text = home.exits(&two.dir, &["pull"], 1);
    for part in [
        "conflict: .git stays as it is; the version of ",
        &format!("  here:  HEAD is main {}\n", &of_two[..12]),
        "  there: HEAD is main ",
        ", topic ",
    ] {
        assert_has(&text, part);
    }
    // Ours is untouched. What theirs has in no commit is here, beside ours.
    assert_eq!(two.run(&["rev-parse", "HEAD"]), of_two);
    assert_eq!(
        (read(&two.dir, "a"), read(&two.dir, "b")),
        ("1\n".into(), "1\n".into())
    );
    assert!(!two.dir.join("new").exists());
    assert_eq!(read(&two.dir, "note"), "untracked\n");
    let status = two.status();
    let lines: Vec<&str> = status.lines().collect();
    assert!(
        lines.len() == 2 && lines[0].contains("?? b.conflict-"),
        "{status}"
    );
    assert_eq!(lines[1], "?? note");
    for repository in [&two, &Git::of_repository(&conflict_copies(&two.dir)[0])] {
        repository.check();
    }
    for line in text.lines().filter_map(|line| line.strip_prefix("    ")) {
        output(two.shell(line).env("GIT_EDITOR", "true"));
    }
    output(&mut two.shell("rm -rf .git.conflict-*"));
    two.run(&["merge-base", "--is-ancestor", &of_one, "HEAD"]);
    two.run(&["merge-base", "--is-ancestor", &of_two, "HEAD"]);
    let files = ["a", "c", "new"].map(|name| read(&two.dir, name));
    assert_eq!(files, ["of one\n", "of two\n", "new\n"]);
    assert_eq!(
        two.run(&["rev-parse", "topic"]),
        one.run(&["rev-parse", "topic"])
    );
    two.check();
    home.push(&two.dir);
    // There, the repository was not changed since its push.
    home.run(&one.dir, &["pull"]);
    assert_eq!(
        one.run(&["rev-parse", "HEAD"]),
        two.run(&["rev-parse", "HEAD"])
    );
    assert_eq!(read(&one.dir, "b"), "1\n");
    one.check();
}

#[test]
fn a_kept_repository_is_reported_where_it_arrives() {
    let home = Home::new();
    let (one, two) = two(&home);
    commit(&one, "a", "of one\n");
    home.push(&one.dir);
    commit(&two, "a", "of two\n");
    home.exits(&two.dir, &["pull"], 1);
    home.push(&two.dir);
    let text = home.run(&one.dir, &["pull"]);
    assert_has(&text, "is a repository that was in conflict on ");
    assert_eq!(read(&one.dir, "a"), "of two\n");
    assert_eq!(one.status(), "");
    Git::of_repository(&conflict_copies(&one.dir)[0]).check();
}

/// Some people keep several work trees of a repository in `.bare`.
#[test]
fn repositories_with_other_names_are_merged_as_a_whole() {
    for link in [false, true] {
        let home = Home::new();
        let one = Git::of(home.dir("one"));
        Git::init(one.dir.join(".bare"), &["--bare"]);
        match link {
            false => write(&one.dir, ".git", "gitdir: ./.bare\n"),
            true => std::os::unix::fs::symlink(".bare", one.dir.join(".git")).unwrap(),
        }
        one.run(&["config", "core.bare", "false"]);
        commit(&one, "a", "1\n");
        one.run(&["checkout", "--quiet", "-b", "topic"]);
        let topic = commit(&one, "a", "work\n");
        one.run(&["checkout", "--quiet", "main"]);
        home.open("mr/app", "one");
        home.push(&one.dir);
        let two = Git::of(home.open("mr/app", "two"));
        // What one side has refreshed is no change.
        two.run(&["status"]);
        let base = commit(&one, "a", "more\n");
        home.push(&one.dir);
        home.run(&two.dir, &["pull"]);
        assert_eq!(two.run(&["rev-parse", "main"]), base);
        // One machine needs a commit that the other one deletes.
        two.run(&["branch", "keep", "topic"]);
        home.push(&two.dir);
        one.run(&["branch", "--quiet", "-D", "topic"]);
        one.run(&["reflog", "expire", "--expire=now", "--all"]);
        one.run(&["gc", "--quiet", "--prune=now"]);
        let text = home.exits(&one.dir, &["pull"], 1);
        assert_has(&text, "conflict: .bare stays as it is");
        one.check();
        home.push(&one.dir);
        home.run(&two.dir, &["pull"]);
        let mut entries = fs::read_dir(&two.dir).unwrap().flatten();
        let is_kept = |name: &str| name.starts_with(".bare.conflict-");
        let kept = entries.find(|one| is_kept(&one.file_name().to_string_lossy()));
        let kept = Git::of_repository(&kept.unwrap().path());
        kept.check();
        assert_eq!(kept.run(&["rev-parse", "keep"]), topic);
    }
}

#[test]
fn submodules_are_merged_with_the_repository_that_has_them() {
    let home = Home::new();
    let library = Git::init(home.dir("library"), &[]);
    commit(&library, "x", "1\n");
    let one = Git::init(home.dir("one"), &[]);
    let url = library.dir.to_str().unwrap();
    one.run(&[
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "--quiet",
        "add",
        url,
        "sub",
    ]);
    one.run(&["commit", "--quiet", "--message", "sub"]);
    home.open("mr/app", "one");
    home.push(&one.dir);
    let two = Git::of(home.open("mr/app", "two"));
    // Of one side, with the work tree.
    two.run(&["status"]);
    let sub = |git: &Git| Git::of(git.dir.join("sub"));
    let first = commit(&sub(&one), "x", "2\n");
    one.run(&["commit", "--quiet", "--all", "--message", "2"]);
    home.push(&one.dir);
    home.run(&two.dir, &["pull"]);
    assert_eq!(sub(&two).run(&["rev-parse", "HEAD"]), first);
    assert_eq!(two.status(), "");
    assert_eq!(sub(&two).status(), "");
    // Of both sides: all of ours stays.
    commit(&sub(&one), "x", "3\n");
    commit(&one, "y", "3\n");
    home.push(&one.dir);
    let ours = commit(&two, "z", "4\n");
    let text = home.exits(&two.dir, &["pull"], 1);
    assert_eq!(two.run(&["rev-parse", "HEAD"]), ours);
    assert_eq!(read(&two.dir, "sub/x"), "2\n");
    assert_eq!(two.status(), "");
    assert_eq!(sub(&two).status(), "");
    assert_has(&text, "--git-dir=.git/modules/sub fetch ");
    let fetch = text
        .lines()
        .find(|line| line.contains("modules/sub fetch"))
        .unwrap();
    output(&mut two.shell(fetch));
    sub(&two).check();
}

#[test]
fn a_push_waits_for_a_command_that_changes_the_repository() {
    let home = Home::new();
    let (one, two) = two(&home);
    let lock = one.dir.join(".git/index.lock");
    write(&one.dir, "a", "2\n");
    fs::write(&lock, "").unwrap();
    let refused = |command| {
        let text = home.exits(&one.dir, &[command], 1);
        assert_has(
            &text,
            ".git/index.lock\" exists: another command is changing the repository",
        );
        assert_has(&text, "if none is running, remove the file first");
    };
    refused("push");
    write(&two.dir, "b", "2\n");
    assert_eq!(home.push(&two.dir), 2);
    refused("pull");
    assert_eq!(read(&one.dir, "b"), "1\n");
    let mut pull = Process::spawn(&mut home.command_in(&one.dir, &["pull"]));
    fs::remove_file(&lock).unwrap();
    assert_eq!(pull.wait(), Some(0));
    assert_eq!(home.push(&one.dir), 3);
}

/// A commit that has read the index before the pull would revert what the pull brings.
#[test]
fn no_command_changes_a_repository_during_a_pull() {
    let home = Home::new();
    let (one, two) = two(&home);
    let new = commit(&one, "a", "of one\n");
    home.push(&one.dir);
    // Each command of git that would change the index during the pull is refused.
    let lock = two.dir.join(".git/index.lock");
    let mut pull = support::bare("strace");
    pull.args(["-f", "-o", "/dev/null", "--trace=renameat,renameat2"]);
    pull.arg("--inject=renameat,renameat2:delay_enter=100000");
    pull.args([env!("CARGO_BIN_EXE_samovar"), "workspace", "pull"]);
    pull.env("SAMOVAR_CACHE", home.server.url());
    pull.env("SAMOVAR_TOKEN", &home.token);
    pull.env("XDG_STATE_HOME", home.dir("state"));
    let Ok(mut pull) = Process::try_spawn(pull.current_dir(&two.dir)) else {
        println!("not tested: there is no strace");
        return;
    };
    testkit::eventually("the pull holds the lock", || lock.exists());
    assert!(
        two.try_run(&["commit", "--allow-empty", "--message", "x"])
            .is_err()
    );
    assert_eq!(pull.wait(), Some(0));
    assert!(!lock.exists());
    assert_eq!(two.run(&["rev-parse", "HEAD"]), new);
    assert_eq!(two.status(), "");
}

/// The lock of a killed pull does not stop the next one.
#[test]
fn the_lock_of_a_killed_pull_is_removed() {
    let home = Home::new();
    let (one, two) = two(&home);
    commit(&one, "a", "of one\n");
    home.push(&one.dir);
    write(&two.dir, ".git/index.lock", "samovar workspace\n");
    home.run(&two.dir, &["pull"]);
    assert_eq!(two.status(), "");
    assert!(!two.dir.join(".git/index.lock").exists());
    write(&two.dir, ".git/index.lock", "samovar workspace\n");
    home.run(&two.dir, &["restore", "@1", "--force"]);
    assert!(!two.dir.join(".git/index.lock").exists());
    assert_eq!(two.status(), "");
}

/// Returns whether the repository of a work tree or one of its copies has an object.
fn has(dir: &Path, object: &str) -> bool {
    let mut repositories = conflict_copies(dir);
    repositories.push(Git::of(dir.to_owned()).repository());
    let mut repositories = repositories.iter();
    repositories.any(|path| {
        Git::of_repository(path)
            .try_run(&["cat-file", "-e", object])
            .is_ok()
    })
}

/// One of two machines that work on the same repository.
struct Machine {
    git: Git,
    name: &'static str,
    /// Files with changes that are in no commit.
    pending: Vec<String>,
    count: usize,
}

impl Machine {
    /// Does something at random. Returns the commits that were made.
    fn work(&mut self, random: &mut fastrand::Rng) -> Vec<String> {
        let git = &self.git;
        self.count += 1;
        let text = format!("{} {}\n", self.name, self.count);
        let mut commits = Vec::new();
        match random.u8(0..14) {
            0..=2 => {
                let file = format!("{}/{}", self.name, random.u8(0..4));
                self.edit(&file, &text);
            }
            3 => self.edit("shared", &text),
            4..=6 => commits.extend(self.commit(&text)),
            7 => {
                // The other machine may have stashed what is pending here.
                let mut pending = self.pending.iter();
                if let Some(file) = pending.find(|file| git.dir.join(file).exists()) {
                    git.run(&["add", file]);
                }
            }
            8 => {
                git.run(&["status"]);
            }
            9 => {
                git.run(&["gc", "--quiet"]);
            }
            10 => {
                let branch = format!("{}-{}", self.name, self.count);
                git.run(&["switch", "--quiet", "--create", &branch]);
            }
            11 if self.pending.is_empty() => {
                git.run(&["switch", "--quiet", "main"]);
            }
            12 if !self.pending.is_empty() => {
                // The other machine may have committed what is pending here.
                let has_changes = !git.changes().is_empty();
                git.run(&["stash", "--quiet"]);
                if has_changes {
                    commits.push(git.run(&["rev-parse", "stash"]));
                }
                self.pending.clear();
            }
            _ => write(&git.dir, &format!("build/{}", self.name), text),
        }
        commits
    }

    fn edit(&mut self, file: &str, text: &str) {
        write(&self.git.dir, file, text);
        if self
            .git
            .try_run(&["ls-files", "--error-unmatch", file])
            .is_ok()
        {
            self.pending.push(file.to_owned());
        } else {
            self.git.run(&["add", file]);
            self.pending.push(file.to_owned());
        }
    }

    /// Commits all changes, which must be those that were made in work trees.
    fn commit(&mut self, text: &str) -> Vec<String> {
        let git = &self.git;
        let file = format!("commits/{}-{}", self.name, self.count);
        write(&git.dir, &file, text);
        git.run(&["add", &file]);
        git.run(&["commit", "--quiet", "--all", "--message", text.trim()]);
        let changed = git.run(&["diff", "--name-only", "HEAD~1", "HEAD"]);
        for path in changed.lines() {
            let is_known = path == file || self.pending.iter().any(|pending| pending == path);
            assert!(is_known, "{text:?} changes {path}, which nobody has edited");
        }
        self.pending.clear();
        vec![git.run(&["rev-parse", "HEAD"])]
    }

    /// Joins a repository that was kept, by the commands of the report. Returns the commits that
    /// were made.
    fn join(&mut self, report: &str) -> Vec<String> {
        let commands = report.lines().filter_map(|line| line.strip_prefix("    "));
        let mut is_joined = true;
        for command in commands {
            let mut command = self.git.shell(command);
            let done = testkit::process::finish(&mut command);
            // The same file was changed on both machines, or has changes that are in no commit.
            if !done.status.success() {
                is_joined = false;
                self.git.try_run(&["merge", "--abort"]).ok();
            }
        }
        if is_joined && self.pending.is_empty() {
            self.git.try_run(&["switch", "--quiet", "main"]).ok();
        }
        vec![self.git.run(&["rev-parse", "HEAD"])]
    }
}

/// Set the environment variable to 420 for the long form.
#[test]
fn random_work_in_repositories_is_merged_without_loss() {
    let merges = std::env::var("SAMOVAR_GIT_MERGES");
    let merges: usize = merges.map_or(8, |number| number.parse().unwrap());
    let seed = std::env::var("SAMOVAR_GIT_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut random = fastrand::Rng::with_seed(seed);
    let home = Home::new();
    let mut done = 0;
    let mut conflicts = 0;
    let rounds = if merges < 100 { 2 } else { 10 };
    for tree in 0.. {
        if done >= merges {
            break;
        }
        let (one, two) = pair(&home, tree);
        let mut machines = [("one", one), ("two", two)].map(|(name, git)| Machine {
            git,
            name,
            pending: Vec::new(),
            count: 0,
        });
        let mut commits = Vec::new();
        for round in 0..rounds.min(merges - done) {
            for machine in &mut machines {
                for _ in 0..random.usize(0..5) {
                    commits.extend(machine.work(&mut random));
                }
            }
            let [one, two] = &mut machines;
            let (from, to) = if round % 2 == 0 {
                (one, two)
            } else {
                (two, one)
            };
            conflicts += usize::from(merge(&home, from, to, &mut commits, &mut random));
            done += 1;
        }
    }
    assert!(
        done == merges && (merges < 100 || conflicts > merges / 10),
        "{conflicts} of {done}"
    );
}

/// Two workspaces of a new ref, whose repositories are in `.git` or elsewhere.
fn pair(home: &Home, number: usize) -> (Git, Git) {
    let name = format!("mr/app{number}");
    let one = Git::init(home.dir(&format!("{number}-one")), &[]);
    commit(&one, "shared", "0\n");
    let link = one.dir.join(".git");
    let repository = [".git", ".bare", "gd", "gd"][number % 4];
    if repository != ".git" {
        fs::rename(&link, one.dir.join(repository)).unwrap();
        match number % 4 {
            3 => std::os::unix::fs::symlink(repository, &link).unwrap(),
            _ => fs::write(&link, format!("gitdir: ./{repository}\n")).unwrap(),
        }
    }
    home.open(&name, &format!("{number}-one"));
    home.push(&one.dir);
    let two = Git::of(home.open(&name, &format!("{number}-two")));
    (one, two)
}

/// Pushes from one machine, pulls on the other one, and checks the repositories there. Returns
/// whether they were in conflict.
fn merge(
    home: &Home,
    from: &Machine,
    to: &mut Machine,
    commits: &mut Vec<String>,
    random: &mut fastrand::Rng,
) -> bool {
    push(home, &from.git.dir);
    let before = (to.git.run(&["rev-parse", "HEAD"]), to.git.changes());
    let mut pull = home.command_in(&to.git.dir, &["pull"]);
    let found = testkit::process::finish(&mut pull);
    let text = String::from_utf8(found.stdout).unwrap();
    let errors = String::from_utf8(found.stderr).unwrap();
    assert!(
        matches!(found.status.code(), Some(0 | 1)) && errors.is_empty(),
        "{text}{errors}"
    );
    let unit = to.git.repository();
    let unit = unit.file_name().unwrap().to_str().unwrap();
    let is_conflict = text.contains(&format!("conflict: {unit} stays"));
    match is_conflict {
        // The work tree is merged by path.
        true if unit != ".git" => to.pending = to.git.changes(),
        true => assert_eq!(
            (to.git.run(&["rev-parse", "HEAD"]), to.git.changes()),
            before
        ),
        // Only changes of work trees may look like changes.
        false => to.pending.extend(from.pending.iter().cloned()),
    }
    to.git.check();
    for copy in conflict_copies(&to.git.dir) {
        Git::of_repository(&copy).check();
    }
    for changed in to.git.changes() {
        assert!(
            to.pending.contains(&changed),
            "{changed} has changed\n{text}"
        );
    }
    for commit in commits.iter() {
        assert!(has(&to.git.dir, commit), "{commit} is lost\n{text}");
    }
    if is_conflict && random.bool() {
        commits.extend(to.join(&text));
    }
    is_conflict
}

/// Pushes, after merging what another machine has pushed.
fn push(home: &Home, dir: &Path) {
    let text = home.run(dir, &["push"]);
    assert!(
        text.contains("sent in") || text.contains("nothing to push"),
        "{text}"
    );
}
