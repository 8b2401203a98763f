//! [`Apply`]: changes the files of a workspace.
//!
//! Contents are received and verified before the first change. Right before a file is replaced or
//! removed, its metadata are compared with the scan, and its contents, too, if a program may have
//! changed them without a new time. New files replace nothing. If a program has changed a file
//! since the scan, the command ends. What the command has changed until then is right, and the
//! command can be repeated.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow};
use rustix::fs::{CWD, FileType, RenameFlags};
use rustix::io::Errno;
use samovar_client::workspace::place::Place;
use samovar_text::shown_path;
use samovar_workspace::merge::{Action, ActionKind};
use samovar_workspace::root::Attributes;
use samovar_workspace::unchanged::{Links, is_as_scanned};
use samovar_workspace::{Entry, Kind, Manifest, Mtime, Root, Scanned, modes};

use super::fetch::{Staged, file};
use super::held::Held;
use crate::notice::notice;
use crate::outcome::Failed;
use crate::size::counted;
use crate::snapshot::Snapshots;

/// Changes of the files of a workspace.
#[derive(Debug)]
pub(super) struct Apply<'a> {
    root: Root,
    ours: &'a Scanned,
    theirs: &'a Manifest,
    staged: Staged,
    counts: Counts,
    links: Links,
    held: Held,
    copy: Option<Copying>,
}

/// Name of the directory in [`Place::incoming`] in which a copy of a repository is written.
const COPY: &str = "copy";

/// A directory that is copied. It gets its name only when the copy is complete, because a part of a
/// repository would be taken for a repository.
#[derive(Debug)]
struct Copying {
    /// Path in the tree.
    path: Vec<u8>,
    /// Where it is written.
    directory: PathBuf,
    /// Root of the tree; [`Apply::root`] is the directory meanwhile.
    root: Root,
}

/// Numbers of changes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Number of entries that were created, replaced or removed.
    paths: u64,
    /// Number of other entries that have got another mode.
    modes: u64,
    /// Number of other files that have got another time.
    times: u64,
}

impl fmt::Display for Counts {
    /// Names what was changed, as `2 paths and 1 mode`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.paths, "path"),
            (self.modes, "mode"),
            (self.times, "time"),
        ];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        let counts: Vec<String> = counts.map(|(count, noun)| counted(count, noun)).collect();
        match counts.is_empty() {
            true => f.write_str("0 paths"),
            false => f.write_str(&counts.join(" and ")),
        }
    }
}

/// The result of [`Apply::run`].
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) counts: Counts,
    /// Number of bytes received.
    pub(super) received_len: u64,
}

impl<'a> Apply<'a> {
    /// Makes these changes, and writes them to stable storage.
    ///
    /// # Errors
    ///
    /// The contents cannot be received, a file cannot be written, or a program has changed a file
    /// since the scan.
    pub(super) fn run(
        place: &Place,
        snapshots: &Snapshots,
        ours: &'a Scanned,
        theirs: &'a Manifest,
        actions: &[Action],
    ) -> anyhow::Result<Applied> {
        let actions = visible(ours, actions)?;
        let files = actions.iter().filter_map(|action| match action.kind {
            ActionKind::Create { theirs: index }
            | ActionKind::Conflict { theirs: index, .. }
            | ActionKind::Replace { theirs: index, .. } => {
                let entry = theirs.entries.get(index)?;
                matches!(entry.kind, Kind::File { .. }).then_some(index)
            }
            _ => None,
        });
        let files: Vec<usize> = files.collect();
        let staged = Staged::download(place, snapshots, theirs, &files)?;
        let changes = actions
            .iter()
            .filter(|action| !matches!(action.kind, ActionKind::Metadata { .. }));
        let changes = changes.map(|action| &*action.path);
        let mut apply = Self {
            held: Held::take(&place.root, &ours.entries, changes)?,
            root: Root::open(&place.root)?,
            ours,
            theirs,
            staged,
            counts: Counts::default(),
            links: Links::default(),
            copy: None,
        };
        let remembered = modes::remember(&place.state, &ours.entries, &theirs.entries, &actions);
        remembered.context("cannot write the modes of directories")?;
        for action in &actions {
            let applied = apply.step(place, action);
            applied.with_context(|| format!("cannot update {}", shown_path(&action.path)))?;
        }
        apply.finish_copy()?;
        let synced = apply.root.sync();
        synced.context("cannot write the files to stable storage")?;
        modes::forget(&place.state);
        let received_len = apply.staged.received_len;
        apply.staged.remove();
        Ok(Applied {
            counts: apply.counts,
            received_len,
        })
    }

