//! The report of the conflicts of a merge: what was kept, and how to join repositories.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use samovar_text::shown_path;
use samovar_workspace::merge::work_tree;
use samovar_workspace::repository::{COPY, Contents, Names, is_conflict_copy, is_copy};
use samovar_workspace::{Entries, Kind, Root};

/// Maximum number of names of commits that are printed for a repository.
const NAMED_COUNT: usize = 8;

/// Number of digits of a commit that are printed.
const COMMIT_LEN: usize = 12;

/// A conflict of a merge.
#[derive(Debug)]
pub(super) struct Conflict {
    /// Index of our entry, which stays.
    pub(super) ours: usize,
    /// Index of their entry.
    pub(super) theirs: usize,
    /// Path of the copy of theirs.
    pub(super) copy: Vec<u8>,
}

/// A repository of git that was kept.
struct Repository {
    path: Vec<u8>,
    tree: WorkTree,
}

/// The work tree of a repository.
#[derive(Debug, PartialEq, Eq)]
enum WorkTree {
    /// The directory that contains the repository.
    Parent,
    /// The directory with this path.
    At(Vec<u8>),
    /// It has none, or only additional ones.
    None,
}

/// Prints the conflicts of a merge.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) ours: &'a Entries,
    pub(super) theirs: &'a Entries,
    pub(super) contents: &'a Contents,
    /// Name of the machine that has pushed theirs.
    pub(super) host: &'a str,
}

impl Report<'_> {
    /// Prints a conflict. If the conflict is about a git repository, hides the copy from git.
    pub(super) fn conflict(
        &self,
        conflict: &Conflict,
        root: &Path,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let kept = self.ours.path(conflict.ours);
        writeln!(
            out,
            "conflict: {} stays as it is; the version of {} is stored as {}",
            shown_path(&kept),
            self.host,
            shown_path(&conflict.copy)
        )?;
        let directories = [(self.ours, conflict.ours), (self.theirs, conflict.theirs)];
        if !directories
            .iter()
            .all(|(entries, index)| is_directory(entries, *index))
        {
            return Ok(());
        }
        let ours = Names::of_unit(self.ours, conflict.ours, self.contents);
        let theirs = Names::of_unit(self.theirs, conflict.theirs, self.contents);
        let has_other_name = !is_copy(name(&conflict.copy));
        if has_other_name && theirs.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "  The files that the repository tracks stay as they are, too. Both repositories are \
             kept."
        )?;
        if name(&kept) != b".git" && !has_other_name {
            return Ok(());
        }
        let repository = Repository {
            tree: self.work_tree(conflict.ours, &kept, root),
            path: kept,
        };
        // Without this file, git add --all would add the copy.
        let path = [&conflict.copy, &b"/.gitignore"[..]].concat();
        let created = Root::open(root).and_then(|root| root.create_file(&path, 0o644));
        created
            .and_then(|mut file| file.write_all(b"*\n"))
            .unwrap_or_default();
        for names in &theirs {
            let same = ours.iter().find(|ours| ours.path == names.path);
            let none = Names::default();
            let ours = same.unwrap_or(&none);
            report_names(&repository, ours, names, &conflict.copy, out)?;
        }
        let copy = quoted(&conflict.copy);
        if repository.tree != WorkTree::None {
            writeln!(
                out,
                "  The other repository also has staged or stashed changes: git --git-dir={copy} \
                 diff --cached; git --git-dir={copy} stash list"
            )?;
        }
        writeln!(
            out,
            "  When you need nothing else of that repository: rm -rf {copy}"
        )
    }

    /// Returns how the work tree of our repository is found. `root`: the root of the workspace.
    fn work_tree(&self, unit: usize, path: &[u8], root: &Path) -> WorkTree {
        if name(path) == b".git" {
            return WorkTree::Parent;
        }
        let config = root.join(OsStr::from_bytes(path)).join("config");
        let config = fs::read_to_string(config).unwrap_or_default();
        let mut lines = config.lines().map(|line| line.replace([' ', '\t'], ""));
        if lines.any(|line| line.eq_ignore_ascii_case("bare=true")) {
            return WorkTree::None;
        }
        let found = work_tree(self.ours, unit, self.contents);
        found.map_or(WorkTree::None, WorkTree::At)
    }

    /// Prints the conflict copies of repositories that another machine has pushed.
    pub(super) fn copies(&self, out: &mut dyn Write) -> io::Result<()> {
        for index in 0..self.theirs.list().len() {
            if !is_conflict_copy(self.theirs, index) {
                continue;
            }
            let path = self.theirs.path(index);
            if self.ours.find(&path).is_none() {
                writeln!(
                    out,
                    "note: {} is a repository that was in conflict on {}: join it, or remove it",
                    shown_path(&path),
                    self.host
                )?;
            }
        }
        Ok(())
    }
}

