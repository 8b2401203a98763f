//! States that earlier versions kept in the tree, in `.samovar`, and their conversion.
//!
//! A `.samovar` can also come with a clone or an archive. So a `.samovar` is converted only if its
//! directory is in the list of this user's workspaces: `$XDG_STATE_HOME/samovar/workspaces-HOST`,
//! with one percent-encoded path per line. In addition, its index must describe a file of the
//! directory as it is on this disk, which nobody can forge in advance, or the `.samovar` must be in
//! the layers of an overlay of this user. Otherwise the user has to name the ref again.
//!
//! # Crashes
//!
//! The new state is complete before anything of the old one is removed. From then on, the new state
//! counts.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, ensure};
use rustix::fs::OFlags;
use samovar_workspace::{Index, Mtime, STATE_DIRECTORY};

use super::directory::{BASE, LOCK};
use super::layers::{OVERLAYS, last_directory, mount_source, state_dir, upper};
use super::registry::{self, Registered, decoded, encoded};
use super::state::{STATE, State};
use crate::failed::Failed;
use crate::machine::host;
use crate::notice::notice;
use crate::user_dirs;

/// Returns the path of the list. `None`: the user has no home directory.
fn file() -> Option<PathBuf> {
    let host = host().replace('/', "-");
    Some(
        user_dirs::state()?
            .join("samovar")
            .join(format!("workspaces-{host}")),
    )
}

/// Returns the paths of all workspaces that were not converted yet.
pub fn list() -> Vec<PathBuf> {
    let text = file().and_then(|file| fs::read_to_string(file).ok());
    parse(&text.unwrap_or_default())
}

/// Returns whether a directory has what may be the state of an earlier version.
pub fn has_state(root: &Path) -> bool {
    let found = root.join(STATE_DIRECTORY).join(STATE).symlink_metadata();
    match found {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => true,
        found => found.is_ok(),
    }
}

/// Returns whether a directory is a workspace of an earlier version that can be converted.
pub fn is_workspace(root: &Path) -> bool {
    has_state(root) && list().iter().any(|path| path == root)
}

/// If the directory of a workspace in overlay mode was removed while nothing was mounted, returns
/// the directory with the changes, which also has the state.
pub fn removed(root: &Path) -> Option<PathBuf> {
    let overlays = fs::read_dir(state_dir().ok()?.join(OVERLAYS)).ok()?;
    let mut dirs = overlays.flatten().map(|found| found.path());
    let dir = dirs.find(|dir| last_directory(dir).is_some_and(|directory| directory == root))?;
    let upper = upper(&dir);
    has_state(&upper).then_some(upper)
}

/// Returns a sentence about a state that is not used, in a directory that contains this one.
pub fn unused(directory: &Path) -> String {
    let mut directories = directory.ancestors();
    let unused = directories.find(|one| has_state(one));
    unused.map_or_else(String::new, |unused| {
        format!(
            "; the state in {:?} is not used, because no command of this user has made it there",
            unused.join(STATE_DIRECTORY)
        )
    })
}

/// Moves the state of an earlier version out of the directory `root`, if this user has opened it.
/// Returns the new state.
///
/// # Errors
///
/// Another command uses the state, or it cannot be read, or not be written in its new place.
pub fn convert(root: &Path) -> anyhow::Result<Option<Registered>> {
    if !list().iter().any(|path| path == root) {
        return Ok(None);
    }
    let from = match has_state(root) {
        true => root.join(STATE_DIRECTORY),
        // The directory was removed while nothing was mounted.
        false => match removed(root) {
            // The state is converted only after the directory was created again.
            Some(upper) if root.is_dir() => upper.join(STATE_DIRECTORY),
            _ => return Ok(None),
        },
    };
    convert_from(root, &from).with_context(|| format!("cannot convert the state in {from:?}"))
}

