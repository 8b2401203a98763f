//! [`RefName`]: a ref as the command line names it.

use std::fmt;

use anyhow::{Context as _, anyhow, ensure};
use samovar_nix::{NAME_LEN_MAX, StorePath};
use samovar_protocol::names::PinName;

use crate::failed::Failed;
use crate::remote::{Remote, URL_VARIABLE};

/// Suffix of the name of a manifest's store path.
const MANIFEST_SUFFIX: &str = ".manifest";

/// A ref as the command line names it: `[URL#]NAME[@GENERATION]`.
#[derive(Debug, Clone)]
pub struct RefName {
    /// URL of the cache, without `/upload`.
    pub remote: Remote,
    /// Name of the ref.
    pub name: PinName,
    /// `None`: the newest generation.
    pub generation: Option<u64>,
}

/// A ref, or a store path as `[URL#]/nix/store/…`.
#[derive(Debug)]
pub enum PathOrRef {
    /// A ref.
    Ref(RefName),
    /// The cache, and the text of the store path.
    Path(Remote, String),
}

impl PathOrRef {
    /// Parses `[URL#]NAME[@GENERATION]` or `[URL#]/nix/store/…`.
    ///
    /// # Errors
    ///
    /// The URL or the name is invalid, or there is no URL.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let (remote, rest) = split_url(text)?;
        match rest.starts_with('/') {
            true => Ok(Self::Path(remote, rest.to_owned())),
            false => RefName::parse(text).map(Self::Ref),
        }
    }
}

/// Splits `[URL#]REST`.
fn split_url(text: &str) -> anyhow::Result<(Remote, &str)> {
    let (url, rest) = match text.split_once('#') {
        Some((url, rest)) if url.contains("://") => (url.to_owned(), rest),
        _ => {
            ensure!(
                !text.contains("://"),
                "{:?} has no name: write the ref as URL#NAME",
                samovar_text::without_logins(text)
            );
            let url = std::env::var(URL_VARIABLE).ok();
            let url = url.filter(|url| !url.is_empty()).with_context(|| {
                format!(
                    "{text:?} does not name a cache: write the ref as URL#NAME, or set \
                     {URL_VARIABLE} to the URL of the cache"
                )
            })?;
            (url, text)
        }
    };
    Ok((Remote::of_cache(&url)?, rest))
}

impl RefName {
    /// Parses `[URL#]NAME[@GENERATION]`.
    ///
    /// # Errors
    ///
    /// The URL or the name is invalid, or there is no URL.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let (remote, rest) = split_url(text)?;
        let (name, generation) = split(rest);
        Ok(Self {
            remote,
            name: name.parse().map_err(|_error| {
                anyhow!("{rest:?} is not the name of a ref: use 1 to 255 bytes")
            })?,
            generation,
        })
    }

    /// Like [`parse`](Self::parse), for commands that may create the ref.
    ///
    /// # Errors
    ///
    /// Those of `parse`, and the name is not permitted for new refs.
    pub fn parse_new(text: &str) -> anyhow::Result<Self> {
        let name = Self::parse(text)?;
        name.name.check_new()?;
        Ok(name)
    }

    /// Refuses the name of a ref that does not exist if it is probably a mistyped `URL#` or
    /// `@GENERATION`.
    ///
    /// # Errors
    ///
    /// The error says how refs are written.
    pub fn check_absent(&self) -> anyhow::Result<()> {
        let name = self.name.as_str();
        ensure!(
            !name.starts_with('#') && !name.contains('@'),
            "there is no ref {name}, and the name of a new ref must not start with \"#\" or \
             contain \"@\": write refs as URL#NAME or URL#NAME@GENERATION"
        );
        Ok(())
    }

    /// Refuses a ref with a generation, for commands that change the ref.
    ///
    /// # Errors
    ///
    /// It names a generation.
    pub fn without_generation(self) -> anyhow::Result<Self> {
        ensure!(
            self.generation.is_none(),
            "{self} names a generation, but this command needs a ref: leave out the part from @"
        );
        Ok(self)
    }
}