fn is_directory(entries: &Entries, index: usize) -> bool {
    let kind = entries.get(index).map(|entry| &entry.kind);
    matches!(kind, Some(Kind::Directory { .. }))
}

/// Returns the last name of a path.
fn name(path: &[u8]) -> &[u8] {
    let start = path.iter().rposition(|byte| *byte == b'/');
    path.get(start.map_or(0, |at| at + 1)..).unwrap_or_default()
}

impl Repository {
    /// Returns the command `git` for this repository or, if `part` is not empty, for the repository
    /// of a submodule at this path in it. Also returns the path of the conflict copy for `fetch`.
    fn git(&self, part: &[u8], copy: &[u8]) -> (String, String) {
        let parent = copy
            .get(..copy.len() - name(copy).len())
            .unwrap_or_default();
        let in_parent = match parent.strip_suffix(b"/") {
            Some(parent) => format!("git -C {}", quoted(parent)),
            None => "git".to_owned(),
        };
        match (&self.tree, part) {
            (WorkTree::Parent, b"") => (in_parent, quoted(&[b"./", name(copy)].concat())),
            (WorkTree::Parent, part) => (
                format!(
                    "{in_parent} --git-dir={}",
                    quoted(&[b".git/", part].concat())
                ),
                quoted(&[b"./", name(copy), b"/", part].concat()),
            ),
            (tree, b"") => {
                let tree = match tree {
                    WorkTree::At(path) if path.is_empty() => " --work-tree=.".to_owned(),
                    WorkTree::At(path) => format!(" --work-tree={}", quoted(path)),
                    _ => String::new(),
                };
                let git = format!("git --git-dir={}{tree}", quoted(&self.path));
                (git, quoted(&[b"./", copy].concat()))
            }
            (_, part) => (
                format!(
                    "git --git-dir={}",
                    quoted(&[&self.path, &b"/"[..], part].concat())
                ),
                quoted(&[b"./", copy, b"/", part].concat()),
            ),
        }
    }
}

/// Prints which commits two repositories have names for, and how to join them. `copy`: path of the
/// unit that has theirs.
fn report_names(
    repository: &Repository,
    ours: &Names,
    theirs: &Names,
    copy: &[u8],
    out: &mut dyn Write,
) -> io::Result<()> {
    if ours == theirs {
        return Ok(());
    }
    writeln!(out, "  here:  {}", summary(ours, theirs))?;
    writeln!(out, "  there: {}", summary(theirs, ours))?;
    let (git, source) = repository.git(&theirs.path, copy);
    // A merge needs a work tree. Without one, the commits get branches of their own.
    let has_tree = repository.tree != WorkTree::None;
    let space = namespace(name(copy), ours);
    let mut commands = vec![format!("{git} fetch {source} 'refs/*:refs/{space}/*'")];
    if !theirs.head.starts_with("refs/") {
        commands = vec![format!(
            "{git} fetch {source} 'refs/*:refs/{space}/*' HEAD:refs/{space}/HEAD"
        )];
        commands.push(match has_tree {
            true => format!("{git} merge refs/{space}/HEAD"),
            false => format!("{git} branch {space}/HEAD refs/{space}/HEAD"),
        });
    }
    for (branch, commit) in &theirs.commits {
        let short = branch.strip_prefix("refs/heads/");
        let Some(short) = short.filter(|_| ours.commits.get(branch) != Some(commit)) else {
            continue;
        };
        let source = quoted(format!("refs/{space}/heads/{short}").as_bytes());
        let other = quoted(format!("{space}/{short}").as_bytes());
        let short = quoted(short.as_bytes());
        commands.push(
            match ours.commits.contains_key(branch) || ours.head == *branch {
                true if !has_tree => format!("{git} branch {other} {source}"),
                true if ours.head == *branch => format!("{git} merge {source}"),
                true => format!("{git} switch {short} && {git} merge {source}"),
                false => format!("{git} branch {short} {source}"),
            },
        );
    }
    let rest = commands.len().saturating_sub(NAMED_COUNT);
    commands.truncate(NAMED_COUNT);
    if rest > 0 {
        commands.push(format!("{git} for-each-ref refs/{space}"));
    }
    writeln!(out, "  To join them, run:\n    {}", commands.join("\n    "))?;
    match commands
        .iter()
        .any(|command| !has_tree && command.contains(&format!(" branch {space}/")))
    {
        true => writeln!(
            out,
            "  Then merge the branches {space}/… in a work tree or clone of the repository."
        ),
        false => Ok(()),
    }
}

