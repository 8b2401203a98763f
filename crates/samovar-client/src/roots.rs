//! Parses the store paths on a command line.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, anyhow};
use samovar_nix::{HashPart, StoreDir, StorePath};

use crate::failed::Failed;

/// Maximum number of symbolic links that are followed, as in Linux.
const LINK_COUNT_MAX: usize = 40;

/// A store path that the command line names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// The argument, or the store path that it refers to.
    pub text: String,
    /// Hash part of the store path.
    pub hash_part: HashPart,
    /// The store path. `None`: the argument is a hash part.
    path: Option<StorePath>,
    /// The argument, if it is a symbolic link to the store path.
    link: Option<String>,
}

impl Root {
    fn new(path: &StorePath, dir: &StoreDir, link: Option<String>) -> Self {
        Self {
            text: path.full(dir),
            hash_part: path.hash_part(),
            path: Some(path.clone()),
            link,
        }
    }

    /// Describes the root in a message about its absence: the store path, and the link that leads
    /// to it.
    pub fn shown(&self) -> String {
        match &self.link {
            Some(link) => format!("{}, to which {link:?} leads,", self.text),
            None => self.text.clone(),
        }
    }

    /// Returns a message if `found`, the path with this hash part in `place`, has another name.
    pub fn misnamed(&self, found: &StorePath, dir: &StoreDir, place: &str) -> Option<String> {
        let is_other = self.path.as_ref().is_some_and(|path| path != found);
        is_other.then(|| {
            format!(
                "{} is not in {place}: the path with this hash part is {}",
                self.shown(),
                found.full(dir)
            )
        })
    }
}

/// Parses the arguments. The argument `-` stands for the lines of `input`.
///
/// # Errors
///
/// An argument or a line is no store path, or `-` is given twice.
pub fn read(words: &[String], dir: &StoreDir, input: impl BufRead) -> anyhow::Result<Vec<Root>> {
    let mut roots = Vec::new();
    let mut input = Some(input);
    for word in words {
        if word != "-" {
            roots.push(root(word, dir)?);
            continue;
        }
        let Some(input) = input.take() else {
            let error = anyhow!("- is given twice: standard input can be read only once");
            return Err(Failed::Usage.because(error));
        };
        for line in input.lines() {
            let line = line.context("cannot read standard input")?;
            if !line.trim().is_empty() {
                roots.push(root(line.trim(), dir)?);
            }
        }
    }
    Ok(roots)
}

/// Parses one argument: a full store path, the path of a file inside one, a base name, a hash part,
/// or a symbolic link to a store path.
fn root(text: &str, dir: &StoreDir) -> anyhow::Result<Root> {
    if let Ok(hash_part) = text.parse() {
        return Ok(Root {
            text: text.to_owned(),
            hash_part,
            path: None,
            link: None,
        });
    }
    let named = StorePath::from_base_name(text).ok();
    if let Some(path) = named.or_else(|| below(Path::new(text), dir)) {
        return Ok(Root::new(&path, dir, None));
    }
    let unknown =
        format!("{text:?} is not a path in {dir}, a base name, a hash part or a link to one");
    match follow(Path::new(text), dir) {
        Followed::Store(path) => Ok(Root::new(&path, dir, Some(text.to_owned()))),
        Followed::Gone(target) => Err(Failed::Usage.because(anyhow!(
            "{unknown}: it leads to {target:?}, which does not exist"
        ))),
        Followed::Elsewhere => Err(Failed::Usage.because(anyhow!(unknown))),
    }
}

/// The result of following symbolic links.
enum Followed {
    /// The links lead to this store path, which need not exist on this file system.
    Store(StorePath),
    /// The links lead to this path outside of the store, which does not exist.
    Gone(PathBuf),
    /// The path is not a link, or leads to a file outside of the store.
    Elsewhere,
}

