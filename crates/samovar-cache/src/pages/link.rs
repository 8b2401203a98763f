//! Targets of symbolic links in store paths.

use samovar_nix::{StoreDir, StorePath};

/// The destination of a symbolic link: a file or directory in this store path or in another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) path: StorePath,
    pub(crate) names: Vec<Vec<u8>>,
}

/// Resolves a symbolic link in the directory `above` of a store path. Returns `None` if the target
/// is outside the store, or the store directory itself.
///
/// The resolution is purely lexical: nothing is opened, and `..` removes the preceding name. The
/// target is then requested and checked like any other, so a wrong resolution reveals nothing.
pub(crate) fn destination(
    dir: &StoreDir,
    path: &StorePath,
    above: &[&[u8]],
    target: &[u8],
) -> Option<Destination> {
    let text = dir.as_str();
    let store: Vec<&[u8]> = names(text.as_bytes()).collect();
    let mut components: Vec<&[u8]> = Vec::new();
    if !target.starts_with(b"/") {
        components.extend(&store);
        components.push(path.base_name().as_bytes());
        components.extend(above);
    }
    for name in names(target) {
        match name {
            b".." => drop(components.pop()),
            name => components.push(name),
        }
    }
    let mut rest = components.strip_prefix(&*store)?.iter();
    let base_name = std::str::from_utf8(rest.next()?).ok()?;
    Some(Destination {
        path: StorePath::from_base_name(base_name).ok()?,
        names: rest.map(|name| name.to_vec()).collect(),
    })
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let names = path.split(|byte| *byte == b'/');
    names.filter(|name| !matches!(*name, b"" | b"."))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5-own";
    const OTHER: &str = "6qmyzr6ifmynrpkzk4jl7x6h0vhlb6rl-other";

    #[track_caller]
    fn check(above: &str, target: &str, expected: Option<(&str, &str)>) {
        let target = target.replace("{OTHER}", OTHER).replace("{OWN}", OWN);
        let above: Vec<&[u8]> = names(above.as_bytes()).collect();
        let dir = StoreDir::default();
        let own = StorePath::from_base_name(OWN).unwrap();
        let found = destination(&dir, &own, &above, target.as_bytes());
        let found = found.map(|found| {
            let names: Vec<_> = found
                .names
                .iter()
                .map(|name| String::from_utf8_lossy(name).into_owned())
                .collect();
            (found.path.base_name().to_owned(), names.join("/"))
        });
        let expected = expected.map(|(path, names)| (path.to_owned(), names.to_owned()));
        assert_eq!(found, expected, "{target}");
    }

    #[test]
    fn links_are_resolved_within_the_store_only() {
        check("bin", "tool", Some((OWN, "bin/tool")));
        check("bin", "./a//../b/", Some((OWN, "bin/b")));
        check("bin", "../lib/x", Some((OWN, "lib/x")));
        check("", ".", Some((OWN, "")));
        check("bin", "../../{OTHER}/x", Some((OTHER, "x")));
        check("", "/nix/store/{OTHER}", Some((OTHER, "")));
        check("", "/nix/store/{OWN}/a", Some((OWN, "a")));
        check("", "/nix/store/{OTHER}/../{OWN}", Some((OWN, "")));
        for out in [
            "..",
            "../..",
            "/etc/passwd",
            "/nix/store",
            "/nix/store/x",
            "/nix/storey/{OTHER}",
            "../../../etc/passwd",
            "/../../etc",
        ] {
            check("", out, None);
        }
    }
}
