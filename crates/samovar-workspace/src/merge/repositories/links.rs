//! Links: the files and symbolic links `.git` that name the repository of a work tree.

/// Directories of a repository that belong to a work tree or a submodule.
const PARTS: [&[u8]; 2] = [b"worktrees", b"modules"];

/// Returns which of these repositories a link names. The link may have come from another machine;
/// then only the end of the path in it is the same. `link`: contents of the file, or target.
/// `directory`: path of the work tree. `repositories`: their paths. All paths are relative to the
/// root of the workspace.
pub(super) fn named<T>(
    link: &[u8],
    directory: &[u8],
    repositories: impl IntoIterator<Item = (Vec<u8>, T)>,
) -> Option<T> {
    let path = link.strip_prefix(b"gitdir: ").unwrap_or(link);
    let path = path.trim_ascii_end();
    let is_absolute = path.starts_with(b"/");
    let mut names = match is_absolute {
        true => Vec::new(),
        false => split(directory),
    };
    for name in split(path) {
        match name {
            b"." => {}
            // The repository may be outside of the workspace.
            b".." => drop(names.pop()?),
            name => names.push(name),
        }
    }
    let is_part = |rest: &[&[u8]]| rest.first().is_none_or(|name| PARTS.contains(name));
    let is_named = |repository: &[&[u8]]| {
        let mut starts = 0..=names.len();
        starts.any(|start| {
            let rest = names.get(start..).unwrap_or_default();
            let rest = rest.strip_prefix(repository);
            (is_absolute || start == 0) && rest.is_some_and(is_part)
        })
    };
    let named = repositories.into_iter().filter_map(|(path, found)| {
        let path = split(&path);
        is_named(&path).then_some((path.len(), found))
    });
    named.max_by_key(|(len, _)| *len).map(|(_, found)| found)
}

fn split(path: &[u8]) -> Vec<&[u8]> {
    let names = path.split(|byte| *byte == b'/');
    names.filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(link: &str, expected: Option<&str>) {
        let all = [".git", "a/.git", "a/b.git", "b.git"];
        let repositories = all.map(|path| (path.as_bytes().to_vec(), path));
        assert_eq!(named(link.as_bytes(), b"a/tree", repositories), expected);
    }

    #[test]
    fn links_name_repositories_of_the_workspace() {
        check("gitdir: ../../.git/modules/x/worktrees/y\n", Some(".git"));
        check("gitdir: ../.git/worktrees/y\n", Some("a/.git"));
        check("gitdir: ../b.git\n", Some("a/b.git"));
        check("../b.git", Some("a/b.git"));
        check("./.././../b.git/", Some("b.git"));
        check("gitdir: ../../../.git", None);
        check("gitdir: ../b.git/refs", None);
        check("gitdir: ../c.git", None);
    }

    #[test]
    fn paths_of_other_machines_have_the_same_end() {
        check("gitdir: /home/x/a/b.git/worktrees/y\n", Some("a/b.git"));
        check("gitdir: /home/x/b.git/worktrees/y\n", Some("b.git"));
        check("gitdir: /x/a/.git/worktrees/y\n", Some("a/.git"));
        check("gitdir: /x/.git/worktrees/y\n", Some(".git"));
        check("gitdir: /x/c.git/worktrees/y\n", None);
        check("gitdir: /\n", None);
        check("", None);
    }
}
