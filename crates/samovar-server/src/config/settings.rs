//! The values of options, each with its origin. The command line overrides the environment, and the
//! environment overrides the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::error::{ConfigError, NAME_LEN_MAX, Origin};
use super::nearest::nearest;
use super::options::{OptionSpec, Scope, VARIABLE_PREFIX, upper_case};
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
/// an option of one cache, and `upstreams.NAME.` for one of an upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    values: BTreeMap<String, Setting>,
    /// The named caches and upstreams, each with the first place where it was named.
    named: BTreeMap<(Scope, String), Origin>,
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
            match (leaf.value, in_table(&leaf.name)) {
                // An empty table also defines a cache, or an upstream.
                (None, Some((scope, name))) if !name.contains('.') => {
                    check_thing(scope, name, &origin)?;
                    self.add_thing(scope, name, origin);
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
            let thing = Scope::NAMED.iter().find_map(|scope| {
                let table = format!("{}__", upper_case(scope.table()));
                let (name, option) = rest.strip_prefix(&table)?.split_once("__")?;
                let name = name.to_ascii_lowercase().replace('_', "-");
                Some((*scope, name, option))
            });
            let (thing, rest) = match thing {
                Some((scope, name, option)) => (Some((scope, name)), option),
                None => (None, rest),
            };
            let mut declared = OptionSpec::declared();
            let Some(spec) = declared.find(|spec| upper_case(spec.name) == rest) else {
                let scope = thing.map(|(scope, _)| scope);
                let names = OptionSpec::declared().filter(|spec| spec.fits(scope));
                let names: Vec<_> = names.map(|spec| upper_case(spec.name)).collect();
                // The old names of nix-serve have no variables.
                let alias = OptionSpec::by_option(&rest.to_ascii_lowercase().replace('_', "-"));
                let alias = alias.filter(|spec| spec.fits(scope));
                let alias = alias.map(|spec| upper_case(spec.name));
                let near = nearest(rest, names.iter().map(|name| &**name));
                let near = alias.as_deref().or(near);
                return Err(ConfigError::Unknown {
                    origin,
                    name: variable.clone(),
                    nearest: near.map(|name| variable.replace(rest, name)),
                    instead: None,
                });
            };
            let name = match thing {
                Some((scope, name)) => scope.full_name(&name, spec.name),
                None => spec.name.to_owned(),
            };
            self.set(&name, &text, origin)?;
        }
        Ok(())
    }

    /// Sets an option from text of the environment or the command line. `name` may have the prefix
    /// `caches.NAME.` or `upstreams.NAME.`.
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
        if let (Some((scope, thing)), _) = split(&name) {
            self.add_thing(scope, thing, setting.origin.clone());
        }
        self.values.insert(name, setting);
    }

    fn add_thing(&mut self, scope: Scope, name: &str, origin: Origin) {
        self.named.entry((scope, name.to_owned())).or_insert(origin);
    }

    /// Returns the names of the things of this scope that have a table, sorted, each with the first
    /// place where it was named.
    pub(super) fn named(&self, scope: Scope) -> impl Iterator<Item = (&str, &Origin)> {
        let things = self.named.iter().filter(move |((of, _), _)| *of == scope);
        things.map(|((_, name), origin)| (&**name, origin))
    }

    /// Finds the setting of an option for this cache, else for all caches. Returns it with its full
    /// name, or `None` if the option is not set.
    pub fn find(&self, cache: Option<&str>, option: &str) -> Option<(String, &Setting)> {
        if let Some(cache) = cache {
            let name = Scope::Cache.full_name(cache, option);
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

    /// Returns the full names of the options whose value differs in `other`, and that take effect
    /// only after a restart.
    pub fn changed_at_start(&self, other: &Self) -> Vec<String> {
        self.changed(other, false)
    }

    /// Returns the full names of the options whose value differs in `other`, and that take effect
    /// at a reload. For a cache that `other` lacks, or that only `other` has, returns `caches.NAME`
    /// with a remark instead of the names of its options, and for an upstream `upstreams.NAME`.
    pub fn changed_at_reload(&self, other: &Self) -> Vec<String> {
        let mut changed = self.changed(other, true);
        for (scope, gone) in [
            (Scope::Cache, "no longer served"),
            (Scope::Upstream, "no longer asked"),
            (Scope::Oidc, "no longer trusted"),
        ] {
            let names = |settings: &Self| -> BTreeSet<String> {
                let names = settings.named(scope).map(|(name, _)| name.to_owned());
                names.collect()
            };
            let own = names(self);
            for name in own.symmetric_difference(&names(other)) {
                let what = if own.contains(name) { "new" } else { gone };
                changed.push(format!("{}.{name} ({what})", scope.table()));
            }
        }
        changed
    }

    fn changed(&self, other: &Self, is_reloaded: bool) -> Vec<String> {
        let value = |settings: &Self, name| settings.exactly(name).map(|it| it.value.clone());
        let names: BTreeSet<&String> = self.values.keys().chain(other.values.keys()).collect();
        let is_in_both = |(scope, name): (Scope, &str)| {
            let key = (scope, name.to_owned());
            self.named.contains_key(&key) && other.named.contains_key(&key)
        };
        let is_meant = |name: &str| {
            let (thing, option) = split(name);
            let spec = find(thing.map(|(scope, _)| scope), option);
            thing.is_none_or(is_in_both) && spec.is_some_and(|spec| spec.is_reloaded == is_reloaded)
        };
        let changed = names
            .into_iter()
            .filter(|name| is_meant(name) && value(self, name) != value(other, name));
        changed.cloned().collect()
    }
}

/// Splits a full name into the cache or upstream, if it names one, and the name of the option.
fn split(name: &str) -> (Option<(Scope, &str)>, &str) {
    let thing = in_table(name).and_then(|(scope, rest)| Some((scope, rest.split_once('.')?)));
    match thing {
        Some((scope, (thing, option))) => (Some((scope, thing)), option),
        None => (None, name),
    }
}

/// Returns the name without its prefix `caches.` or `upstreams.`, if it has one.
fn in_table(name: &str) -> Option<(Scope, &str)> {
    let below = |scope: &Scope| {
        let rest = name.strip_prefix(scope.table())?;
        Some((*scope, rest.strip_prefix('.')?))
    };
    Scope::NAMED.iter().find_map(below)
}

/// Returns whether a table of this name may hold options.
fn is_table(name: &str) -> bool {
    if Scope::NAMED.iter().any(|scope| scope.table() == name) {
        return true;
    }
    let begins = |prefix: &str| {
        OptionSpec::all().any(|spec| {
            let rest = spec.name.strip_prefix(prefix);
            rest.is_some_and(|rest| rest.starts_with('.'))
        })
    };
    match in_table(name) {
        Some((_, rest)) => rest.split_once('.').is_none_or(|(_, table)| begins(table)),
        None => begins(name),
    }
}

/// Finds an option of one thing of this scope; without a scope, one that can be set for all.
fn find(scope: Option<Scope>, option: &str) -> Option<&'static OptionSpec> {
    OptionSpec::declared().find(|spec| spec.name == option && spec.fits(scope))
}

