//! `samovar push --exec`: runs a command, then pushes the paths that were built while it ran.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context as _, ensure};
use samovar_nix::{HashPart, PathInfo};
use samovar_store::Store;

use super::Pusher;
use super::report::Report;
use crate::credential::without_token;

/// Number of registered paths per query.
const LIST_COUNT: usize = 500;

/// Runs a command, then pushes the new paths. Returns the command's exit code, or `None` if the
/// command succeeded, and the report of the push.
///
/// # Errors
///
/// The cache refuses the login, the command cannot be started, or the store or the cache is
/// unavailable.
pub(super) fn run(
    pusher: &mut Pusher,
    words: &[String],
    with_substituted: bool,
) -> anyhow::Result<(Option<ExitCode>, Report)> {
    let (program, arguments) = words.split_first().context("a command is missing")?;
    let before = newest(&*pusher.store)?;
    pusher.check_login()?;
    let status = without_token(Command::new(program).args(arguments))
        .status()
        .with_context(|| format!("cannot run {program:?}"))?;
    let infos = registered_after(&*pusher.store, before)?;
    let roots = wanted(&infos, with_substituted);
    // Ignore absent paths: they were deleted after their registration.
    let paths = pusher.find(&roots)?;
    let report = pusher.push(&paths)?;
    Ok((failure(status), report))
}

/// Returns the exit code of a command that failed, or `None` if it succeeded. The code of a command
/// that a signal killed is 128 plus the signal's number, as in shells.
fn failure(status: ExitStatus) -> Option<ExitCode> {
    let signal = status.signal().map(|signal| 128 + signal);
    let code = status.code().or(signal).unwrap_or(1);
    let code = u8::try_from(code).unwrap_or(1);
    (code != 0).then(|| ExitCode::from(code))
}

/// Returns the highest registration number in the store, or 0 if the store is empty.
///
/// # Errors
///
/// The database cannot be read.
pub(super) fn newest(store: &dyn Store) -> anyhow::Result<i64> {
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
pub(super) fn registered_after(store: &dyn Store, last: i64) -> anyhow::Result<Vec<PathInfo>> {
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
pub(super) fn wanted(infos: &[PathInfo], with_substituted: bool) -> Vec<HashPart> {
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

    #[test]
    fn exit_codes_of_commands() {
        for (raw, expected) in [(0, None), (7 << 8, Some(7)), (9, Some(128 + 9))] {
            let code = failure(ExitStatus::from_raw(raw));
            let expected = expected.map(ExitCode::from);
            assert_eq!(format!("{code:?}"), format!("{expected:?}"));
        }
    }
}
