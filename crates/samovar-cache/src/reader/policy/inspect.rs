//! Inspects a policy without a server: for warnings at start and reload, and for `samovar doctor`.

use std::fmt;
use std::io;
use std::path::Path;

use samovar_nix::{PathInfo, StorePath};
use samovar_store::Store;

use super::roots::{LinkTarget, follow};
use super::{Decision, Policy, PolicyConfig, Rule};

/// Number of rows per query of the store.
const STEP_COUNT: usize = 500;

/// Reason why a root leads to no path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootFault {
    /// The root, or a link that it leads to, does not exist.
    Missing,
    /// The root leads to a path that is not in the store.
    NotInStore(StorePath),
}

impl fmt::Display for RootFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("is missing"),
            Self::NotInStore(path) => {
                write!(
                    f,
                    "leads to {}, which is not in the store",
                    path.base_name()
                )
            }
        }
    }
}

/// Returns the roots of these rules that lead to no path, each with the reason.
pub fn faulty_roots<'a>(
    rules: &'a [Rule],
    store: &dyn Store,
) -> impl Iterator<Item = (&'a Path, RootFault)> {
    let roots = rules.iter().flat_map(|rule| &rule.roots);
    roots.filter_map(move |root| Some((&**root, fault(root, store)?)))
}

fn fault(root: &Path, store: &dyn Store) -> Option<RootFault> {
    match follow(root, store.store_dir()) {
        Ok(LinkTarget::StorePath(path)) => {
            let found = store.lookup(path.hash_part()).ok()?;
            let is_valid = found.is_some_and(|info| info.path == path);
            (!is_valid).then_some(RootFault::NotInStore(path))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(RootFault::Missing),
        // A root that cannot be followed for another reason is an error, which the server reports.
        _ => None,
    }
}

/// Returns the most recently registered path that the policy allows. Returns `None` if there is
/// none, and if the store or a root cannot be read.
pub fn newest_readable(policy: &PolicyConfig, store: &dyn Store) -> Option<StorePath> {
    if policy.hides_store {
        return None;
    }
    let policy = Policy::new(policy.clone());
    policy.roots.compute(store).ok()?;
    let mut before = None;
    loop {
        let paths = store.newest(before, STEP_COUNT).ok()?;
        before = paths.last()?.registration;
        let is_readable = |info: &PathInfo| {
            let decision = policy.decide(info, store.store_dir(), policy.now());
            matches!(decision, Decision::Allowed { .. })
        };
        let found = paths.into_iter().find(is_readable);
        if found.is_some() || before.is_none() {
            return found.map(|info| info.path);
        }
    }
}
