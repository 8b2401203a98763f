//! Errors of a configuration.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum length of the name of a cache or an upstream, bytes.
pub(super) const NAME_LEN_MAX: usize = 64;

/// The place where an option was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// In this configuration file, on the line with this number.
    File(Arc<Path>, usize),
    /// In the environment variable of this name.
    Variable(String),
    /// On the command line, in this option.
    Option(String),
}

impl Origin {
    /// Resolves the path of a file or directory that was set at this place: a relative path in a
    /// configuration file is relative to the directory of that file, so that it does not depend on
    /// who starts the program where. `-` stands for standard output.
    pub(super) fn resolve(&self, path: PathBuf) -> PathBuf {
        match self {
            Self::File(file, _) if path.as_os_str() != "-" => {
                let directory = file.parent().unwrap_or(Path::new(""));
                let resolved = directory.join(&path);
                std::path::absolute(&resolved).unwrap_or(resolved)
            }
            _ => path,
        }
    }
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

/// An invalid configuration. Each error is one line with location, cause and remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The configuration file cannot be read.
    #[error("cannot read the configuration file {0:?}: {1}")]
    Unreadable(PathBuf, io::Error),
    /// The configuration file is not valid TOML.
    #[error("{path}:{line}: {message}", path = .path.display())]
    Syntax {
        /// Path of the configuration file.
        path: PathBuf,
        /// Number of the invalid line, starting at 1.
        line: usize,
        /// The message of the TOML parser.
        message: String,
    },
    /// There is no such option.
    #[error("{origin}: unknown option `{}`{}", shown(.name), remedy(.nearest, .instead))]
    Unknown {
        /// The place where the option was set.
        origin: Origin,
        /// The name of the option as written there.
        name: String,
        /// The known option with the most similar name; `None` if no name is similar.
        nearest: Option<String>,
        /// What the name stands for, if the option must be set elsewhere.
        instead: Option<String>,
    },
    /// The name of a cache or an upstream is invalid.
    #[error(
        "{origin}: invalid name of {thing} {:?}: use at most {} characters: a to z, 0 to 9, dashes",
        shown(.name),
        NAME_LEN_MAX
    )]
    Name {
        /// The place where the name was written.
        origin: Origin,
        /// The thing with the name: `a cache` or `an upstream`.
        thing: &'static str,
        /// The invalid name.
        name: String,
    },
    /// The value of an option is invalid.
    #[error("{origin}: {option} must be {expected}, got {found}")]
    Value {
        /// The place where the option was set.
        origin: Origin,
        /// Full name of the option.
        option: String,
        /// A description of valid values.
        expected: String,
        /// The invalid value, as the message shows it.
        found: String,
    },
    /// Options that contradict one another, or an option that needs another one.
    #[error("{0}")]
    Conflict(String),
}

/// Returns a name as messages show it: not at all if it may be a part of a URL with a login.
fn shown(name: &str) -> &str {
    match name.contains([':', '@']) {
        true => "***",
        false => name,
    }
}

fn remedy(nearest: &Option<String>, instead: &Option<String>) -> String {
    match (instead, nearest) {
        (Some(instead), Some(name)) => format!(": {instead}; or did you mean `{name}`?"),
        (Some(instead), None) => format!(": {instead}"),
        (None, Some(name)) => format!("; did you mean `{name}`?"),
        (None, None) => String::new(),
    }
}