    /// Makes a change in the tree, or in the directory that is being copied.
    fn step(&mut self, place: &Place, action: &Action) -> anyhow::Result<()> {
        let is_in_copy = |copy: &Copying| {
            let rest = action.path.strip_prefix(&copy.path[..]);
            let is_metadata = matches!(action.kind, ActionKind::Metadata { .. });
            rest.is_some_and(|rest| rest.starts_with(b"/")) && !is_metadata
        };
        if self.copy.as_ref().is_some_and(|copy| !is_in_copy(copy)) {
            self.finish_copy()?;
        }
        match action.kind {
            ActionKind::Conflict { theirs, .. }
                if matches!(self.entry(theirs)?.kind, Kind::Directory { .. }) =>
            {
                self.begin_copy(place, &action.path)
            }
            _ => self.apply(&place.root, action),
        }
    }

    fn begin_copy(&mut self, place: &Place, path: &[u8]) -> anyhow::Result<()> {
        let directory = place.incoming.join(COPY);
        let context = || format!("cannot create {directory:?}");
        // A command that was killed may have left a directory.
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(context);
            }
            _ => {}
        }
        fs::create_dir(&directory).with_context(context)?;
        let root = std::mem::replace(&mut self.root, Root::open(&directory)?);
        self.copy = Some(Copying {
            path: path.to_vec(),
            directory,
            root,
        });
        self.counts.paths += 1;
        Ok(())
    }

    fn finish_copy(&mut self) -> anyhow::Result<()> {
        let Some(copy) = self.copy.take() else {
            return Ok(());
        };
        // Its files must not be empty after a power cut.
        self.root.sync()?;
        self.root = copy.root;
        let flags = RenameFlags::NOREPLACE;
        self.move_in(&copy.directory, &copy.path, flags)
    }

    fn apply(&mut self, root: &Path, action: &Action) -> anyhow::Result<()> {
        let above = self.copy.as_ref().map_or(0, |copy| copy.path.len() + 1);
        let path = action.path.get(above..).unwrap_or_default();
        match action.kind {
            ActionKind::Metadata { mode, .. } if path.is_empty() => set_root_mode(root, mode),
            ActionKind::Metadata { mode, mtime } => {
                self.count_attributes(path, mode, mtime);
                self.set_attributes(path, mode, mtime)?;
            }
            ActionKind::Remove { ours } => self.remove(path, ours)?,
            ActionKind::Create { theirs } | ActionKind::Conflict { theirs, .. } => {
                self.create(path, theirs)?;
                self.counts.paths += 1;
            }
            ActionKind::Replace { ours, theirs, mode } => {
                self.replace(path, ours, theirs, mode)?;
                self.counts.paths += 1;
            }
        }
        Ok(())
    }

    /// Counts new attributes of an entry of ours. Links have none, and times of directories do not
    /// count.
    fn count_attributes(&mut self, path: &[u8], mode: u16, mtime: Mtime) {
        let ours = self.ours.entries.find(path);
        let Some(entry) = ours.and_then(|index| self.ours.entries.get(index)) else {
            return;
        };
        let is_link = matches!(entry.kind, Kind::Symlink { .. });
        if entry.mode != mode && !is_link {
            self.counts.modes += 1;
        } else if entry.mtime != mtime && matches!(entry.kind, Kind::File { .. }) {
            self.counts.times += 1;
        }
    }

    fn set_attributes(&mut self, path: &[u8], mode: u16, mtime: Mtime) -> anyhow::Result<()> {
        let attributes = Attributes {
            mode,
            mtime: Some(mtime),
        };
        // Another link to a file, as in the store of a package manager, keeps its attributes.
        let is_shared = self.root.stat(path).is_ok_and(|found| {
            self.links.change(&found);
            FileType::from_raw_mode(found.st_mode).is_file() && found.st_nlink > 1
        });
        let copy = || {
            let mut content = self.root.file(path)?;
            self.root.write_file(path, &mut content, attributes)?;
            Ok(())
        };
        let set = match is_shared {
            true => self.permitted(path, &copy),
            false => self.root.set_attributes(path, attributes),
        };
        match set {
            // A symbolic link, whose time has no meaning; or an entry that a program has removed.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::InvalidInput | io::ErrorKind::NotFound
                ) =>
            {
                Ok(())
            }
            set => Ok(set?),
        }
    }

    fn remove(&mut self, path: &[u8], ours: usize) -> anyhow::Result<()> {
        let is_directory = self
            .ours
            .entries
            .get(ours)
            .is_some_and(|entry| matches!(entry.kind, Kind::Directory { .. }));
        let removed = if is_directory {
            self.held.release(path);
            let remove = || self.root.remove_directory(path);
            self.permitted(path, &remove)
        } else {
            self.check(path, ours)?;
            let remove = || self.root.remove_file(path);
            self.permitted(path, &remove)
        };
        match removed {
            Ok(()) => self.counts.paths += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // A program has created a file there, or the directory has files that are not in
            // snapshots.
            Err(error) if is_directory && error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn create(&mut self, path: &[u8], theirs: usize) -> anyhow::Result<()> {
        let entry = self.entry(theirs)?;
        let created = match &entry.kind {
            Kind::Directory { .. } => {
                // The mode is set after the entries were created.
                let create = || self.root.create_directory(path, entry.mode | 0o700);
                self.permitted(path, &create)
            }
            Kind::Symlink { target } => {
                let create = || self.root.create_symlink(path, target, Some(entry.mtime));
                self.permitted(path, &create)
            }
            Kind::File { .. } => {
                return self.place(path, theirs, entry.mode, RenameFlags::NOREPLACE);
            }
        };
        match created {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(changed(path)),
            created => Ok(created?),
        }
    }

    fn replace(
        &mut self,
        path: &[u8],
        ours: usize,
        theirs: usize,
        mode: u16,
    ) -> anyhow::Result<()> {
        let entry = self.entry(theirs)?;
        match &entry.kind {
            Kind::Symlink { target } => {
                self.check(path, ours)?;
                let write = || self.root.write_symlink(path, target, Some(entry.mtime));
                Ok(self.permitted(path, &write)?)
            }
            _ => {
                self.check(path, ours)?;
                self.place(path, theirs, mode, RenameFlags::empty())
            }
        }
    }

    /// Moves a received file to its place.
    fn place(
        &mut self,
        path: &[u8],
        theirs: usize,
        mode: u16,
        flags: RenameFlags,
    ) -> anyhow::Result<()> {
        let entry = self.entry(theirs)?;
        let (digest, _, _) = file(&self.theirs.entries, theirs)?;
        let staged = self.staged.take(&digest)?;
        set_file_attributes(&staged, mode, entry.mtime)?;
        self.move_in(&staged, path, flags)
    }

    /// Moves a file or directory to its place.
    fn move_in(&self, from: &Path, path: &[u8], flags: RenameFlags) -> anyhow::Result<()> {
        let (parent, name) = split(path);
        let rename = || {
            let directory = match parent {
                Some(parent) => Some(self.root.directory(parent)?),
                None => None,
            };
            let directory = directory.as_ref().unwrap_or(&self.root);
            let renamed = match flags.is_empty() {
                true => rustix::fs::renameat(CWD, from, directory, name),
                false => rustix::fs::renameat_with(CWD, from, directory, name, flags),
            };
            match renamed {
                // A directory replaces nothing but an empty one.
                Err(Errno::INVAL) if from.is_dir() => {
                    Ok(rustix::fs::renameat(CWD, from, directory, name)?)
                }
                // The file system does not know the flag. A hard link replaces nothing either.
                Err(Errno::INVAL) if !flags.is_empty() => {
                    let at = rustix::fs::AtFlags::empty();
                    Ok(rustix::fs::linkat(CWD, from, directory, name, at)?)
                }
                renamed => Ok(renamed?),
            }
        };
        match self.permitted(path, &rename) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(changed(path)),
            placed => Ok(placed?),
        }
    }

    /// Calls an operation on an entry. If the directory that has the entry does not permit the
    /// operation, the mode of the directory is changed first. The merge sets the mode of such
    /// directories afterwards.
    fn permitted(&self, path: &[u8], operation: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        match (operation(), split(path).0) {
            (Err(error), Some(parent)) if error.kind() == io::ErrorKind::PermissionDenied => {
                let attributes = Attributes {
                    mode: modes::WRITABLE,
                    mtime: None,
                };
                self.root.set_attributes(parent, attributes)?;
                operation()
            }
            (done, _) => done,
        }
    }

    fn entry(&self, theirs: usize) -> anyhow::Result<&'a Entry> {
        let entry = self.theirs.entries.get(theirs);
        entry.context("the manifest has no such entry")
    }

    /// Checks that a file or link is unchanged since the scan.
    fn check(&mut self, path: &[u8], ours: usize) -> anyhow::Result<()> {
        match is_as_scanned(&self.root, self.ours, ours, &mut self.links) {
            true => Ok(()),
            false => Err(changed(path)),
        }
    }
}

