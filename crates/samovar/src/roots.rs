//! Parses the store paths on a command line.

use std::io::BufRead;

use anyhow::{Context as _, bail};
use samovar_nix::{HashPart, StoreDir, StorePath};

/// A store path that the command line names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Root {
    /// The argument, or the store path that it refers to.
    pub(crate) text: String,
    pub(crate) hash_part: HashPart,
}

/// Parses the arguments. The argument `-` stands for the lines of `input`.
pub(crate) fn read(
    words: &[String],
    dir: &StoreDir,
    input: impl BufRead,
) -> anyhow::Result<Vec<Root>> {
    let mut roots = Vec::new();
    let mut input = Some(input);
    for word in words {
        if word != "-" {
            roots.push(root(word, dir)?);
            continue;
        }
        let Some(input) = input.take() else {
            bail!("- is given twice: standard input can be read only once");
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
        });
    }
    let path = StorePath::from_base_name(text).ok();
    let path = path.or_else(|| below(text, dir)).or_else(|| {
        let target = std::fs::canonicalize(text).ok()?;
        below(target.to_str()?, dir)
    });
    let path = path.with_context(|| {
        format!("{text:?} is not a path in {dir}, a base name, a hash part or a link to one")
    })?;
    Ok(Root {
        text: path.full(dir),
        hash_part: path.hash_part(),
    })
}

/// Returns the store path that contains the file `text`, or `None` if the file is outside of `dir`.
fn below(text: &str, dir: &StoreDir) -> Option<StorePath> {
    let rest = text.strip_prefix(dir.as_str())?.strip_prefix('/')?;
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
    fn a_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().canonicalize().unwrap();
        let target = store.join(format!("{H}-app"));
        std::fs::create_dir(&target).unwrap();
        let link = store.join("result");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let store_dir = StoreDir::new(store.to_str().unwrap()).unwrap();
        let words = [link.to_str().unwrap().to_owned()];
        let roots = read(&words, &store_dir, &b""[..]).unwrap();
        assert_eq!(roots[0].text, target.to_str().unwrap());
    }
}