/// Returns the names whose commits differ from those of another repository, beginning with `HEAD`.
fn summary(names: &Names, other: &Names) -> String {
    let short = |name: &str| {
        let rest = name.strip_prefix("refs/").unwrap_or(name);
        rest.strip_prefix("heads/").unwrap_or(rest).to_owned()
    };
    let commit = |commit: &str| commit.get(..COMMIT_LEN).unwrap_or(commit).to_owned();
    let mut texts = vec![match (&names.head, names.head_commit()) {
        (head, Some(found)) if head != found => {
            format!("HEAD is {} {}", short(head), commit(found))
        }
        (_, Some(found)) => format!("HEAD is {}", commit(found)),
        (head, None) if head.is_empty() => "no repository".to_owned(),
        (head, None) => format!("HEAD is {}, without commits", short(head)),
    }];
    let differing = names
        .commits
        .iter()
        .filter(|(name, commit)| other.commits.get(*name) != Some(*commit) && **name != names.head);
    texts.extend(differing.map(|(name, found)| format!("{} {}", short(name), commit(found))));
    let rest = texts.len().saturating_sub(NAMED_COUNT);
    texts.truncate(NAMED_COUNT);
    if rest > 0 {
        texts.push(format!("{rest} more"));
    }
    let text = texts.join(", ");
    shown_path(text.as_bytes())
}

/// Returns the part of the names of fetched commits that says where the commits are from. No name
/// in `ours` has this part, because git would not replace names of an earlier conflict.
fn namespace(copy: &[u8], ours: &Names) -> String {
    let start = copy.windows(COPY.len()).rposition(|part| part == COPY);
    let copy = copy.get(start.unwrap_or_default()..).unwrap_or_default();
    let copy = String::from_utf8_lossy(copy);
    let plain = |char: char| match char.is_ascii_alphanumeric() {
        true => char,
        false => '-',
    };
    let text: String = copy.chars().map(plain).collect();
    let text = text.trim_matches('-');
    let mut space = text.to_owned();
    let mut number = 1;
    while ours.has_below(&format!("refs/{space}/")) {
        number += 1;
        space = format!("{text}-{number}");
    }
    space
}

/// Quotes a path for a shell.
fn quoted(path: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"./_-".contains(byte);
    match shown_path(path) {
        text if path.iter().all(is_plain) && !path.is_empty() => text,
        text => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn names(head: &str, commits: &[(&str, &str)]) -> Names {
        let commits = commits.iter();
        let commits: BTreeMap<_, _> = commits
            .map(|(name, commit)| ((*name).to_owned(), (*commit).to_owned()))
            .collect();
        Names {
            path: Vec::new(),
            head: head.to_owned(),
            commits,
        }
    }

    fn report(ours: &Names, theirs: &Names) -> String {
        let mut out = Vec::new();
        let repository = Repository {
            path: b"a b/.git".to_vec(),
            tree: WorkTree::Parent,
        };
        let copy = b"a b/.git.conflict-h.x-2026";
        report_names(&repository, ours, theirs, copy, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_report_has_a_command_for_each_branch() {
        let ours = names(
            "refs/heads/main",
            &[("refs/heads/main", "1"), ("refs/heads/x", "1")],
        );
        let theirs = names(
            "refs/heads/main",
            &[
                ("refs/heads/main", "2"),
                ("refs/heads/n'", "2"),
                ("refs/heads/x", "3"),
            ],
        );
        let text = report(&ours, &theirs);
        for line in [
            "  here:  HEAD is main 1, x 1\n",
            "  there: HEAD is main 2, n' 2, x 3\n",
            "git -C 'a b' fetch ./.git.conflict-h.x-2026 'refs/*:refs/conflict-h-x-2026/*'\n",
            "git -C 'a b' merge refs/conflict-h-x-2026/heads/main\n",
            r"git -C 'a b' branch 'n'\''' 'refs/conflict-h-x-2026/heads/n'\'''",
            "git -C 'a b' switch x && git -C 'a b' merge refs/conflict-h-x-2026/heads/x\n",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert_eq!(report(&ours, &ours), "");
    }

    #[test]
    fn names_of_an_earlier_conflict_are_not_used_again() {
        let theirs = names("refs/heads/main", &[("refs/heads/main", "2")]);
        let first = "refs/conflict-h-x-2026/heads/main";
        let second = "refs/conflict-h-x-2026-2/stash";
        let ours = names(
            "refs/heads/main",
            &[("refs/heads/main", "1"), (first, "0"), (second, "0")],
        );
        let text = report(&ours, &theirs);
        let fetch = "'refs/*:refs/conflict-h-x-2026-3/*'";
        assert!(text.contains(fetch), "{text}");
    }

    #[test]
    fn a_head_without_a_branch_is_fetched_and_many_names_are_counted() {
        let many: Vec<String> = (0..20)
            .map(|number| format!("refs/heads/b{number}"))
            .collect();
        let many: Vec<(&str, &str)> = many.iter().map(|name| (&**name, "2")).collect();
        let text = report(&names("", &[]), &names("abc", &many));
        for part in [
            "here:  no repository",
            "HEAD is abc, b0 2",
            ", 13 more",
            "for-each-ref",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(text.contains("HEAD:refs/conflict-h-x-2026/HEAD"), "{text}");
    }
}
