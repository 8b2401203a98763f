//! The values of options, each with its origin. The command line overrides the environment, and the
//! environment overrides the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::error::{CACHE_NAME_LEN_MAX, ConfigError, Origin};
use super::nearest::nearest;
use super::options::{CACHES, OptionSpec, Scope, VARIABLE_PREFIX, upper_case};
use super::toml::{self, Value};

/// Maximum size of a configuration file, bytes.
const FILE_LEN_MAX: u64 = 1 << 20;

/// The option with the files of the signing keys.
const KEYS: &str = "secret-key-files";

/// The value of an option, and where it was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The value, not yet checked against the option's bounds.
    pub value: Value,
    /// The place where the option was set.
    pub origin: Origin,
}

/// Values by the full names of their options: the dotted name, with the prefix `caches.NAME.` for
/// an option of one cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    values: BTreeMap<String, Setting>,
    caches: BTreeSet<String>,
    files: Vec<PathBuf>,
}

impl Settings {
    /// Adds the settings of a file. They override settings added before.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the file cannot be read, is not valid, or has an unknown option.
    pub fn add_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        self.add_text(path, &read(path)?)?;
        self.files.push(path.to_owned());
        Ok(())
    }

    /// Returns the files whose settings were added.
    pub(super) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Adds the settings of a file from its text.
    ///
    /// # Errors
    ///
    /// As [`add_file`](Self::add_file).
    pub fn add_text(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let leaves = toml::leaves(path, text, is_table)?;
        let path: Arc<Path> = path.into();
        for leaf in leaves {
            let origin = Origin::File(Arc::clone(&path), leaf.line);
            match (leaf.value, in_caches(&leaf.name)) {
                // An empty table also defines a cache.
                (None, Some(cache)) if !cache.contains('.') => {
                    check_cache_name(cache, &origin)?;
                    self.caches.insert(cache.to_owned());
                }
                (None, _) => {}
                (Some(value), _) => {
                    check_name(&leaf.name, &origin)?;
                    self.insert(leaf.name, Setting { value, origin });
                }
            }
        }
        Ok(())
    }

    /// Adds the settings of environment variables. They override settings added before. Ignores
    /// names without [`VARIABLE_PREFIX`] and names in `others`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for an unknown option or an invalid value.
    pub fn add_variables(
        &mut self,
        variables: impl IntoIterator<Item = (String, String)>,
        others: &[&str],
    ) -> Result<(), ConfigError> {
        for (variable, text) in variables {
            let Some(rest) = variable.strip_prefix(VARIABLE_PREFIX) else {
                continue;
            };
            if others.contains(&&*variable) {
                continue;
            }
            let origin = Origin::Variable(variable.clone());
            let (cache, rest) = match rest.strip_prefix("CACHES__") {
                Some(rest) => match rest.split_once("__") {
                    Some((cache, rest)) => {
                        let cache = cache.to_ascii_lowercase().replace('_', "-");
                        (Some(cache), rest)
                    }
                    None => (None, rest),
                },
                None => (None, rest),
            };
            let Some(spec) = OptionSpec::all().find(|spec| upper_case(spec.name) == rest) else {
                let names: Vec<_> = OptionSpec::all()
                    .map(|spec| upper_case(spec.name))
                    .collect();
                // The old names of nix-serve have no variables.
                let alias = OptionSpec::by_option(&rest.to_ascii_lowercase().replace('_', "-"));
                let alias = alias.map(|spec| upper_case(spec.name));
                let near = nearest(rest, names.iter().map(|name| &**name));
                let near = alias.as_deref().or(near);
                return Err(ConfigError::Unknown {
                    origin,
                    name: variable.clone(),
                    nearest: near.map(|name| variable.replace(rest, name)),
                    is_of_server: false,
                });
            };
            let name = match cache {
                Some(cache) => format!("{CACHES}.{cache}.{}", spec.name),
                None => spec.name.to_owned(),
            };
            self.set(&name, &text, origin)?;
        }
        Ok(())
    }

    /// Sets an option from text of the environment or the command line. `name` may have the prefix
    /// `caches.NAME.`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the option is unknown or the text is not of its type.
    pub fn set(&mut self, name: &str, text: &str, origin: Origin) -> Result<(), ConfigError> {
        let spec = check_name(name, &origin)?;
        let kind = spec.kind;
        // An unset variable must not turn signing off.
        let is_unset = spec.name == KEYS && text.trim().is_empty();
        let value = kind.value(text).filter(|_| !is_unset);
        let Some(value) = value else {
            return Err(ConfigError::Value {
                origin,
                option: name.to_owned(),
                expected: kind.expected(),
                found: format!("{text:?}"),
            });
        };
        self.insert(name.to_owned(), Setting { value, origin });
        Ok(())
    }

    /// Sets an option whose value is a list of texts.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the option is unknown.
    pub fn set_list(
        &mut self,
        name: &str,
        texts: impl IntoIterator<Item = String>,
        origin: Origin,
    ) -> Result<(), ConfigError> {
        check_name(name, &origin)?;
        let value = Value::List(texts.into_iter().map(Value::Text).collect());
        self.insert(name.to_owned(), Setting { value, origin });
        Ok(())
    }

    pub(super) fn insert(&mut self, name: String, setting: Setting) {
        if let (Some(cache), _) = split(&name) {
            self.caches.insert(cache.to_owned());
        }
        self.values.insert(name, setting);
    }

    /// Returns the names of the named caches, sorted.
    pub fn caches(&self) -> impl Iterator<Item = &str> {
        self.caches.iter().map(|name| &**name)
    }

    /// Finds the setting of an option for this cache, else for all caches. Returns it with its full
    /// name, or `None` if the option is not set.
    pub fn find(&self, cache: Option<&str>, option: &str) -> Option<(String, &Setting)> {
        if let Some(cache) = cache {
            let name = format!("{CACHES}.{cache}.{option}");
            if let Some(setting) = self.values.get(&name) {
                return Some((name, setting));
            }
        }
        Some((option.to_owned(), self.values.get(option)?))
    }

    /// Finds a setting by its full name; `None` if the option is not set.
    pub fn exactly(&self, name: &str) -> Option<&Setting> {
        self.values.get(name)
    }

    /// Returns the full names of the options of this scope whose value differs in `other`. For a
    /// cache that `other` lacks, or that only `other` has, returns `caches.NAME` with a remark
    /// instead of the names of its options.
    pub fn changed(&self, other: &Self, scope: Scope) -> Vec<String> {
        let value = |settings: &Self, name| settings.exactly(name).map(|it| it.value.clone());
        let names: BTreeSet<&String> = self.values.keys().chain(other.values.keys()).collect();
        let is_in_both = |cache: &str| self.caches.contains(cache) && other.caches.contains(cache);
        let is_of_scope = |name: &str| {
            let (cache, option) = split(name);
            let spec = OptionSpec::find(option);
            cache.is_none_or(is_in_both) && spec.is_some_and(|spec| spec.scope == scope)
        };
        let mut changed: Vec<String> = names
            .into_iter()
            .filter(|name| is_of_scope(name) && value(self, name) != value(other, name))
            .cloned()
            .collect();
        if scope == Scope::Cache {
            for cache in self.caches.symmetric_difference(&other.caches) {
                let what = match self.caches.contains(cache) {
                    true => "new",
                    false => "no longer served",
                };
                changed.push(format!("{CACHES}.{cache} ({what})"));
            }
        }
        changed
    }
}