/// Follows the symbolic links in a path, one by one, until a path is in the store. So a link to a
/// store path is recognised even if the store is not mounted on this file system, or if the path
/// was deleted.
fn follow(path: &Path, dir: &StoreDir) -> Followed {
    let mut resolved = std::env::current_dir().unwrap_or_default();
    let mut rest: Vec<OsString> = parts(path).rev().collect();
    let mut link_count = 0;
    while let Some(part) = rest.pop() {
        if part == ".." {
            resolved.pop();
            continue;
        }
        // The root directory replaces all that was resolved before.
        resolved.push(part);
        if let Some(path) = below(&resolved, dir) {
            return Followed::Store(path);
        }
        match fs::read_link(&resolved) {
            Ok(target) if link_count < LINK_COUNT_MAX => {
                link_count += 1;
                // The store directory itself may be below a link, which must not be followed.
                if let Some(path) = below(&target, dir) {
                    return Followed::Store(path);
                }
                resolved.pop();
                rest.extend(parts(&target).rev());
            }
            Ok(_) => return Followed::Elsewhere,
            Err(error) if link_count > 0 && error.kind() == io::ErrorKind::NotFound => {
                resolved.extend(rest.into_iter().rev());
                return Followed::Gone(resolved);
            }
            // The path is not a link.
            Err(_) => {}
        }
    }
    Followed::Elsewhere
}

/// Splits a path into its components, without `.`.
fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components()
        .filter(|part| *part != Component::CurDir)
        .map(|part| part.as_os_str().to_owned())
}

/// Returns the store path that contains the file at `path`, or `None` if the file is outside of
/// `dir`.
fn below(path: &Path, dir: &StoreDir) -> Option<StorePath> {
    let rest = path
        .to_str()?
        .strip_prefix(dir.as_str())?
        .strip_prefix('/')?;
    let base_name = rest.split('/').next()?;
    StorePath::from_base_name(base_name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const H: &str = "vdszx2k8vwaxcpdpwhbwsgib5c6sf53k";

    #[track_caller]
    fn check(words: &[&str], input: &str, expected: Option<&[&str]>) {
        let words: Vec<String> = words.iter().map(|word| word.replace('H', H)).collect();
        let input = input.replace('H', H);
        let roots = read(&words, &StoreDir::default(), input.as_bytes());
        let texts = roots.ok().map(|roots| {
            assert!(roots.iter().all(|root| root.hash_part.to_string() == H));
            roots.into_iter().map(|root| root.text).collect::<Vec<_>>()
        });
        let expected = expected.map(|texts| {
            let texts = texts.iter().map(|text| text.replace('H', H));
            texts.collect::<Vec<_>>()
        });
        assert_eq!(texts, expected);
    }

    #[test]
    fn forms() {
        let full = "/nix/store/H-app";
        check(&["H"], "", Some(&["H"]));
        check(
            &["H-app", full, "/nix/store/H-app/bin/app"],
            "",
            Some(&[full; 3]),
        );
        check(&["H", "-"], "H-app\n\n H\n", Some(&["H", full, "H"]));
        check(&["-"], "", Some(&[]));
        check(&["-", "-"], "", None);
        for bad in [
            "",
            "app",
            "/nix/store",
            "/nix/store/app",
            "/gnu/store/H-app",
            "./nowhere",
        ] {
            check(&[bad], "", None);
            check(&["-"], &format!("H\n{bad}x\n"), None);
        }
    }

    #[test]
    fn links_are_followed_to_the_store_path() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().canonicalize().unwrap();
        let file = |name: &str| store.join(name).to_str().unwrap().to_owned();
        let target = file(&format!("{H}-app"));
        for (link, to) in [
            ("result", &*target),
            ("relative", &format!("./{H}-app")),
            ("second", "result"),
            ("inside", &format!("{target}/bin/app")),
            ("loop", "loop"),
            ("nowhere", "/nowhere/app"),
        ] {
            std::os::unix::fs::symlink(to, store.join(link)).unwrap();
        }
        let store_dir = StoreDir::new(store.to_str().unwrap()).unwrap();
        let read = |text: &str| read(&[text.to_owned()], &store_dir, &b""[..]);
        // The path need not exist: the store may be on another file system.
        for exists in [false, true] {
            if exists {
                fs::create_dir_all(format!("{target}/bin")).unwrap();
            }
            for link in ["result", "relative", "second", "inside", "result/bin/app"] {
                let link = file(link);
                let roots = read(&link).unwrap();
                assert_eq!(roots[0].text, target, "{link}");
                let shown = format!("{target}, to which {link:?} leads,");
                assert_eq!(roots[0].shown(), shown);
            }
        }
        let error = |name: &str| read(&file(name)).unwrap_err().to_string();
        let end = ": it leads to \"/nowhere/app\", which does not exist";
        assert!(error("nowhere").ends_with(end), "{}", error("nowhere"));
        for name in ["loop", "absent", "."] {
            assert!(error(name).ends_with("a link to one"), "{}", error(name));
        }
    }
}
