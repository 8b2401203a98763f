//! `samovar workspace open --adopt`: the generation from which the files of a directory have come.
//!
//! The files have come from a generation if all files of the generation are among them, unchanged.
//! All other files must be in no generation: a file that a generation has, or had, is not new. If
//! the server does not have all generations any more, no file is certainly new. If no generation
//! fits, nothing shows which differences are local changes and which are changes that other
//! machines have pushed since. Then the workspace has no base: a pull makes each difference a
//! conflict, also files that only this side has, unless they are certainly new. A push is refused
//! until a pull has succeeded.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use samovar_client::workspace::{Base, State, Workspace};
use samovar_protocol::names::PinName;
use samovar_text::shown_path;
use samovar_workspace::repository::is_repository;
use samovar_workspace::{Entries, Entry, Kind, Walk};

use super::conflicts::Conflict;
use super::local::{changes, read, summary};
use crate::refs::{Generation, RefName};
use crate::size::counted;
use crate::snapshot::{Downloaded, Snapshots};

/// Maximum number of generations that are compared, the newest first.
const GENERATION_COUNT_MAX: usize = 50;

/// The generation from which files have come.
#[derive(Debug)]
pub(super) enum Origin {
    Known(Generation, Box<Downloaded>),
    /// A generation, if the other files are new. An older generation, which the server does not
    /// have any more, may have had them.
    Unproved {
        generation: u64,
        /// Number of the oldest generation that was compared.
        oldest: u64,
        /// Number of the entries that are not in the generation, and the path of one.
        added_count: usize,
        added: Vec<u8>,
    },
    /// None that the server has. The number belongs to the generation with the fewest differences.
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
    let (generation, snapshot) = match origin {
        Origin::Known(generation, snapshot) => (generation, snapshot),
        unknown => {
            workspace.set_state(workspace.state.clone())?;
            let reason = unknown.reason(name.as_str(), &root);
            writeln!(out, "{root:?} is a workspace of {name}, but {reason}")?;
            return Ok(ExitCode::SUCCESS);
        }
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

impl Origin {
    /// Returns why the workspace has no base, and what to do. `name`: the ref.
    fn reason(&self, name: &str, root: &Path) -> String {
        let root = root.display();
        match self {
            Self::Unproved {
                generation,
                oldest,
                added_count,
                added,
            } => format!(
                "it has the files of generation {generation}, and in addition {}, such as {:?}, \
                 which may be old: the cache no longer has the generations before {oldest}, and \
                 other machines may have removed these paths since. samovar workspace pull makes \
                 each of these paths a conflict. If they are new, name the generation: samovar \
                 workspace open --adopt {name}@{generation} {root}",
                counted(*added_count as u64, "path"),
                shown_path(added)
            ),
            Self::Known(..) | Self::Unknown { .. } => {
                let nearest = match self {
                    Self::Unknown {
                        nearest: Some(nearest),
                    } => nearest.to_string(),
                    _ => "GENERATION".to_owned(),
                };
                format!(
                    "its files match no generation that the cache has, so it is unknown which of \
                     them were changed on this machine: samovar workspace pull makes each \
                     difference a conflict. If the files come from a generation and were changed \
                     on this machine since, name that generation: samovar workspace open --adopt \
                     {name}@{nearest} {root} (it has the fewest differences)"
                )
            }
        }
    }
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
    let mut history = History::new(found, generations);
    let mut fitting: Vec<(&Generation, Vec<usize>)> = Vec::new();
    let mut nearest: Option<(usize, u64)> = None;
    for generation in history.generations {
        let snapshot = snapshots.manifest(&generation.manifest)?;
        let compared = history.compare(generation.number, &snapshot.manifest.entries);
        let count = compared.changed_count + compared.added.len();
        if count == 0 {
            return Ok(Origin::Known(generation.clone(), Box::new(snapshot)));
        }
        if nearest.is_none_or(|(least, _)| count < least) {
            nearest = Some((count, generation.number));
        }
        if compared.changed_count == 0 {
            fitting.push((generation, compared.added));
        }
    }
    // The newest one has the most.
    let is_new = |added: &[usize]| added.iter().all(|index| history.seen_in(*index).is_none());
    let fitting = fitting.into_iter().find(|(_, added)| is_new(added));
    let Some((generation, added)) = fitting else {
        let nearest = nearest.map(|(_, number)| number);
        return Ok(Origin::Unknown { nearest });
    };
    Ok(match history.is_complete {
        true => {
            let snapshot = snapshots.manifest(&generation.manifest)?;
            Origin::Known(generation.clone(), Box::new(snapshot))
        }
        false => Origin::Unproved {
            generation: generation.number,
            oldest: history.oldest(),
            added_count: added.len(),
            added: found.path(added.first().copied().unwrap_or_default()),
        },
    })
}

/// A path that only this side has, of which nothing shows that it is new.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    path: Vec<u8>,
    /// The newest generation that has the path, or an entry below it. `None`: a generation that the
    /// server does not have any more may have had the path.
    seen_in: Option<u64>,
}

/// Returns the paths that `ours` has and the newest generation, `theirs`, has not, unless they are
/// certainly new: without a base, other machines may have removed them. If a directory with all its
/// entries is to be returned, or a repository, only the directory is. `conflicts`: what is reported
/// already.
///
/// # Errors
///
/// The cache is unavailable.
pub(super) fn doubts(
    snapshots: &Snapshots,
    name: &PinName,
    [ours, theirs]: [&Entries; 2],
    conflicts: &[Conflict],
) -> anyhow::Result<Vec<Doubt>> {
    let log = snapshots.refs().log(name)?;
    let mut history = History::new(ours, &log.generations);
    for generation in history.generations {
        let snapshot = snapshots.manifest(&generation.manifest)?;
        history.compare(generation.number, &snapshot.manifest.entries);
    }
    let is_reported = |index: usize| {
        conflicts
            .iter()
            .any(|one| match ours.get(one.ours).map(|entry| &entry.kind) {
                Some(Kind::Directory { end }) => (one.ours..*end).contains(&index),
                _ => false,
            })
    };
    Ok(history.doubts(theirs, &is_reported))
}

impl Doubt {
    /// Prints the conflict. `name`: the ref; `newest`: its newest generation.
    pub(super) fn report(&self, name: &str, newest: u64, out: &mut dyn Write) -> io::Result<()> {
        let path = shown_path(&self.path);
        let reason = match self.seen_in {
            Some(seen_in) => format!("generation {seen_in} of {name} has it"),
            None => {
                "an older generation, which the cache no longer has, may have had it".to_owned()
            }
        };
        writeln!(
            out,
            "conflict: {path} stays as it is, although generation {newest} lacks it or a part of \
             it, because {reason}: if another machine has removed it on purpose, remove it here, \
             too; otherwise the next push publishes it again"
        )
    }
}

/// The entries of a directory, and which of their paths some generation has.
#[derive(Debug)]
struct History<'a> {
    found: &'a Entries,
    /// The generations to compare, the newest first.
    generations: &'a [Generation],
    /// Whether these are all that the ref has ever had.
    is_complete: bool,
    /// The newest generation that has the path of an entry, by index.
    seen_in: Vec<Option<u64>>,
}

