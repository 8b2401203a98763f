//! [`Mode`]: where the files of a workspace are.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use samovar_nix::StorePath;

use super::{layers, registry};

/// Where the files of a workspace are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// In its directory.
    Directory,
    /// In a snapshot, and in a directory with the changes, which are mounted on its directory.
    Overlay(Overlay),
}

/// The layers of a workspace in overlay mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlay {
    /// Directory of the layers.
    pub layers: PathBuf,
    /// `None`: the lower layer is empty.
    pub lower: Option<Lower>,
}

/// The snapshot that is the lower layer of a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lower {
    /// Store directory of the cache.
    pub store_dir: String,
    /// Store path of its manifest.
    pub manifest: StorePath,
}

impl Mode {
    /// Returns the directory with the layers, in overlay mode.
    pub fn layers(&self) -> Option<&Path> {
        match self {
            Self::Directory => None,
            Self::Overlay(overlay) => Some(&overlay.layers),
        }
    }

    /// Returns the lines of the state that describe the mode.
    pub fn text(&self) -> String {
        match self {
            Self::Directory => "mode dir\n".to_owned(),
            Self::Overlay(Overlay { layers, lower }) => format!(
                "mode overlay\nlayers {}\nlower {}\n",
                registry::encoded(layers),
                lower.as_ref().map_or("-".to_owned(), Lower::path)
            ),
        }
    }

    /// Parses the lines that [`text`](Self::text) returned. Returns also the lines that follow.
    /// Returns `None` for another mode.
    ///
    /// # Errors
    ///
    /// A line is missing or malformed.
    pub fn parse(text: &str) -> anyhow::Result<Option<(Self, &str)>> {
        Ok(match field(text, "mode ")? {
            ("dir", rest) => Some((Self::Directory, rest)),
            ("overlay", rest) => {
                let (layers, rest) = field(rest, "layers ")?;
                let (lower, rest) = field(rest, "lower ")?;
                let overlay = Overlay {
                    layers: registry::decoded(layers),
                    lower: match lower {
                        "-" => None,
                        path => Some(Lower::parse(path)?),
                    },
                };
                Some((Self::Overlay(overlay), rest))
            }
            _ => None,
        })
    }
}

impl Overlay {
    /// Returns the directory with the changes.
    pub fn upper(&self) -> PathBuf {
        layers::upper(&self.layers)
    }
}

impl Lower {
    /// Returns the full store path of the manifest.
    pub fn path(&self) -> String {
        format!("{}/{}", self.store_dir, self.manifest.base_name())
    }

    fn parse(path: &str) -> anyhow::Result<Self> {
        let split = path.rsplit_once('/');
        let (store_dir, name) = split.context("the line of the lower layer is malformed")?;
        Ok(Self {
            store_dir: store_dir.to_owned(),
            manifest: StorePath::from_base_name(name)?,
        })
    }
}

/// Splits off a line that begins with a word.
pub(super) fn field<'a>(text: &'a str, word: &str) -> anyhow::Result<(&'a str, &'a str)> {
    let rest = text
        .strip_prefix(word)
        .and_then(|rest| rest.split_once('\n'));
    rest.with_context(|| format!("the line of {:?} is missing", word.trim_end()))
}