fn convert_from(root: &Path, from: &Path) -> anyhow::Result<Option<Registered>> {
    check_owner(from)?;
    let _lock = lock(from)?;
    let text = fs::read(from.join(STATE)).with_context(|| format!("cannot read {from:?}"))?;
    let state = State::parse(&String::from_utf8_lossy(&text))?;
    ensure!(is_proved(&state, root, from), unproved(&state, root));
    if let Some(layers) = state.mode.layers() {
        // Commands remove these layers later, so the layers must belong to this workspace.
        let own = fs::read(upper(layers).join(STATE_DIRECTORY).join(STATE));
        ensure!(own.is_ok_and(|own| own == text), foreign(from));
    }
    let mount = state.mode.layers().map(mount_source);
    let registered = registry::create(root, mount.as_deref())?;
    if !registered.dir.join(STATE).exists() {
        copy(from, &registered.dir)?;
    }
    remove(from, root);
    forget(root);
    notice(&format!(
        "moved the state of the workspace {root:?} to {:?}",
        registered.dir
    ));
    Ok(Some(registered))
}

/// Returns whether a directory has the state of an earlier version that is not converted, because
/// nothing proves that it was made there. The command line may name the ref again.
pub fn is_unproved(root: &Path) -> bool {
    let from = root.join(STATE_DIRECTORY);
    let state = || {
        let text = fs::read(from.join(STATE)).ok()?;
        State::parse(&String::from_utf8_lossy(&text)).ok()
    };
    is_workspace(root) && !state().is_some_and(|state| is_proved(&state, root, &from))
}

fn is_proved(state: &State, root: &Path, from: &Path) -> bool {
    has_own_layers(state) || is_of_this_disk(root, from)
}

/// Returns the error of a state of which nothing proves that it was made in the directory.
fn unproved(state: &State, root: &Path) -> anyhow::Error {
    let generation = match &state.base {
        Some(base) => format!("@{}", base.version.number),
        None => String::new(),
    };
    Failed::Refused.because(anyhow!(
        "the state does not describe the files in {root:?} as they are on this disk, so it may \
         have come with a copy. If this is your workspace, and its files were changed or restored \
         since, run samovar workspace open --adopt URL#{}{generation} {}. URL is the cache that \
         gets your token: {:?}, if you know that cache. The files stay as they are",
        state.name,
        root.display(),
        state.url
    ))
}

/// Refuses a state that another user has made: it could name the server of an attacker, who would
/// get the token.
fn check_owner(from: &Path) -> anyhow::Result<()> {
    let found = from.symlink_metadata();
    let found = found.and_then(|link| Ok([link, from.metadata()?]));
    let found = found.with_context(|| format!("cannot open {from:?}"))?;
    let user = rustix::process::geteuid().as_raw();
    let is_own = found.iter().all(|found| found.uid() == user);
    ensure!(is_own && found[1].is_dir(), foreign(from));
    Ok(())
}

fn foreign(from: &Path) -> anyhow::Error {
    Failed::Refused.because(anyhow!(
        "{from:?} is not a directory of the user who runs this command: a workspace can be used \
         only by its owner"
    ))
}

/// Takes the lock of the earlier version.
fn lock(from: &Path) -> anyhow::Result<File> {
    let path = from.join(LOCK);
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(&path)
        .with_context(|| format!("cannot lock {path:?}"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(_) => Err(Failed::Unavailable.because(anyhow!(
            "another command of an earlier version uses the workspace: wait for its end, or end it"
        ))),
    }
}

/// Returns whether a state in overlay mode has its layers among those of this user's workspaces,
/// where no archive is unpacked. While the layers are not mounted, the index describes no file, and
/// so proves nothing.
fn has_own_layers(state: &State) -> bool {
    let layers = state.mode.layers().and_then(Path::parent);
    let own = state_dir().map(|own| own.join(OVERLAYS));
    own.is_ok_and(|own| layers == Some(&own))
}

/// Returns whether the index of an old state describes a file of the directory: by its inode, and
/// by the time of its last change, which no program can set.
fn is_of_this_disk(root: &Path, from: &Path) -> bool {
    let Ok(Some(index)) = Index::read(from) else {
        return false;
    };
    let mut files = index.files();
    let is_same = |(path, inode, ctime): (Vec<u8>, u64, Mtime)| {
        let path = root.join(OsStr::from_bytes(&path));
        let found = path.symlink_metadata();
        found.is_ok_and(|found| {
            let time = (ctime.seconds, i64::from(ctime.nanoseconds));
            found.ino() == inode && (found.ctime(), found.ctime_nsec()) == time
        })
    };
    files.any(is_same)
}

/// Copies the state. The file without which a copy is no state is written last.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let mut names = vec![Path::new("index").as_os_str().to_owned()];
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {from:?}"))? {
        let name = entry?.file_name();
        if name.to_str().is_some_and(|name| name.starts_with(BASE)) {
            names.push(name);
        }
    }
    names.push(STATE.into());
    let copied = names.iter().try_for_each(|name| {
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        let file = File::options()
            .read(true)
            .custom_flags(flags)
            .open(from.join(name));
        let mut file = match file {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        let temporary = to.join(format!("converted.{}.tmp", std::process::id()));
        let mut new = File::create(&temporary)?;
        io::copy(&mut file, &mut new)?;
        new.sync_all()?;
        fs::rename(&temporary, to.join(name))
    });
    let synced = copied.and_then(|()| File::open(to)?.sync_all());
    synced.map_err(|error| Failed::Unavailable.because(anyhow!("cannot write {to:?}: {error}")))
}

