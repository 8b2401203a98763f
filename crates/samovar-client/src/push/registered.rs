//! The paths that were registered in the local store after a moment.
//!
//! Nix's database gives each registration a number that is higher than all numbers of earlier
//! commits and is never used again. The paths whose number is higher than the last one seen are
//! therefore exactly the new paths, and they are complete.

use anyhow::ensure;
use samovar_nix::{HashPart, PathInfo};
use samovar_store::Store;

/// Number of registered paths per query.
const LIST_COUNT: usize = 500;

/// Returns the highest registration number in the store, or 0 if the store is empty.
///
/// # Errors
///
/// The database cannot be read.
pub fn newest(store: &dyn Store) -> anyhow::Result<i64> {
    ensure!(
        store.catalog().is_some() && !store.is_left_to_daemon(),
        "the database of the store cannot be read by this user: run the command as a user who can, \
         or use samovar hook"
    );
    let newest = store.newest(None, 1)?;
    Ok(newest
        .first()
        .and_then(|info| info.registration)
        .unwrap_or(0))
}

/// Returns the paths whose registration number is higher than `last`, newest first.
///
/// # Errors
///
/// The database cannot be read.
pub fn registered_after(store: &dyn Store, last: i64) -> anyhow::Result<Vec<PathInfo>> {
    let is_new = |info: &PathInfo| info.registration.is_some_and(|number| number > last);
    let mut infos = Vec::new();
    let mut before = None;
    loop {
        let page = store.newest(before, LIST_COUNT)?;
        let is_last = page.len() < LIST_COUNT || !page.iter().all(is_new);
        before = page.last().and_then(|info| info.registration);
        infos.extend(page.into_iter().filter(is_new));
        if is_last {
            return Ok(infos);
        }
    }
}

/// Returns the paths to push. Excludes derivations and, unless `with_substituted`, the paths that
/// were not built on this machine.
pub fn wanted(infos: &[PathInfo], with_substituted: bool) -> Vec<HashPart> {
    let is_wanted =
        |info: &&PathInfo| !info.path.is_derivation() && (info.ultimate || with_substituted);
    let wanted = infos.iter().filter(is_wanted);
    wanted.map(|info| info.path.hash_part()).collect()
}

#[cfg(test)]
mod tests {
    use samovar_nix::{NarHash, StorePath};

    use super::*;

    #[test]
    fn downloaded_paths_and_derivations_are_left_out() {
        let info = |name: &str, ultimate| PathInfo {
            path: StorePath::from_base_name(&format!("{:032}-{name}", name.len())).unwrap(),
            nar_hash: NarHash::from_bytes([0; 32]),
            nar_size: 96,
            references: Vec::new(),
            deriver: None,
            signatures: Vec::new(),
            content_address: None,
            registration_time: 0,
            ultimate,
            registration: None,
        };
        let infos = [
            info("built", true),
            info("copied", false),
            info("a.drv", true),
        ];
        let [built, copied, _] = infos.each_ref().map(|info| info.path.hash_part());
        assert_eq!(wanted(&infos[..2], false), [built]);
        assert_eq!(wanted(&infos, true), [built, copied]);
    }
}
