//! Store URIs: the values of `NIX_REMOTE`, `--store` and `store =`.
//!
//! # Grammar
//!
//! ```text
//! uri        = base [ "?" parameter *( "&" parameter ) ]
//! base       = "" / "auto" / "local" / "local://" [path] / "daemon" / "unix://" [path]
//!            / path / "none"
//! path       = text that contains "/" and no "://"
//! parameter  = name "=" value          ; value is percent-decoded
//! ```
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | length | 8,192 bytes | two paths of `PATH_MAX`, or fewer when percent-encoded |
//!
//! # Quirks
//!
//! nix-serve's wrapper sets `auto?path-info-cache-size=0`. That parameter and others that configure
//! Nix's own library are accepted and ignored; unknown parameters are reported by
//! [`StoreUri::unknown_parameters`] and otherwise ignored, as in Nix.
//!
//! # Source
//!
//! Nix 2.8.0, `src/libstore/store-api.cc` (`openStore`); Nix 2.36,
//! `src/libstore/store-reference.cc`.

use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use samovar_nix::StoreDir;

const URI_LEN_MAX: usize = 8192;

/// Parameters that are ignored: they configure Nix itself, or do not affect reading.
const IGNORED: [&str; 12] = [
    "compression",
    "max-connection-age",
    "max-connections",
    "path-info-cache-size",
    "priority",
    "require-sigs",
    "system-features",
    "trusted",
    "use-roots-daemon",
    "want-mass-query",
    "ignore-gc-delete-failure",
    "build-dir",
];

/// A parsed store URI.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreUri {
    /// The kind of store.
    pub kind: StoreKind,
    /// The directories that the URI names.
    pub parameters: Parameters,
    unknown: Vec<String>,
}

/// The kind of store that a URI names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StoreKind {
    /// Direct access if the state directory is writable; else the daemon, if there is one.
    #[default]
    Auto,
    /// Direct access to the database and the files.
    Local,
    /// The daemon at this socket, or at the default one.
    Daemon(Option<PathBuf>),
    /// No store: it has no paths. Nix has no such URI.
    None,
}

/// The directories that a URI names. The settings determine the others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Parameters {
    /// The directory that contains `nix/store`, `nix/var/nix` and `nix/var/log/nix`; `None` if the
    /// URI does not name it. The same holds for the other directories.
    pub root: Option<PathBuf>,
    /// The physical store directory.
    pub real: Option<PathBuf>,
    /// The state directory.
    pub state: Option<PathBuf>,
    /// The log directory.
    pub log: Option<PathBuf>,
    /// The logical store directory.
    pub store: Option<StoreDir>,
    /// Whether the store is never written to: its database may be opened as immutable.
    pub read_only: bool,
}

/// Error of a store URI.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UriError {
    /// The URI exceeds the length limit.
    #[error("the store URI is longer than {URI_LEN_MAX} bytes")]
    TooLong,
    /// The URI names a kind of store that is not supported. Contains the text before `://`, or the
    /// whole text without one.
    #[error(
        "store type {0:?} is not supported: use auto, daemon, local, unix://SOCKET, none or the \
         path of a directory that holds nix/store"
    )]
    Unsupported(String),
    /// The value of this parameter has an invalid percent-encoding.
    #[error("the value of the store parameter {0:?} has an invalid percent-encoding")]
    Percent(String),
    /// The directory of this parameter is not absolute.
    #[error("the store parameter {0:?} must be an absolute path")]
    NotAbsolute(String),
    /// This boolean parameter is neither true nor false.
    #[error("the store parameter {0:?} must be true or false")]
    NotBoolean(String),
    /// This relative path was given, and the working directory is unknown.
    #[error("the store path {0:?} is relative, and the working directory cannot be found")]
    NoWorkingDirectory(String),
}

impl StoreUri {
    /// The parameters that locate a store.
    pub const LOCATIONS: [&str; 4] = ["root", "real", "state", "store"];

