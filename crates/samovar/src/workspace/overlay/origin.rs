//! [`Origin`]: the snapshot below the changes of an overlay.

use std::fs;
use std::path::Path;

use anyhow::anyhow;
use samovar_mount::overlay::layers::Layers;
use samovar_nix::StorePath;

use crate::notice::notice;
use crate::outcome::Failed;
use crate::refs::{RefName, Version};
use crate::snapshot::Snapshots;

/// The snapshot on which a run is based.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    /// URL of the cache without a login, and name of the ref.
    pub(super) text: String,
    /// The generation on which the tree is based. `None`: the ref did not exist.
    pub(super) generation: Option<Version>,
    /// The snapshot below the changes.
    pub(super) manifest: Option<StorePath>,
    /// The snapshot of that generation, if it was merged into the changes, and so is not the one
    /// below.
    pub(super) base: Option<StorePath>,
}

impl Origin {
    pub(super) fn text(&self) -> String {
        let path = |path: &StorePath| path.base_name().to_owned();
        let mut text = format!(
            "{}\n{}\n{}\n",
            self.text,
            self.generation
                .map_or_else(|| "-".to_owned(), Version::text),
            self.manifest.as_ref().map_or_else(|| "-".to_owned(), path),
        );
        if let Some(base) = &self.base {
            text.push_str(&format!("{}\n", path(base)));
        }
        text
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let text = lines.next()?.to_owned();
        let generation = match lines.next()? {
            "-" => None,
            version => Some(Version::parse(version)?),
        };
        let manifest = match lines.next()? {
            "-" => None,
            path => Some(StorePath::from_base_name(path).ok()?),
        };
        let base = lines.next().map(StorePath::from_base_name).transpose();
        Some(Self {
            text,
            generation,
            manifest,
            base: base.ok()?,
        })
    }
}

/// Returns the snapshot that a ref names. `will_push`: whether it must be the newest one.
///
/// # Errors
///
/// There is no such generation, or it is not the newest one.
pub(super) fn find(
    snapshots: &Snapshots,
    name: &RefName,
    will_push: bool,
) -> anyhow::Result<Origin> {
    let text = format!("{}#{}", name.remote, name.name);
    let log = snapshots.refs().get(&name.name)?;
    let Some(log) = log.filter(|log| !log.generations.is_empty()) else {
        if name.generation.is_some() {
            return Err(Failed::Refused.because(anyhow!("there is no ref {}", name.name)));
        }
        notice(&format!(
            "{} does not exist yet: its tree is empty",
            name.name
        ));
        return Ok(Origin {
            text,
            generation: None,
            manifest: None,
            base: None,
        });
    };
    let newest = log.generations[0].version();
    let generation = log.generation(&name.name, name.generation)?;
    if will_push && generation.version() != newest {
        return Err(Failed::Usage.because(anyhow!(
            "{name} is not the newest generation, which is {}: use --no-push or --discard, \
             or --force to push the changes on top of it",
            newest.number
        )));
    }
    Ok(Origin {
        text,
        generation: Some(generation.version()),
        manifest: Some(generation.manifest),
        base: None,
    })
}

/// Prints the directories with changes of earlier runs.
pub(super) fn report_kept(runs: &Path, prefix: &str) {
    for entry in fs::read_dir(runs).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(prefix));
        let is_same = rest.is_some_and(|rest| rest.rfind('-') == Some(0));
        // Locked ones are in use.
        if is_same && Layers::open(&entry.path()).is_ok() {
            notice(&format!(
                "an earlier command has left changes in {:?}",
                entry.path()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_parsed_as_it_was_written() {
        let path = |name: &str| {
            let base_name = format!("vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-{name}.manifest");
            StorePath::from_base_name(&base_name).ok()
        };
        let lineage = format!("3-{}", "0a".repeat(16));
        for (generation, manifest, base) in [
            (None, None, None),
            (Version::parse("3"), path("a"), None),
            (Version::parse(&lineage), path("a"), path("b")),
            (Version::parse(&lineage), None, path("b")),
        ] {
            let origin = Origin {
                text: "http://localhost:5000/a#mr/app".to_owned(),
                generation,
                manifest,
                base,
            };
            assert_eq!(Origin::parse(&origin.text()).unwrap(), origin);
            assert!(Origin::parse("").is_none());
        }
    }
}