/// Returns the changes without removals of entries that the scan could not see, below a mount point
/// for example: these entries stay.
///
/// # Errors
///
/// Another change is below such a path: it would be lost, and then taken for a local one.
fn visible(ours: &Scanned, actions: &[Action]) -> anyhow::Result<Vec<Action>> {
    let mut visible = Vec::with_capacity(actions.len());
    let is_left_out = |path: &[u8]| {
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        ours.skipped.special.iter().any(|special| special == path)
    };
    for action in actions {
        let hidden = ours.skipped.hides(&action.path);
        let is_directory = || {
            let index = ours.entries.find(&action.path);
            let entry = index.and_then(|index| ours.entries.get(index));
            entry.is_some_and(|entry| matches!(entry.kind, Kind::Directory { .. }))
        };
        match (hidden, action.kind) {
            (None, ActionKind::Create { .. } | ActionKind::Conflict { .. })
                if is_left_out(&action.path) =>
            {
                return Err(Failed::Refused.because(anyhow!(
                    "{} is a socket, a FIFO or a device on this machine, and a file or directory \
                     in the generation: move it, then run the command again; nothing was changed",
                    shown_path(&action.path)
                )));
            }
            (None, _) => visible.push(action.clone()),
            (Some(_), ActionKind::Remove { .. }) => {}
            (Some(_), ActionKind::Metadata { .. }) if is_directory() => {}
            (Some(hidden), _) => {
                return Err(Failed::Refused.because(anyhow!(
                    "{} would be changed, but {hidden:?} is a mounted file system or unreadable: \
                     unmount it, or permit reading it, then run the command again; nothing was \
                     changed",
                    shown_path(&action.path)
                )));
            }
        }
    }
    Ok(visible)
}

