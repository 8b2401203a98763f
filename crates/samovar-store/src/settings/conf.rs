//! A reader of `nix.conf`, for the settings that locate the store.
//!
//! # Grammar
//!
//! A line is `name = value`, white space around both, `#` starts a comment. `include FILE` and
//! `!include FILE` read another file, relative to the one that names it. The last value wins; those
//! of `extra-` settings add up.
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | nested includes | 16 | a file that includes itself must end |
//! | file size | 1 MiB | far above any file written by hand |
//!
//! # Source
//!
//! Nix 2.8.0, `src/libutil/config.cc`, `AbstractConfig::applyConfig`. Lines that Nix rejects (those
//! without `=`) are skipped: Nix itself reports them to its user.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

const INCLUDE_DEPTH_MAX: u32 = 16;
const FILE_LEN_MAX: u64 = 1 << 20;

/// The settings of a `nix.conf`, uninterpreted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conf {
    values: HashMap<String, String>,
}

impl Conf {
    /// Reads a file; an unreadable one counts as empty.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        let mut conf = Self::default();
        conf.include(path, 0);
        conf
    }

    /// Adds lines; includes in them are relative to `dir`.
    pub fn add(&mut self, text: &str, dir: &Path) {
        self.add_lines(text, dir, 0);
    }

    /// Returns the value of a setting, `None` if unset or empty.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.values
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// Returns the value of a boolean setting, `None` if unset or ill-formed.
    #[must_use]
    pub fn flag(&self, name: &str) -> Option<bool> {
        match self.text(name)? {
            "true" | "yes" | "1" => Some(true),
            "false" | "no" | "0" => Some(false),
            _ => None,
        }
    }

    fn include(&mut self, path: &Path, depth: u32) {
        let Ok(file) = std::fs::File::open(path) else {
            return;
        };
        let mut text = Vec::new();
        if file.take(FILE_LEN_MAX).read_to_end(&mut text).is_err() {
            return;
        }
        let dir = path.parent().unwrap_or(Path::new("/")).to_owned();
        self.add_lines(&String::from_utf8_lossy(&text), &dir, depth);
    }

    fn add_lines(&mut self, text: &str, dir: &Path, depth: u32) {
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (Some("include" | "!include"), Some(file)) if depth < INCLUDE_DEPTH_MAX => {
                    self.include(&dir.join(file), depth + 1);
                }
                (Some(name), Some("=")) => {
                    let value = words.collect::<Vec<_>>().join(" ");
                    // The value of an `extra-` setting is added to the earlier values.
                    match self.values.get_mut(name) {
                        Some(before) if name.starts_with("extra-") => {
                            before.push(' ');
                            before.push_str(&value);
                        }
                        _ => drop(self.values.insert(name.to_owned(), value)),
                    }
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, name: &str, expected: Option<&str>) {
        let mut conf = Conf::default();
        conf.add(text, Path::new("/nonexistent"));
        assert_eq!(conf.text(name), expected);
    }

    #[test]
    fn lines() {
        check("store = daemon\n", "store", Some("daemon"));
        check("  store  =   daemon  # why\n", "store", Some("daemon"));
        check("# store = daemon\n", "store", None);
        check("store = a\nstore = b\n", "store", Some("b"));
        check("store =\n", "store", None);
        check("store daemon\n", "store", None);
        check("substituters = a b\n", "substituters", Some("a b"));
        check("extra-a = b\nextra-a = c d\n", "extra-a", Some("b c d"));
    }

    #[test]
    fn a_file_that_includes_itself_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nix.conf");
        std::fs::write(&path, "include nix.conf\n!include missing\nstore = /mnt\n").unwrap();
        assert_eq!(Conf::read(&path).text("store"), Some("/mnt"));
    }
}