/// Splits `NAME[@GENERATION]`.
fn split(text: &str) -> (&str, Option<u64>) {
    let generation = |digits: &str| {
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        digits
            .parse()
            .ok()
            .filter(|number| is_number && *number > 0)
    };
    match text.rsplit_once('@') {
        Some((name, digits)) if !name.is_empty() => match generation(digits) {
            Some(generation) => (name, Some(generation)),
            None => (text, None),
        },
        _ => (text, None),
    }
}

impl fmt::Display for RefName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.remote, self.name)?;
        match self.generation {
            Some(generation) => write!(f, "@{generation}"),
            None => Ok(()),
        }
    }
}

/// Returns the names of the store paths of a ref's snapshots: the name of the tree, and the name of
/// the manifest.
pub fn path_names(name: &PinName) -> (String, String) {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "+-._?=".contains(c);
    let valid = |c: char| if is_valid(c) { c } else { '-' };
    let mut tree: String = name.as_str().chars().map(valid).collect();
    if tree.starts_with('.') {
        tree.replace_range(..1, "-");
    }
    tree.truncate(NAME_LEN_MAX - MANIFEST_SUFFIX.len());
    let manifest = format!("{tree}{MANIFEST_SUFFIX}");
    (tree, manifest)
}

/// Returns whether this is the name of a manifest's store path.
pub fn is_manifest(path_name: &str) -> bool {
    path_name.ends_with(MANIFEST_SUFFIX)
}

/// Refuses to pin a path of a package under the name of a ref of snapshots. `newest`: the newest
/// generation. `path`: the path to pin.
///
/// # Errors
///
/// The error says what the name stands for.
pub fn check_successor(name: &PinName, newest: &StorePath, path: &StorePath) -> anyhow::Result<()> {
    ensure!(
        !is_manifest(newest.name()) || is_manifest(path.name()),
        "{name} is a ref of snapshots, and the newest one is {newest}: use another name, or \
         --force"
    );
    Ok(())
}

/// Refuses a pin of a package as a ref of snapshots. `newest`: the newest generation. `remedy`: how
/// the command is to be changed.
///
/// # Errors
///
/// The error says what the name stands for.
pub fn check_snapshot(name: &PinName, newest: &StorePath, remedy: &str) -> anyhow::Result<()> {
    ensure!(
        is_manifest(newest.name()),
        Failed::Refused.because(anyhow!(
            "{name} is a pin of {newest}, not a ref of snapshots: {remedy}"
        ))
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refs_with_and_without_a_generation() {
        let parse = |text: &str| RefName::parse(text).unwrap();
        let name = parse("https://a.example/x/upload#mr/app@3");
        assert_eq!(name.remote.url(), "https://a.example/x");
        assert_eq!((name.name.as_str(), name.generation), ("mr/app", Some(3)));
        assert_eq!(name.to_string(), "https://a.example/x#mr/app@3");
        for (text, expected) in [("a@b", None), ("a@0", None), ("a@", None), ("a@+1", None)] {
            let name = parse(&format!("http://h#{text}"));
            assert_eq!((name.name.as_str(), name.generation), (text, expected));
        }
        assert!(name.without_generation().is_err());
    }

    #[test]
    fn other_texts_are_no_refs() {
        for text in ["http://h", "http://h#", "ftp://h#a", "http://h?x#a"] {
            assert!(RefName::parse(text).is_err(), "{text}");
        }
        // Refs with such names can be removed.
        for text in [
            "http://h#..",
            "http://h#a//b",
            "http://h#/a@3",
            "http://h#a/",
        ] {
            assert!(RefName::parse(text).is_ok(), "{text}");
            assert!(RefName::parse_new(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_of_store_paths() {
        let names = |name: &str| path_names(&name.parse().unwrap());
        let expected = ("mr-app".to_owned(), "mr-app.manifest".to_owned());
        assert_eq!(names("mr/app"), expected);
        assert_eq!(names(".a b\u{e4}@1").0, "-a-b--1");
        let (tree, manifest) = names(&"a".repeat(255));
        assert_eq!((tree.len(), manifest.len()), (202, NAME_LEN_MAX));
        assert!(is_manifest(&manifest) && !is_manifest(&tree));
    }
}