/// Removes an old state that was copied. It means nothing any more, so errors are ignored.
fn remove(from: &Path, root: &Path) {
    fs::remove_file(from.join(STATE)).ok();
    fs::remove_dir_all(from.join("incoming")).ok();
    for entry in fs::read_dir(from).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_own = name.to_str().is_some_and(|name| {
            matches!(name, "index" | "clock" | "repositories" | LOCK)
                || name.starts_with(BASE)
                || name.ends_with(".tmp")
        });
        if is_own {
            fs::remove_file(entry.path()).ok();
        }
    }
    // Fails if other programs have put files into the directory.
    let target = from.canonicalize().unwrap_or_else(|_| from.to_owned());
    let is_removed = fs::remove_dir(&target).is_ok();
    let link = root.join(STATE_DIRECTORY);
    if is_removed && link.is_symlink() {
        fs::remove_file(link).ok();
    }
}

/// Removes the symbolic link `.samovar` that points to the state of an earlier version. The
/// conversion of the state leaves the link if an overlay is mounted over it.
pub fn remove_link(root: &Path) {
    let link = root.join(STATE_DIRECTORY);
    let target = fs::read_link(&link).unwrap_or_default();
    let layers = target.parent().and_then(Path::parent);
    if layers.is_some_and(|layers| upper(layers).join(STATE_DIRECTORY) == target)
        && !target.exists()
    {
        fs::remove_file(link).ok();
    }
}

/// Removes what a conversion that was killed has left.
pub fn finish(root: &Path) {
    if !list().iter().any(|path| path == root) {
        return;
    }
    let from = root.join(STATE_DIRECTORY);
    if has_state(root) && check_owner(&from).is_ok() {
        remove(&from, root);
    }
    forget(root);
}

/// Removes a workspace from the list.
pub fn forget(root: &Path) {
    let Some(path) = file().filter(|path| path.exists()) else {
        return;
    };
    if let Err(error) = try_change(&path, |paths| paths.retain(|path| path != root)) {
        notice(&format!("{path:?} cannot be written: {error}"));
    }
}

fn try_change(path: &Path, edit: impl FnOnce(&mut Vec<PathBuf>)) -> io::Result<()> {
    let mut file = File::options().read(true).write(true).open(path)?;
    file.lock()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let mut paths = parse(&text);
    edit(&mut paths);
    let lines = paths.iter().map(|path| format!("{}\n", encoded(path)));
    let new: String = lines.collect();
    if new != text {
        file.rewind()?;
        file.write_all(new.as_bytes())?;
        file.set_len(new.len() as u64)?;
    }
    Ok(())
}

fn parse(text: &str) -> Vec<PathBuf> {
    let lines = text.lines().filter(|line| line.starts_with('/'));
    lines.map(decoded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converted_workspaces_are_removed_from_the_list() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("list");
        fs::write(&path, "/a%0A%2541%FF\nx\n/b\n").unwrap();
        let read = || parse(&fs::read_to_string(&path).unwrap());
        assert_eq!(read().len(), 2);
        let odd = read().remove(0);
        try_change(&path, |paths| paths.retain(|path| *path != odd)).unwrap();
        assert_eq!(read(), [PathBuf::from("/b")]);
    }
}
