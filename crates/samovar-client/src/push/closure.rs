//! Selects the paths to push: closures of paths in the local store, references first.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, bail};
use samovar_nix::{Glob, HashPart, PathInfo, StorePath};
use samovar_store::Store;

/// Number of paths that one query of the store looks up.
const LOOKUP_COUNT: usize = 500;

/// The paths that a push covers.
#[derive(Debug, Default)]
pub struct Paths {
    /// Paths of the local store. Each comes after its references.
    pub infos: Vec<PathInfo>,
    /// Requested paths that the store does not have.
    pub absent: Vec<HashPart>,
    /// Number of paths that the options exclude from the closures.
    pub excluded_count: usize,
}

/// The options that select paths from the closures.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Whether to push the named paths alone, without their references.
    pub is_without_references: bool,
    /// Patterns of names without the hash part. Matching paths are excluded.
    pub excluded: Vec<Glob>,
    /// Names of signing keys. Paths with a signature of one of them are excluded.
    pub signers: Vec<String>,
}

impl Selection {
    /// Returns whether the options exclude this path. The references of an excluded path are pushed
    /// only if another path refers to them.
    fn excludes(&self, info: &PathInfo) -> bool {
        let name = info.path.name();
        let is_signer = |key_name: &str| self.signers.iter().any(|signer| signer == key_name);
        let mut signatures = info.signatures.iter();
        self.excluded.iter().any(|glob| glob.matches(name))
            || signatures.any(|signature| is_signer(signature.key_name()))
    }
}

impl Paths {
    /// Finds the closures of `roots` in the store, without the paths that `selection` excludes.
    ///
    /// # Errors
    ///
    /// The store cannot be read, or a reference is not in it.
    pub fn find(
        store: &dyn Store,
        roots: &[HashPart],
        selection: &Selection,
    ) -> anyhow::Result<Self> {
        let mut found = HashMap::new();
        let mut excluded = HashSet::new();
        let mut paths = Self::default();
        let mut wanted = roots.to_vec();
        let mut is_first = true;
        while !wanted.is_empty() {
            wanted.sort_unstable();
            wanted.dedup();
            let mut next = Vec::new();
            for some in wanted.chunks(LOOKUP_COUNT) {
                for (hash_part, looked) in some.iter().zip(store.lookup_many(some)?) {
                    let info = looked.with_context(|| format!("cannot look up {hash_part}"))?;
                    match info {
                        Some(info) if selection.excludes(&info) => {
                            excluded.insert(*hash_part);
                        }
                        Some(info) => {
                            next.extend(info.references.iter().map(StorePath::hash_part));
                            found.insert(*hash_part, info);
                        }
                        None if is_first => paths.absent.push(*hash_part),
                        None => bail!(
                            "the reference {hash_part} was deleted from the store: run the \
                             command again"
                        ),
                    }
                }
            }
            next.retain(|path| !found.contains_key(path) && !excluded.contains(path));
            wanted = match selection.is_without_references {
                true => Vec::new(),
                false => next,
            };
            is_first = false;
        }
        paths.excluded_count = excluded.len();
        paths.infos = in_order(roots, found);
        Ok(paths)
    }
}

/// Orders the paths so that each one comes after its references. Recursion would overflow the stack
/// for a long chain of references.
fn in_order(roots: &[HashPart], mut found: HashMap<HashPart, PathInfo>) -> Vec<PathInfo> {
    let mut ordered = Vec::with_capacity(found.len());
    for root in roots {
        // Stack of the paths being visited, each with the references that are still to visit.
        let mut open: Vec<(PathInfo, Vec<HashPart>)> = Vec::new();
        open.extend(found.remove(root).map(with_references));
        while let Some((_, left)) = open.last_mut() {
            if let Some(next) = left.pop() {
                let next = found.remove(&next).map(with_references);
                open.extend(next);
            } else {
                ordered.extend(open.pop().map(|(info, _)| info));
            }
        }
    }
    ordered
}

fn with_references(info: PathInfo) -> (PathInfo, Vec<HashPart>) {
    let references = info.references.iter().rev().map(StorePath::hash_part);
    let references = references.collect();
    (info, references)
}

/// Makes the row of a path that was built on this machine, for unit tests.
#[cfg(test)]
pub(super) fn path_info(
    path: StorePath,
    nar_hash: samovar_nix::NarHash,
    nar_size: u64,
    references: Vec<StorePath>,
) -> PathInfo {
    PathInfo {
        path,
        nar_hash,
        nar_size,
        references,
        deriver: None,
        signatures: Vec::new(),
        content_address: None,
        registration_time: 0,
        ultimate: true,
        registration: None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;
    use samovar_nix::NarHash;

    use super::*;

    fn path(number: usize) -> StorePath {
        StorePath::from_base_name(&format!("{number:032}-p{number}")).unwrap()
    }

    fn info(number: usize, references: impl IntoIterator<Item = usize>) -> PathInfo {
        let references = references.into_iter().map(path).collect();
        path_info(path(number), NarHash::from_bytes([0; 32]), 96, references)
    }

    proptest! {
        /// Generates graphs in which each path refers to some lower ones, and perhaps to itself.
        #[test]
        fn every_path_comes_once_after_its_references(
            edges in vec((btree_set(0..50_usize, 0..5), any::<bool>()), 1..50),
        ) {
            let infos: Vec<PathInfo> = edges
                .iter()
                .enumerate()
                .map(|(number, (references, to_itself))| {
                    let lower = references.iter().copied().filter(|other| *other < number);
                    info(number, lower.chain(to_itself.then_some(number)))
                })
                .collect();
            let roots: Vec<HashPart> = infos.iter().map(|info| info.path.hash_part()).collect();
            let found = infos.into_iter().map(|info| (info.path.hash_part(), info)).collect();
            let ordered = in_order(&roots, found);
            prop_assert_eq!(ordered.len(), edges.len());
            let mut seen = HashSet::new();
            for info in ordered {
                prop_assert!(seen.insert(info.path.clone()));
                prop_assert!(info.references.iter().all(|path| seen.contains(path)));
            }
        }
    }

    #[test]
    fn names_and_signers_exclude_paths() {
        let key = samovar_nix::SecretKey::parse(&format!("cache-1:{}", "A".repeat(86) + "=="));
        let mut signed = info(1, []);
        signed.signatures = vec![key.unwrap().sign(b"")];
        let selection = |globs: &[&str], signers: &[&str]| Selection {
            excluded: globs.iter().map(|glob| Glob::new(glob)).collect(),
            signers: signers.iter().map(|name| (*name).to_owned()).collect(),
            ..Selection::default()
        };
        for (globs, signers, expected) in [
            (&[][..], &[][..], false),
            (&["p1"], &[], true),
            (&["a", "p*"], &[], true),
            (&["*-p1", "p", "p11"], &["cache"], false),
            (&[], &["b", "cache-1"], true),
        ] {
            let selection = selection(globs, signers);
            assert_eq!(selection.excludes(&signed), expected, "{selection:?}");
            assert_eq!(selection.excludes(&info(2, [])), globs == ["a", "p*"]);
        }
    }

    #[test]
    fn long_chains_need_no_stack() {
        let infos = (0..200_000).map(|number: usize| info(number, number.checked_sub(1)));
        let found = infos.map(|info| (info.path.hash_part(), info)).collect();
        let ordered = in_order(&[path(199_999).hash_part()], found);
        assert_eq!(ordered.len(), 200_000);
        assert_eq!(ordered[0].path, path(0));
    }
}
