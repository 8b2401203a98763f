//! Repositories such as `.git` in a workspace: what a merge has to know about them, and commands
//! that are changing them.
//!
//! # The file `repositories`
//!
//! The file has a line for each index of git in the base: the SHA-256 and the fingerprint of the
//! index. If an index in the work tree has the same fingerprint, git has only refreshed it. Without
//! the file, a refreshed index counts as a change.

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use samovar_client::workspace::Workspace;
use samovar_client::workspace::place::Place;
use samovar_text::shown_path;
use samovar_workspace::merge::doubtful;
use samovar_workspace::repository::{Contents, READ_LEN_MAX, indexes, is_git_root, lock, wanted};
use samovar_workspace::scan::Options;
use samovar_workspace::{Entries, Entry, Manifest, Root, Scanned, Walk};
use sha2::{Digest as _, Sha256};

use super::fetch::{Staged, file};
use super::held;
use super::local::read_with;
use crate::outcome::Failed;
use crate::snapshot::Snapshots;

/// Name of the file in the state directory.
const FINGERPRINTS: &str = "repositories";

/// Maximum wait for a command that changes a repository.
const LOCK_TIME: Duration = Duration::from_secs(10);

/// Reads the files of a workspace like [`read_with`], while no command changes a repository in it.
///
/// # Errors
///
/// Those of [`read_with`], or a command is changing a repository all the time.
pub(super) fn read_settled(
    workspace: &Workspace,
    is_quiet: bool,
    options: Options,
) -> anyhow::Result<Scanned> {
    let started_at = Instant::now();
    loop {
        let scanned = read_with(workspace, is_quiet, options)?;
        let Some(found) = lock(&scanned.entries) else {
            return Ok(scanned);
        };
        let path = scanned.path(found);
        if held::remove_stale(&path) {
            continue;
        }
        while path.symlink_metadata().is_ok() {
            if started_at.elapsed() >= LOCK_TIME {
                return Err(Failed::Refused.because(anyhow!(
                    "{path:?} exists: another command is changing the repository, or was killed. \
                     Run this command again when that command has ended; if none is running, \
                     remove the file first. Nothing was changed"
                )));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Reads what the merge of these trees needs, from the files and from the server.
///
/// # Errors
///
/// The cache is unavailable, or a program changes a file meanwhile.
pub(super) fn contents(
    place: &Place,
    snapshots: &Snapshots,
    base: &Entries,
    ours: &Scanned,
    theirs: &Manifest,
) -> anyhow::Result<Contents> {
    let mut contents = Contents::default();
    let wanted = wanted(base, &ours.entries, &theirs.entries);
    if wanted.ours.is_empty() && wanted.theirs.is_empty() {
        return Ok(contents);
    }
    for (digest, fingerprint) in fingerprints(place) {
        contents.add_fingerprint(digest, fingerprint);
    }
    let staged = Staged::download(place, snapshots, theirs, &wanted.theirs)?;
    for index in wanted.theirs {
        let (digest, _, _) = file(&theirs.entries, index)?;
        contents.add(digest, staged.read(&digest)?);
    }
    for index in wanted.ours {
        let (digest, _, _) = file(&ours.entries, index)?;
        let path = ours.entries.path(index);
        let bytes = read_file(&place.root, &path, &digest).ok_or_else(|| {
            Failed::Refused.because(anyhow!(
                "{} was changed by another program meanwhile: run the command again",
                shown_path(&path)
            ))
        })?;
        contents.add(digest, bytes);
    }
    let doubtful = doubtful(base, &ours.entries, &theirs.entries, &contents);
    let staged = Staged::download(place, snapshots, theirs, &doubtful)?;
    for index in doubtful {
        let (digest, len, _) = file(&theirs.entries, index)?;
        let added = contents.add_file(digest, len, &mut staged.open(&digest)?);
        added.context("cannot read a file that was received")?;
    }
    Ok(contents)
}

/// Refuses to merge trees that are a git repository themselves, if both sides have changed the
/// repository: there is no place beside the root for a copy.
///
/// # Errors
///
/// Both sides have changed it.
pub(super) fn check_root([base, ours, theirs]: [&Entries; 3]) -> anyhow::Result<()> {
    if !is_git_root(ours) && !is_git_root(theirs) {
        return Ok(());
    }
    let is_same = |a: Option<&Entry>, b: Option<&Entry>| match (a, b) {
        (Some(a), Some(b)) => a.has_same_data(b),
        (a, b) => a.is_none() && b.is_none(),
    };
    let mut changed = [false; 2];
    for [old, our, their] in Walk::new([base, ours, theirs]) {
        let old = old.and_then(|index| base.get(index));
        let our = our.and_then(|index| ours.get(index));
        let their = their.and_then(|index| theirs.get(index));
        let is_different = !is_same(our, their);
        changed[0] |= is_different && !is_same(our, old);
        changed[1] |= is_different && !is_same(their, old);
    }
    ensure!(
        changed != [true; 2],
        Failed::Refused.because(anyhow!(
            "the workspace is a git repository itself, and it was changed here and on the other \
             machine: open the ref in another directory, fetch from there by git, then run \
             samovar workspace push --force here; nothing was changed"
        ))
    );
    Ok(())
}

/// Reads a file with this SHA-256.
fn read_file(root: &Path, path: &[u8], digest: &[u8; 32]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = Root::open(root).and_then(|root| root.file(path)).ok()?;
    file.take(READ_LEN_MAX).read_to_end(&mut bytes).ok()?;
    (<[u8; 32]>::from(Sha256::digest(&bytes)) == *digest).then_some(bytes)
}

/// Stores the fingerprints of the indexes in the base, which are in the tree or in `contents`.
/// Ignores errors: without them, a refreshed index counts as a change.
pub(super) fn remember(place: &Place, base: &Entries, contents: &Contents) {
    let old = fingerprints(place);
    let mut text = String::new();
    for index in indexes(base) {
        let Ok((digest, size, _)) = file(base, index) else {
            continue;
        };
        let known = old.iter().find(|(known, _)| *known == digest);
        let known = known.map(|(_, fingerprint)| *fingerprint);
        let read = || {
            let bytes = read_file(&place.root, &base.path(index), &digest);
            Some(samovar_workspace::GitIndex::parse(&bytes.filter(|_| size > 0)?)?.fingerprint)
        };
        let fingerprint = known
            .or_else(|| contents.fingerprint(&digest))
            .or_else(read);
        if let Some(fingerprint) = fingerprint {
            let line = writeln!(text, "{} {}", hex(&digest), hex(&fingerprint));
            debug_assert!(line.is_ok(), "writing to a string cannot fail");
        }
    }
    let path = place.state.join(FINGERPRINTS);
    if text.is_empty() {
        fs::remove_file(path).unwrap_or_default();
        return;
    }
    let name = format!("{FINGERPRINTS}.{}.tmp", std::process::id());
    let temporary = place.state.join(name);
    let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, path));
    written.unwrap_or_default();
}

/// Copies the fingerprints to the state directory `to`, in which the base is used from now on.
/// Ignores errors, as [`remember`] does.
pub(super) fn copy(state: &Path, to: &Path) {
    fs::copy(state.join(FINGERPRINTS), to.join(FINGERPRINTS)).unwrap_or_default();
}

/// Returns the digests of indexes and their fingerprints.
fn fingerprints(place: &Place) -> Vec<([u8; 32], [u8; 32])> {
    let text = fs::read_to_string(place.state.join(FINGERPRINTS)).unwrap_or_default();
    let lines = text.lines().filter_map(|line| {
        let (digest, fingerprint) = line.split_once(' ')?;
        Some((from_hex(digest)?, from_hex(fingerprint)?))
    });
    lines.collect()
}

fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes().chunks_exact(2);
    let bytes = digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    let bytes: [u8; 32] = bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()?;
    (hex(&bytes) == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_read_as_they_were_written() {
        let digest: [u8; 32] = std::array::from_fn(|index| u8::try_from(index * 7).unwrap());
        assert_eq!(from_hex(&hex(&digest)), Some(digest));
        for bad in [
            "",
            "0",
            &"0".repeat(63),
            &"g0".repeat(32),
            &"\u{e4}".repeat(32),
        ] {
            assert_eq!(from_hex(bad), None);
        }
    }
}