impl<'a> History<'a> {
    /// `generations`: all that the server has, the newest first.
    fn new(found: &'a Entries, generations: &'a [Generation]) -> Self {
        let compared = generations
            .get(..GENERATION_COUNT_MAX)
            .unwrap_or(generations);
        let numbers = compared.iter().rev().map(|one| one.number);
        Self {
            found,
            generations: compared,
            is_complete: numbers.eq(1..=generations.len() as u64),
            seen_in: vec![None; found.list().len()],
        }
    }

    fn seen_in(&self, index: usize) -> Option<u64> {
        self.seen_in.get(index).copied().flatten()
    }

    fn oldest(&self) -> u64 {
        self.generations.last().map_or(0, |oldest| oldest.number)
    }

    fn compare(&mut self, number: u64, generation: &Entries) -> Compared {
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
            if let Some(seen_in) = self.seen_in.get_mut(index) {
                *seen_in = (*seen_in).max(Some(number));
            }
            let both = generation.get(old).zip(self.found.get(index));
            let is_same = both.is_some_and(|(old, new)| is_same(old, new));
            compared.changed_count += usize::from(!is_same);
        }
        compared
    }

    fn doubts(&self, theirs: &Entries, is_reported: &dyn Fn(usize) -> bool) -> Vec<Doubt> {
        let mut doubts: Vec<Doubt> = Vec::new();
        // The outermost directory of ours that theirs lacks.
        let mut top: Option<(usize, usize)> = None;
        for [index, their] in Walk::new([self.found, theirs]).skip(1) {
            let Some((index, entry)) = index.and_then(|one| Some((one, self.found.get(one)?)))
            else {
                continue;
            };
            top = top.filter(|(depth, _)| entry.depth > *depth);
            if their.is_some() {
                continue;
            }
            let (_, path) = *top.get_or_insert((entry.depth, index));
            let seen_in = self.seen_in(index);
            if is_reported(index) || self.is_complete && seen_in.is_none() {
                continue;
            }
            let path = unit(self.found.path(path));
            match doubts.last_mut().filter(|last| last.path == path) {
                Some(last) => last.seen_in = last.seen_in.max(seen_in),
                None => doubts.push(Doubt { path, seen_in }),
            }
        }
        doubts
    }
}