fn check_name(name: &str, origin: &Origin) -> Result<&'static OptionSpec, ConfigError> {
    let (thing, option) = split(name);
    if let Some((scope, thing)) = thing {
        check_thing(scope, thing, origin)?;
    }
    let scope = thing.map(|(scope, _)| scope);
    if let Some(spec) = find(scope, option) {
        return Ok(spec);
    }
    let elsewhere = OptionSpec::declared().find(|spec| spec.name == option);
    let instead = match (scope, elsewhere) {
        (Some(scope), Some(spec)) => Some(format!(
            "it is an option of {}, not of {}",
            spec.scope.thing(),
            scope.thing()
        )),
        (None, Some(spec)) => Some(format!(
            "it is an option of one {}: set it in [{}.NAME]",
            spec.scope.noun(),
            spec.scope.table()
        )),
        (None, None) => is_thing(name),
        (Some(_), None) => None,
    };
    let alias = OptionSpec::by_option(option).or_else(|| OptionSpec::replacing(option));
    // A misspelled table is one unknown option.
    let tables = |name: &'static str| name.match_indices('.').map(move |(at, _)| &name[..at]);
    let names = OptionSpec::declared().filter(|spec| spec.fits(scope));
    let names = names.flat_map(|spec| tables(spec.name).chain([spec.name]));
    let things = Scope::NAMED.iter().map(|scope| scope.table());
    let things = things.filter(|table| scope.is_none() && *table != option);
    let is_in_table = scope.is_some() || in_table(name).is_some();
    Err(ConfigError::Unknown {
        origin: origin.clone(),
        name: name.to_owned(),
        nearest: match alias.filter(|spec| spec.fits(scope)) {
            _ if instead.is_some() && is_in_table => None,
            Some(spec) => Some(spec.name.to_owned()),
            None => nearest(option, names.chain(things)).map(str::to_owned),
        },
        instead,
    })
}

/// Returns what a value is set for, if `name` is the name of a cache or an upstream.
fn is_thing(name: &str) -> Option<String> {
    let (scope, thing) = in_table(name)?;
    let option = OptionSpec::of(scope).next()?.name;
    Some(format!(
        "it is {}; set one of its options, such as {}",
        scope.thing(),
        scope.full_name(thing, option)
    ))
}

/// Checks the name of a cache or an upstream.
fn check_thing(scope: Scope, name: &str, origin: &Origin) -> Result<(), ConfigError> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !name.is_empty() && name.len() <= NAME_LEN_MAX && name.bytes().all(is_plain) {
        return Ok(());
    }
    Err(ConfigError::Name {
        origin: origin.clone(),
        thing: scope.thing(),
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
