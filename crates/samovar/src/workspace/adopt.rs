//! `samovar workspace open --adopt`: the generation from which the files of a directory have come.
//!
//! The files have come from a generation if they have all that it has, unchanged. What they have
//! besides must be in no generation: a file that a generation has, or had, is not new. If no
//! generation fits, nothing shows which differences are local changes and which are changes that
//! other machines have pushed since. Then the workspace has no base: a pull makes each difference a
//! conflict, and a push is refused before it.

use std::io::Write;
use std::process::ExitCode;

use samovar_workspace::{Entries, Entry, Kind, Walk};

use super::local::{changes, read, summary};
use super::state::{Base, State, Workspace};
use crate::refs::{Generation, RefName};
use crate::snapshot::{Downloaded, Snapshots};

/// Maximum number of generations that are compared, the newest first.
const GENERATION_COUNT_MAX: usize = 50;

/// The generation from which files have come.
#[derive(Debug)]
pub(super) enum Origin {
    Known(Generation, Box<Downloaded>),
    /// None that the server has. The number is that of the generation with the fewest differences.
    Unknown {
        nearest: Option<u64>,
    },
}

/// How files differ from a generation.
#[derive(Debug, Default)]
struct Compared {
    /// Number of entries that are missing or have other contents or another mode.
    changed_count: usize,
    /// Indices of the entries that the generation does not have.
    added: Vec<usize>,
}