/// Returns the error of an entry that was changed by a program.
fn changed(path: &[u8]) -> anyhow::Error {
    Failed::Refused.because(anyhow!(
        "{} was changed by another program meanwhile, and stays as it is: run the command again",
        shown_path(path)
    ))
}

/// Sets the mode of the root of a workspace.
pub(super) fn set_root_mode(root: &Path, mode: u16) {
    let set = fs::set_permissions(root, fs::Permissions::from_mode(mode.into()));
    if let Err(error) = set {
        notice(&format!("cannot set the mode of {root:?}: {error}"));
    }
}

fn set_file_attributes(path: &Path, mode: u16, mtime: Mtime) -> anyhow::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    let file = File::options().write(true).open(path)?;
    let time = match u64::try_from(mtime.seconds) {
        Ok(seconds) => UNIX_EPOCH + Duration::from_secs(seconds),
        Err(_) => before_1970(mtime.seconds),
    };
    file.set_modified(time + Duration::from_nanos(mtime.nanoseconds.into()))?;
    file.set_permissions(fs::Permissions::from_mode(mode.into()))?;
    Ok(())
}

fn before_1970(seconds: i64) -> SystemTime {
    UNIX_EPOCH
        .checked_sub(Duration::from_secs(seconds.unsigned_abs()))
        .unwrap_or(UNIX_EPOCH)
}

/// Splits a path into the path of its directory, if this is not the root, and the name.
fn split(path: &[u8]) -> (Option<&[u8]>, &std::ffi::OsStr) {
    let name = |bytes| std::ffi::OsStr::from_bytes(bytes);
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (path.get(..at), name(path.get(at + 1..).unwrap_or_default())),
        None => (None, name(path)),
    }
}