    /// Parses a store URI. A relative path is resolved against the working directory.
    ///
    /// # Errors
    ///
    /// Any [`UriError`]. Unknown parameters are not errors.
    ///
    /// # Examples
    ///
    /// ```
    /// # use samovar_store::{StoreKind, StoreUri};
    /// let uri = StoreUri::parse("local?root=/mnt%20x")?;
    /// assert_eq!(uri.kind, StoreKind::Local);
    /// assert_eq!(uri.parameters.root.as_deref(), Some("/mnt x".as_ref()));
    /// # Ok::<(), samovar_store::UriError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, UriError> {
        if text.len() > URI_LEN_MAX {
            return Err(UriError::TooLong);
        }
        let (base, query) = text.split_once('?').unwrap_or((text, ""));
        let mut uri = Self::default();
        uri.set_base(base)?;
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = decode(value).ok_or_else(|| UriError::Percent(name.to_owned()))?;
            uri.set_parameter(name, &value)?;
        }
        Ok(uri)
    }

    /// Returns the names of unknown parameters, for a warning.
    #[must_use]
    pub fn unknown_parameters(&self) -> &[String] {
        &self.unknown
    }

    fn set_base(&mut self, base: &str) -> Result<(), UriError> {
        self.kind = match base {
            "" | "auto" => StoreKind::Auto,
            "local" | "local://" => StoreKind::Local,
            "daemon" | "unix://" => StoreKind::Daemon(None),
            "none" => StoreKind::None,
            _ => return self.set_path(base),
        };
        Ok(())
    }

    fn set_path(&mut self, base: &str) -> Result<(), UriError> {
        if let Some(path) = base.strip_prefix("unix://") {
            self.kind = StoreKind::Daemon(Some(absolute("unix", path)?));
        } else if let Some(path) = base.strip_prefix("local://") {
            self.kind = StoreKind::Local;
            self.parameters.root = Some(absolute("local", path)?);
        } else if base.contains('/') && !base.contains("://") {
            self.kind = StoreKind::Local;
            self.parameters.root = Some(from_working_directory(base)?);
        } else {
            let scheme = base.split("://").next().unwrap_or(base).to_owned();
            return Err(UriError::Unsupported(scheme));
        }
        Ok(())
    }

    fn set_parameter(&mut self, name: &str, value: &str) -> Result<(), UriError> {
        // In Nix an empty directory counts as absent.
        let directory = || match value {
            "" => Ok(None),
            _ => absolute(name, value).map(Some),
        };
        match name {
            // An explicit path before the question mark takes precedence.
            "root" if self.parameters.root.is_none() => self.parameters.root = directory()?,
            "root" => {}
            "real" => self.parameters.real = directory()?,
            "state" => self.parameters.state = directory()?,
            "log" => self.parameters.log = directory()?,
            "store" => {
                let dir = StoreDir::new(value);
                let dir = dir.map_err(|_error| UriError::NotAbsolute(name.to_owned()))?;
                self.parameters.store = Some(dir);
            }
            "read-only" => {
                self.parameters.read_only = match value {
                    "true" | "1" | "yes" => true,
                    "false" | "0" | "no" => false,
                    _ => return Err(UriError::NotBoolean(name.to_owned())),
                }
            }
            _ if IGNORED.contains(&name) => {}
            _ => self.unknown.push(name.to_owned()),
        }
        Ok(())
    }
}

/// Decodes a percent-encoded value. `None` if an escape is incomplete or the bytes are not UTF-8.
///
/// A plus sign is not decoded: store URIs are not forms.
fn decode(text: &str) -> Option<String> {
    // Check the escapes first: the decoder would pass an incomplete escape through.
    let is_escape = |rest: &str| {
        let digits = rest.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !text.split('%').skip(1).all(is_escape) {
        return None;
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.ok().map(|text| text.into_owned())
}

fn absolute(name: &str, value: &str) -> Result<PathBuf, UriError> {
    if Path::new(value).is_absolute() {
        Ok(without_trailing_slash(value))
    } else {
        Err(UriError::NotAbsolute(name.to_owned()))
    }
}

fn from_working_directory(path: &str) -> Result<PathBuf, UriError> {
    std::path::absolute(without_trailing_slash(path))
        .map_err(|_error| UriError::NoWorkingDirectory(path.to_owned()))
}

fn without_trailing_slash(path: &str) -> PathBuf {
    let trimmed = path.trim_end_matches('/');
    PathBuf::from(if trimmed.is_empty() { "/" } else { trimmed })
}

#[cfg(test)]
mod tests;
