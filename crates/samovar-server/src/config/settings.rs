//! Settings as they were found, and where: in the file, before it in the environment, before that
//! on the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::keys::{CACHES, KEYS, Key, Kind, Scope, VARIABLE_PREFIX, shouted};
use super::nearest::nearest;
use super::toml::{self, Value};

/// Longest file that is read. Whoever needs more has named the wrong one.
const FILE_LEN_MAX: u64 = 1 << 20;

/// Longest name of a cache.
const CACHE_NAME_LEN_MAX: usize = 64;

/// Where a setting was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// In a file, on this line.
    File(Arc<Path>, usize),
    /// In this variable of the environment.
    Variable(String),
    /// In this option on the command line.
    Option(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => write!(f, "${name}"),
            Self::Option(name) => write!(f, "--{name}"),
        }
    }
}

/// Why a configuration means nothing. One line each: where it stands, and what to write instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration {0:?} cannot be read: {1}")]
    Unreadable(PathBuf, io::Error),
    /// The file is no TOML.
    #[error("{path}:{line}: {message}", path = .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// There is no such key.
    #[error("{origin}: there is no {name}{}", nearest_words(*.nearest))]
    Unknown {
        /// Where it stands.
        origin: Origin,
        /// As it is spelled there.
        name: String,
        /// What was probably meant.
        nearest: Option<&'static str>,
    },
    /// The name of a cache means nothing.
    #[error(
        "{origin}: {name:?} is no name of a cache: it is made of a to z, 0 to 9 and dashes, 64 at \
         most"
    )]
    CacheName {
        /// Where it stands.
        origin: Origin,
        /// As it is spelled there.
        name: String,
    },
    /// A value means nothing.
    #[error("{origin}: {key} is to be {expected}, not {found}")]
    Value {
        /// Where it stands.
        origin: Origin,
        /// Which key.
        key: String,
        /// What would be understood.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Two settings do not go together.
    #[error("{0}")]
    Together(String),
}

fn nearest_words(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!(", perhaps {name} is meant"))
}

/// A value, and where it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The value.
    pub value: Value,
    /// Where it was found.
    pub origin: Origin,
}

/// All that was found, by the names of keys; `caches.NAME.` stands before what is about one cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    values: BTreeMap<String, Setting>,
    caches: BTreeSet<String>,
}

impl Settings {
    /// Adds a file, over what is there.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the file cannot be read or says something that nobody understands.
    pub fn add_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = read(path).map_err(|error| ConfigError::Unreadable(path.to_owned(), error))?;
        self.add_text(path, &text)
    }

    /// Adds what a file says.
    ///
    /// # Errors
    ///
    /// As [`add_file`](Self::add_file).
    pub fn add_text(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let leaves = toml::leaves(text, is_table).map_err(|error| ConfigError::Syntax {
            path: path.to_owned(),
            line: error.line,
            message: error.message,
        })?;
        let path: Arc<Path> = path.into();
        for leaf in leaves {
            let origin = Origin::File(Arc::clone(&path), leaf.line);
            let prefix = format!("{CACHES}.");
            match (leaf.value, leaf.name.strip_prefix(&prefix)) {
                // A table that holds nothing may be a cache all the same.
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

    /// Adds what the environment says, over what is there. Names that do not begin with
    /// [`VARIABLE_PREFIX`] are none of ours, and those in `others` are read elsewhere.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if one of the others means nothing.
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
            let key = KEYS.iter().find(|key| shouted(key.name) == rest);
            let Some(key) = key else {
                let names = KEYS.iter().map(|key| (shouted(key.name), key.name));
                let names: Vec<_> = names.collect();
                let near = nearest(rest, names.iter().map(|(shouted, _)| &**shouted));
                let near = names.iter().find(|(one, _)| Some(&**one) == near);
                return Err(ConfigError::Unknown {
                    origin,
                    name: format!("key for {variable}"),
                    nearest: near.map(|(_, name)| *name),
                });
            };
            let name = match cache {
                Some(cache) => format!("{CACHES}.{cache}.{}", key.name),
                None => key.name.to_owned(),
            };
            self.set(&name, &text, origin)?;
        }
        Ok(())
    }

    /// Sets one, over what is there, from a text as it stands in the environment or on the command
    /// line. `name` may be that of one cache's setting.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if there is no such key, or the text is no value of its kind.
    pub fn set(&mut self, name: &str, text: &str, origin: Origin) -> Result<(), ConfigError> {
        let key = check_name(name, &origin)?;
        let value = match key.kind {
            Kind::Count => text.trim().parse().ok().map(Value::Count),
            Kind::Switch => match text.trim() {
                "true" | "1" | "yes" | "on" => Some(Value::Switch(true)),
                "false" | "0" | "no" | "off" => Some(Value::Switch(false)),
                _ => None,
            },
            Kind::List => {
                let words = text.split_ascii_whitespace();
                let words = words.map(|word| Value::Text(word.to_owned()));
                Some(Value::List(words.collect()))
            }
            Kind::Tables => toml::value(text),
            Kind::Text | Kind::Path | Kind::Size | Kind::Time | Kind::Word(_) => {
                Some(Value::Text(text.to_owned()))
            }
        };
        let Some(value) = value else {
            return Err(ConfigError::Value {
                origin,
                key: name.to_owned(),
                expected: expected(key.kind),
                found: format!("{text:?}"),
            });
        };
        self.insert(name.to_owned(), Setting { value, origin });
        Ok(())
    }

    /// Sets one that is a list of texts, over what is there.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if there is no such key.
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

    /// The names of caches that something was said about, in their order.
    pub fn caches(&self) -> impl Iterator<Item = &str> {
        self.caches.iter().map(|name| &**name)
    }

    /// The setting of a key: of this cache, or else of all of them.
    pub fn find(&self, cache: Option<&str>, key: &str) -> Option<(String, &Setting)> {
        if let Some(cache) = cache {
            let name = format!("{CACHES}.{cache}.{key}");
            if let Some(setting) = self.values.get(&name) {
                return Some((name, setting));
            }
        }
        Some((key.to_owned(), self.values.get(key)?))
    }

    /// The setting under exactly this name.
    pub fn exactly(&self, name: &str) -> Option<&Setting> {
        self.values.get(name)
    }

    /// What has another value in `other`, of what takes effect at start only.
    pub fn changed_at_start_only(&self, other: &Self) -> Vec<String> {
        let value = |settings: &Self, key: &Key| {
            let setting = settings.exactly(key.name);
            setting.map(|setting| setting.value.clone())
        };
        let keys = KEYS.iter().filter(|key| key.scope == Scope::Start);
        let changed = keys.filter(|key| value(self, key) != value(other, key));
        changed.map(|key| key.name.to_owned()).collect()
    }
}