/// Splits a full name into the name of the cache, if there is one, and the name of the option.
fn split(name: &str) -> (Option<&str>, &str) {
    match in_caches(name).and_then(|rest| rest.split_once('.')) {
        Some((cache, option)) => (Some(cache), option),
        None => (None, name),
    }
}

/// Returns the name without its prefix `caches.`, if it has that prefix.
fn in_caches(name: &str) -> Option<&str> {
    name.strip_prefix(CACHES)?.strip_prefix('.')
}

/// Returns whether a table of this name may hold options.
fn is_table(name: &str) -> bool {
    if name == CACHES {
        return true;
    }
    let begins = |prefix: &str| {
        OptionSpec::all().any(|spec| {
            let rest = spec.name.strip_prefix(prefix);
            rest.is_some_and(|rest| rest.starts_with('.'))
        })
    };
    match in_caches(name) {
        Some(rest) => rest.split_once('.').is_none_or(|(_, table)| begins(table)),
        None => begins(name),
    }
}

fn check_name(name: &str, origin: &Origin) -> Result<&'static OptionSpec, ConfigError> {
    let (cache, option) = split(name);
    if let Some(cache) = cache {
        check_cache_name(cache, origin)?;
    }
    let fits = |spec: &&OptionSpec| cache.is_none() || spec.scope == Scope::Cache;
    let found = OptionSpec::find(option);
    if let Some(spec) = found.filter(fits) {
        return Ok(spec);
    }
    let alias = OptionSpec::by_option(option).or_else(|| OptionSpec::replacing(option));
    // A misspelled table is one unknown option.
    let tables = |name: &'static str| name.match_indices('.').map(move |(at, _)| &name[..at]);
    let names = OptionSpec::all().filter(fits).map(|spec| spec.name);
    let names = names.flat_map(|name| tables(name).chain([name]));
    let caches = cache.is_none().then_some(CACHES);
    Err(ConfigError::Unknown {
        origin: origin.clone(),
        name: name.to_owned(),
        nearest: match alias.filter(fits) {
            Some(spec) => Some(spec.name.to_owned()),
            None => nearest(option, names.chain(caches)).map(str::to_owned),
        },
        is_of_server: found.is_some(),
    })
}

fn check_cache_name(name: &str, origin: &Origin) -> Result<(), ConfigError> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !name.is_empty() && name.len() <= CACHE_NAME_LEN_MAX && name.bytes().all(is_plain) {
        return Ok(());
    }
    Err(ConfigError::CacheName {
        origin: origin.clone(),
        name: name.to_owned(),
    })
}

/// Reads a regular file. Opens it without blocking: opening a FIFO without a writer would block
/// forever.
pub(super) fn read(path: &Path) -> Result<String, ConfigError> {
    read_file(path).map_err(|error| ConfigError::Unreadable(path.to_owned(), error))
}

fn read_file(path: &Path) -> io::Result<String> {
    let mut options = File::options();
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = options.read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    file.take(FILE_LEN_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_LEN_MAX {
        return Err(io::Error::other("larger than 1 MiB"));
    }
    Ok(text)
}