/// Makes a directory with files a workspace. Its base is the generation that the command line
/// names, or that from which the files have come.
///
/// # Errors
///
/// The files cannot be read, or a manifest cannot be downloaded.
pub(super) fn adopt(
    reference: &RefName,
    workspace: &mut Workspace,
    snapshots: &Snapshots,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let scanned = read(workspace, false)?;
    let name = &reference.name;
    let log = snapshots.refs().log(name)?;
    let newest = log.generations.first().map(|newest| newest.number);
    let origin = match reference.generation {
        Some(number) => {
            let generation = log.generation(name, Some(number))?;
            let snapshot = snapshots.manifest(&generation.manifest)?;
            Origin::Known(generation, Box::new(snapshot))
        }
        None => find(snapshots, &log.generations, &scanned.entries)?,
    };
    let root = workspace.root.clone();
    let Origin::Known(generation, snapshot) = origin else {
        workspace.set_state(workspace.state.clone())?;
        let nearest = match origin {
            Origin::Unknown {
                nearest: Some(nearest),
            } => format!("{name}@{nearest}"),
            _ => format!("{name}@GENERATION"),
        };
        writeln!(
            out,
            "{root:?} is a workspace of {name}, but its files are not those of a generation that \
             the cache has, so nothing shows which of them were changed here: samovar workspace \
             pull makes each difference a conflict. If the files have come from a generation and \
             were changed here since, name it: samovar workspace open --adopt {nearest} {} (it has \
             the fewest differences)",
            root.display()
        )?;
        return Ok(ExitCode::SUCCESS);
    };
    workspace.write_base(&snapshot)?;
    workspace.set_state(State {
        base: Some(Base::now(generation.version(), &snapshot)),
        ..workspace.state.clone()
    })?;
    let changes = changes(&snapshot.manifest.entries, &scanned.entries);
    let advice = match newest.filter(|newest| *newest != generation.number) {
        Some(newest) => format!("; generation {newest} is newer: run samovar workspace pull"),
        None => String::new(),
    };
    writeln!(
        out,
        "{root:?} is a workspace of {}; compared with it: {}{advice}",
        workspace.title(),
        summary(&changes)
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Finds the generation from which `found` has come. `generations`: all, the newest first.
///
/// # Errors
///
/// A manifest cannot be downloaded.
pub(super) fn find(
    snapshots: &Snapshots,
    generations: &[Generation],
    found: &Entries,
) -> anyhow::Result<Origin> {
    let mut history = History::new(found);
    let mut fitting: Vec<(&Generation, Downloaded, Vec<usize>)> = Vec::new();
    let mut nearest: Option<(usize, u64)> = None;
    for generation in generations.iter().take(GENERATION_COUNT_MAX) {
        let snapshot = snapshots.manifest(&generation.manifest)?;
        let compared = history.compare(&snapshot.manifest.entries);
        let count = compared.changed_count + compared.added.len();
        if count == 0 {
            return Ok(Origin::Known(generation.clone(), Box::new(snapshot)));
        }
        if nearest.is_none_or(|(least, _)| count < least) {
            nearest = Some((count, generation.number));
        }
        // Of those that fit, the newest one has the most.
        if compared.changed_count == 0 && fitting.is_empty() {
            fitting.push((generation, snapshot, compared.added));
        }
    }
    let is_new = |added: &Vec<usize>| added.iter().all(|index| !history.has(*index));
    Ok(match fitting.pop() {
        Some((generation, snapshot, added)) if is_new(&added) => {
            Origin::Known(generation.clone(), Box::new(snapshot))
        }
        _ => Origin::Unknown {
            nearest: nearest.map(|(_, number)| number),
        },
    })
}

/// The entries of a directory, and which of their paths some generation has.
#[derive(Debug)]
struct History<'a> {
    found: &'a Entries,
    is_known: Vec<bool>,
}

impl<'a> History<'a> {
    fn new(found: &'a Entries) -> Self {
        Self {
            found,
            is_known: vec![false; found.list().len()],
        }
    }

    fn has(&self, index: usize) -> bool {
        self.is_known.get(index) == Some(&true)
    }

    fn compare(&mut self, generation: &Entries) -> Compared {
        let mut compared = Compared::default();
        // The attributes of the root do not matter.
        for [old, new] in Walk::new([generation, self.found]).skip(1) {
            let Some(index) = new else {
                compared.changed_count += 1;
                continue;
            };
            let Some(old) = old else {
                compared.added.push(index);
                continue;
            };
            if let Some(is_known) = self.is_known.get_mut(index) {
                *is_known = true;
            }
            let both = generation.get(old).zip(self.found.get(index));
            let is_same = both.is_some_and(|(old, new)| is_same(old, new));
            compared.changed_count += usize::from(!is_same);
        }
        compared
    }
}

/// Returns whether two entries are the same, but for their times.
fn is_same(old: &Entry, new: &Entry) -> bool {
    match (&old.kind, &new.kind) {
        (Kind::Directory { .. }, Kind::Directory { .. }) => old.mode == new.mode,
        (Kind::Symlink { target }, Kind::Symlink { target: found }) => target == found,
        _ => old.mode == new.mode && old.has_same_data(new),
    }
}

#[cfg(test)]
mod tests {
    use samovar_workspace::Mtime;
    use samovar_workspace::entries::Builder;

    use super::*;

    /// Creates a tree of files, each with its content's number.
    fn tree(files: &[(&str, u8)]) -> Entries {
        let mut builder = Builder::new(0o755, Mtime::default());
        for (name, content) in files {
            let digest = Some([*content; 32]);
            let name = name.as_bytes();
            builder
                .file(name, 0o644, Mtime::default(), 1, digest)
                .unwrap();
        }
        builder.leave().unwrap();
        builder.finish().unwrap()
    }

    #[test]
    fn what_a_generation_has_is_not_new() {
        let found = tree(&[("a", 1), ("b", 2), ("c", 3)]);
        let mut history = History::new(&found);
        let compared = history.compare(&tree(&[("a", 1), ("b", 2)]));
        assert_eq!((compared.changed_count, &*compared.added), (0, &[3][..]));
        assert!(!history.has(3));
        // Another generation has another content of it, and lacks one.
        let compared = history.compare(&tree(&[("a", 1), ("c", 4)]));
        assert_eq!((compared.changed_count, &*compared.added), (1, &[2][..]));
        assert!(history.has(3) && history.has(2));
        let compared = history.compare(&tree(&[("a", 1), ("d", 4)]));
        assert_eq!((compared.changed_count, compared.added.len()), (1, 2));
    }
}