/// Returns the path of the repository that contains a path, or the path itself.
fn unit(mut path: Vec<u8>) -> Vec<u8> {
    let mut end = 0;
    for name in path.split(|byte| *byte == b'/') {
        end += name.len();
        if is_repository(name) {
            break;
        }
        end += 1;
    }
    path.truncate(end);
    path
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

    fn generation(number: u64) -> Generation {
        let manifest = "vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-app.manifest";
        Generation {
            number,
            manifest: samovar_nix::StorePath::from_base_name(manifest).unwrap(),
            created_at: 0,
            expires_at: None,
            token: None,
            host: None,
            message: None,
            lineage: None,
        }
    }

    #[test]
    fn what_a_generation_has_is_not_new() {
        let found = tree(&[("a", 1), ("b", 2), ("c", 3)]);
        let mut history = History::new(&found, &[]);
        let compared = history.compare(5, &tree(&[("a", 1), ("b", 2)]));
        assert_eq!((compared.changed_count, &*compared.added), (0, &[3][..]));
        assert_eq!(history.seen_in(3), None);
        // Another generation has another content of it, and lacks one.
        let compared = history.compare(4, &tree(&[("a", 1), ("c", 4)]));
        assert_eq!((compared.changed_count, &*compared.added), (1, &[2][..]));
        assert_eq!((history.seen_in(3), history.seen_in(2)), (Some(4), Some(5)));
        let compared = history.compare(3, &tree(&[("a", 1), ("d", 4)]));
        assert_eq!((compared.changed_count, compared.added.len()), (1, 2));
        let doubt = |path: &str, seen_in| Doubt {
            path: path.into(),
            seen_in,
        };
        let theirs = tree(&[("a", 9)]);
        let expected = [doubt("b", Some(5)), doubt("c", Some(4))];
        assert_eq!(history.doubts(&theirs, &|_| false), expected);
        assert_eq!(history.doubts(&theirs, &|index| index == 3), expected[..1]);
    }

    #[test]
    fn nothing_is_new_if_generations_are_missing() {
        let found = tree(&[("a", 1)]);
        for (numbers, is_complete) in [
            (&[2, 1][..], true),
            (&[3, 2], false),
            (&[3, 1], false),
            (&[], true),
        ] {
            let all: Vec<_> = numbers.iter().map(|number| generation(*number)).collect();
            let history = History::new(&found, &all);
            assert_eq!(history.is_complete, is_complete, "{numbers:?}");
            let doubts = history.doubts(&tree(&[]), &|_| false);
            assert_eq!(doubts.is_empty(), is_complete);
        }
        let max = GENERATION_COUNT_MAX as u64;
        let all: Vec<_> = (1..=max + 1).rev().map(generation).collect();
        assert!(!History::new(&found, &all).is_complete);
        assert!(History::new(&found, &all[1..]).is_complete);
        assert_eq!(unit(b"a/.git/refs/x".to_vec()), b"a/.git");
        assert_eq!(unit(b"a/b".to_vec()), b"a/b");
    }
}
