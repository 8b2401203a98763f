//! [`State`]: the file with the ref of a workspace, and with the generation on which its files are
//! based.
//!
//! It is UTF-8 text:
//!
//! ```text
//! samovar-workspace 1
//! mode dir                      or mode overlay, then these two lines:
//! layers <percent-encoded path of the directory with the layers>
//! lower <store path of the manifest of the lower layer, or -, if it is empty>
//! url <URL of the cache, without a login>
//! ref <name>
//! public                        if the tree may be in a cache that everybody can read
//! trust <public key>            a line for each key of --trusted-public-keys
//! base <generation>-<lineage> <base name of the manifest> <hash of its NAR> <seconds since 1970>
//! ```
//!
//! Without the last line, nothing was pushed or pulled yet. A base has no lineage if the server did
//! not state one.

use anyhow::{Context as _, anyhow, ensure};
use samovar_nix::{NarHash, PublicKey, StorePath};
use samovar_protocol::names::PinName;

use super::mode::{Mode, field};
use crate::machine::now;
use crate::refs::Version;
use crate::snapshot::Downloaded;

const MAGIC: &str = "samovar-workspace 1";
/// Name of the file with the [`State`].
pub const STATE: &str = "workspace";

/// The content of the file `workspace`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// URL of the cache, without `/upload` and without a login.
    pub url: String,
    /// Name of the ref.
    pub name: PinName,
    /// Where the files are.
    pub mode: Mode,
    /// Whether the tree may be in a cache that everybody can read.
    pub is_public: bool,
    /// Keys of which one must have signed what is read from the cache. Empty: no signature is
    /// required.
    pub keys: Vec<PublicKey>,
    /// `None`: nothing was pushed or pulled yet.
    pub base: Option<Base>,
}

/// The generation on which the files of a workspace are based.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// Its generation, with the lineage if the server has stated one.
    pub version: Version,
    /// Store path of the manifest.
    pub manifest: StorePath,
    /// Hash of the manifest's NAR.
    pub nar_hash: NarHash,
    /// Time of the push or pull, by the clock of this machine, in seconds since 1970.
    pub synced_at: i64,
}

impl State {
    /// Returns the generation of the base; 0 if there is none.
    pub fn generation(&self) -> u64 {
        self.base.as_ref().map_or(0, |base| base.version.number)
    }

    /// Returns the text of the file.
    pub fn text(&self) -> String {
        let mode = self.mode.text();
        let mut text = format!("{MAGIC}\n{mode}url {}\nref {}\n", self.url, self.name);
        if self.is_public {
            text.push_str("public\n");
        }
        for key in &self.keys {
            text.push_str(&format!("trust {key}\n"));
        }
        if let Some(base) = &self.base {
            text.push_str(&format!(
                "base {} {} {} {}\n",
                base.version.text(),
                base.manifest.base_name(),
                base.nar_hash.to_string().trim_start_matches("sha256:"),
                base.synced_at
            ));
        }
        text
    }

    /// Parses a text that [`text`](Self::text) returned.
    ///
    /// # Errors
    ///
    /// It has another format, or is damaged.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let another = "it has another format: use the version of samovar that wrote it";
        let rest = text.strip_prefix(MAGIC).context(another)?;
        let rest = rest.strip_prefix('\n').context(another)?;
        let (mode, rest) = Mode::parse(rest)?.context(another)?;
        let (url, rest) = field(rest, "url ")?;
        let (name, rest) = field(rest, "ref ")?;
        let (is_public, mut rest) = match rest.strip_prefix("public\n") {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let mut keys = Vec::new();
        while rest.starts_with("trust ") {
            let (key, after) = field(rest, "trust ")?;
            keys.push(PublicKey::parse(key).context("a trusted key is malformed")?);
            rest = after;
        }
        let base = match rest {
            "" => None,
            rest => {
                let (base, rest) = field(rest, "base ")?;
                ensure!(rest.is_empty(), "it has more lines than expected");
                Some(Base::parse(base)?)
            }
        };
        Ok(Self {
            url: url.to_owned(),
            name: name
                .parse()
                .map_err(|_error| anyhow!("the name of the ref is invalid"))?,
            mode,
            is_public,
            keys,
            base,
        })
    }
}

impl Base {
    /// Returns the state after a push or pull that ends now.
    pub fn now(version: Version, snapshot: &Downloaded) -> Self {
        Self {
            version,
            manifest: snapshot.path.clone(),
            nar_hash: snapshot.nar_hash,
            synced_at: now(),
        }
    }

    fn parse(line: &str) -> anyhow::Result<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [version, manifest, nar_hash, synced_at] = words[..] else {
            anyhow::bail!("the line of the base is malformed");
        };
        Ok(Self {
            version: Version::parse(version).context("the generation of the base is malformed")?,
            manifest: StorePath::from_base_name(manifest)?,
            nar_hash: NarHash::parse_nixbase32(nar_hash.as_bytes())?,
            synced_at: synced_at.parse()?,
        })
    }
}

#[cfg(test)]
mod tests;