/// What would be understood.
pub(super) fn expected(kind: Kind) -> String {
    match kind {
        Kind::Text => "a text".to_owned(),
        Kind::Path => "a path".to_owned(),
        Kind::Count => "a whole number".to_owned(),
        Kind::Size => "a number of bytes, such as 4096 or \"64 MiB\"".to_owned(),
        Kind::Time => "a number of seconds or a time such as \"10 min\"".to_owned(),
        Kind::Switch => "true or false".to_owned(),
        Kind::Word(words) => words.join(" or "),
        Kind::List => "a list of texts".to_owned(),
        Kind::Tables => "a list of tables".to_owned(),
    }
}

/// The name of a cache, if there is one, and of a key.
fn split(name: &str) -> (Option<&str>, &str) {
    let rest = name.strip_prefix(CACHES);
    let rest = rest.and_then(|rest| rest.strip_prefix('.'));
    match rest.and_then(|rest| rest.split_once('.')) {
        Some((cache, key)) => (Some(cache), key),
        None => (None, name),
    }
}

/// Whether a table of this name may hold keys.
fn is_table(name: &str) -> bool {
    if name == CACHES {
        return true;
    }
    let begins = |prefix: &str| {
        KEYS.iter().any(|key| {
            let rest = key.name.strip_prefix(prefix);
            rest.is_some_and(|rest| rest.starts_with('.'))
        })
    };
    match name
        .strip_prefix(CACHES)
        .and_then(|rest| rest.strip_prefix('.'))
    {
        Some(rest) => rest.split_once('.').is_none_or(|(_, table)| begins(table)),
        None => begins(name),
    }
}

fn check_name(name: &str, origin: &Origin) -> Result<&'static Key, ConfigError> {
    let (cache, key_name) = split(name);
    if let Some(cache) = cache {
        check_cache_name(cache, origin)?;
    }
    let fits = |key: &&Key| cache.is_none() || key.scope == Scope::Cache;
    if let Some(key) = KEYS.iter().filter(fits).find(|key| key.name == key_name) {
        return Ok(key);
    }
    let known = KEYS.iter().filter(fits).map(|key| key.name);
    Err(ConfigError::Unknown {
        origin: origin.clone(),
        name: match (cache, Key::find(key_name)) {
            (Some(_), Some(_)) => format!("key {name} (it is of the server, not of a cache)"),
            _ => format!("key {name}"),
        },
        nearest: nearest(key_name, known),
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

/// A regular file: to open a pipe that nobody writes to would be to wait for ever.
pub(super) fn read(path: &Path) -> io::Result<String> {
    let mut options = File::options();
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = options.read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut text = String::new();
    file.take(FILE_LEN_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_LEN_MAX {
        return Err(io::Error::other("it is longer than 1 MiB"));
    }
    Ok(text)
}
