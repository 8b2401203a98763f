//! Generations that a pull has begun to merge.
//!
//! A pull that was killed, or that a program has disturbed, leaves some entries in their new
//! version. If the next pull merges another generation, these entries would look like changes that
//! were made on this machine. So a pull stores the manifest of its generation before its first
//! change, in the file `pull-BASE-HASH-VERSION` of the state directory: the hash parts of the
//! manifests of the base and of the generation, and the generation with its lineage. Until the base
//! changes, entries that are as in such a generation count as unchanged. Generations of another
//! lineage do not count: the server has lost them, so their files may exist nowhere else.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context as _;
use samovar_nix::StorePath;
use samovar_workspace::merge::advanced;
use samovar_workspace::{Entries, Manifest};

use super::file::replace_file;
use crate::refs::Version;
use crate::snapshot::Downloaded;

const PREFIX: &str = "pull-";

/// The generations that were begun on a base.
#[derive(Debug)]
pub struct Begun<'a> {
    /// Directory of the state.
    state: &'a Path,
    /// Begin of the names of the files.
    prefix: String,
    newest: Version,
    manifests: Vec<Manifest>,
}

impl<'a> Begun<'a> {
    /// Reads what was begun on this base, before the generation `newest` of the same lineage.
    /// `base`: path of its manifest.
    pub fn read(state: &'a Path, base: Option<&StorePath>, newest: Version) -> Self {
        let base = base.map_or_else(|| "none".to_owned(), |base| base.hash_part().to_string());
        let prefix = format!("{PREFIX}{base}-");
        let is_older = |name: &String| {
            let rest = name.strip_prefix(&prefix);
            let version = rest.and_then(|rest| Version::parse(rest.split_once('-')?.1));
            version.is_some_and(|version| {
                version.lineage == newest.lineage && version.number <= newest.number
            })
        };
        // A file that cannot be read is as if the pull had not stored it.
        let files = names(state).filter(is_older);
        let texts = files.filter_map(|name| fs::read_to_string(state.join(name)).ok());
        let manifests = texts.filter_map(|text| Manifest::parse(&text).ok());
        Self {
            state,
            manifests: manifests.collect(),
            prefix,
            newest,
        }
    }

    /// Returns whether nothing was begun.
    pub fn is_empty(&self) -> bool {
        self.manifests.is_empty()
    }

    /// Returns the base for the next merge.
    ///
    /// # Errors
    ///
    /// A manifest is damaged.
    pub fn advance(&self, mut base: Entries, ours: &Entries) -> anyhow::Result<Entries> {
        for manifest in &self.manifests {
            let advanced = advanced(&base, ours, &manifest.entries);
            base = advanced.context("a snapshot of an earlier pull is no tree")?;
        }
        Ok(base)
    }

    /// Stores that a merge of the newest generation begins.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn begin(&self, snapshot: &Downloaded) -> anyhow::Result<()> {
        let (hash, version) = (snapshot.path.hash_part(), self.newest.text());
        let name = format!("{}{hash}-{version}", self.prefix);
        replace_file(self.state, &name, snapshot.text.as_bytes())
    }
}

/// Forgets what was begun, after the base has changed. What is left means nothing then.
pub fn end(state: &Path) {
    for name in names(state) {
        if name.starts_with(PREFIX) {
            fs::remove_file(state.join(name)).unwrap_or_default();
        }
    }
}

/// Copies the files about what was begun to the state directory `to`, in which the base is used
/// from now on.
///
/// # Errors
///
/// A file cannot be copied.
pub fn copy(state: &Path, to: &Path) -> io::Result<()> {
    let mut begun = names(state).filter(|name| name.starts_with(PREFIX));
    begun.try_for_each(|name| fs::copy(state.join(&name), to.join(&name)).map(drop))
}

fn names(state: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(state).into_iter().flatten();
    entries.filter_map(|entry: io::Result<_>| entry.ok()?.file_name().into_string().ok())
}
