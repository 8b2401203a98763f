//! The report of the conflicts of a merge: what was kept, and how to join repositories.

use std::io::{self, Write};
use std::path::Path;

use samovar_workspace::repository::{Contents, Names, is_copy};
use samovar_workspace::{Entries, Kind, Root};

use super::state::shown_path;

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
    /// Prints a conflict. If it is one of a repository of git, hides the copy from git.
    pub(super) fn conflict(
        &self,
        conflict: &Conflict,
        root: &Path,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let kept = self.ours.path(conflict.ours);
        writeln!(
            out,
            "conflict: {} stays as it is; that of {} is {}",
            shown_path(&kept),
            self.host,
            shown_path(&conflict.copy)
        )?;
        let is_repository = is_copy(name(&conflict.copy))
            && is_directory(self.theirs, conflict.theirs)
            && is_directory(self.ours, conflict.ours);
        if !is_repository {
            return Ok(());
        }
        writeln!(
            out,
            "  The files that it tracks stay as they are, too. Both repositories are kept."
        )?;
        if name(&kept) != b".git" {
            return Ok(());
        }
        // Without this file, git add --all would add the copy.
        let path = [&conflict.copy, &b"/.gitignore"[..]].concat();
        let created = Root::open(root).and_then(|root| root.create_file(&path, 0o644));
        created
            .and_then(|mut file| file.write_all(b"*\n"))
            .unwrap_or_default();
        let ours = Names::of_unit(self.ours, conflict.ours, self.contents);
        let theirs = Names::of_unit(self.theirs, conflict.theirs, self.contents);
        for names in &theirs {
            let same = ours.iter().find(|ours| ours.path == names.path);
            let none = Names::default();
            report_names(same.unwrap_or(&none), names, &conflict.copy, out)?;
        }
        let copy = quoted(&conflict.copy);
        writeln!(
            out,
            "  It also has what is staged and stashed there: git --git-dir={copy} diff --cached; \
             git --git-dir={copy} stash list\n  \
             If you need nothing else of it: rm -rf {copy}"
        )
    }

    /// Prints the conflict copies of repositories that another machine has pushed.
    pub(super) fn copies(&self, out: &mut dyn Write) -> io::Result<()> {
        for (index, entry) in self.theirs.list().iter().enumerate() {
            let is_new = is_copy(&entry.name) && is_directory(self.theirs, index);
            let path = self.theirs.path(index);
            if is_new && self.ours.find(&path).is_none() {
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

/// Prints which commits two repositories have names for, and how to join them. `copy`: path of the
/// unit that has theirs.
fn report_names(ours: &Names, theirs: &Names, copy: &[u8], out: &mut dyn Write) -> io::Result<()> {
    if ours == theirs {
        return Ok(());
    }
    writeln!(out, "  here:  {}", summary(ours, theirs))?;
    writeln!(out, "  there: {}", summary(theirs, ours))?;
    let parent = copy
        .get(..copy.len() - name(copy).len())
        .unwrap_or_default();
    let git = match parent.strip_suffix(b"/") {
        Some(parent) => format!("git -C {}", quoted(parent)),
        None => "git".to_owned(),
    };
    let (git, source) = match &*theirs.path {
        b"" => (git, quoted(&[b"./", name(copy)].concat())),
        path => (
            format!("{git} --git-dir={}", quoted(&[b".git/", path].concat())),
            quoted(&[b"./", name(copy), b"/", path].concat()),
        ),
    };
    let space = namespace(name(copy), ours);
    let mut commands = vec![format!("{git} fetch {source} 'refs/*:refs/{space}/*'")];
    if !theirs.head.starts_with("refs/") {
        commands = vec![format!(
            "{git} fetch {source} 'refs/*:refs/{space}/*' HEAD:refs/{space}/HEAD"
        )];
        commands.push(format!("{git} merge refs/{space}/HEAD"));
    }
    for (branch, commit) in &theirs.commits {
        let short = branch.strip_prefix("refs/heads/");
        let Some(short) = short.filter(|_| ours.commits.get(branch) != Some(commit)) else {
            continue;
        };
        let source = quoted(format!("refs/{space}/heads/{short}").as_bytes());
        let short = quoted(short.as_bytes());
        commands.push(
            match ours.commits.contains_key(branch) || ours.head == *branch {
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
    writeln!(out, "  To join them, run:\n    {}", commands.join("\n    "))
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

/// Returns the part of the names of fetched commits that says where they are from. `ours` has no
/// names with it: git would not replace those of an earlier conflict.
fn namespace(copy: &[u8], ours: &Names) -> String {
    let copy = String::from_utf8_lossy(copy);
    let copy = copy.trim_start_matches(".git.");
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
        report_names(ours, theirs, b"a b/.git.conflict-h.x-2026", &mut out).unwrap();
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
