//! The difference between a mounted overlay and the snapshot below it.
//!
//! The mounted tree is scanned like any directory: the kernel applies whiteouts and opaque
//! directories. The upper directory shows which files differ from the snapshot; only these are
//! read.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, Stat, fgetxattr, openat, statat,
};
use rustix::io::Errno;
use samovar_workspace::entries::{Builder, MODE_MASK};
use samovar_workspace::scan::Options;
use samovar_workspace::{Entries, Entry, Kind, Mtime, STATE_DIRECTORY, Scanned};

/// Attribute of a directory in the upper directory that hides the snapshot's directory, if its
/// value is `y`.
const OPAQUE: [&str; 2] = ["user.overlay.opaque", "trusted.overlay.opaque"];

/// Attribute of a directory in the upper directory that shows another one of the snapshot. Its
/// value is an absolute path in the snapshot, or a name in the directory below the parent.
const REDIRECT: [&str; 2] = ["user.overlay.redirect", "trusted.overlay.redirect"];

/// Maximum length of a redirect, in bytes: the kernel's limit for paths.
const REDIRECT_LEN_MAX: usize = 4096;

/// The entries of the upper directory by path. Two readings are equal if no program has changed an
/// entry in between.
pub type Upper = HashMap<Vec<u8>, UpperEntry>;

/// An entry of the upper directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpperEntry {
    below: Below,
    /// Time of the last change of contents or metadata.
    ctime: Mtime,
}

/// The entry of the snapshot that an entry of the upper directory shows besides its own.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Below {
    /// None: it is not a directory, or it replaces the directory of the snapshot.
    Nothing,
    /// The directory with the same name.
    Same,
    /// Another directory: a program has renamed it.
    Renamed(Vec<u8>),
}

/// Scans the overlay that is mounted on `tree`. Files of the snapshot `base` that are unchanged
/// have their digests; changed and new files have none. `added_mode`: permissions that the mount of
/// the snapshot has added to directories.
///
/// # Errors
///
/// An entry is unreadable, or a NAR cannot contain it.
pub fn scan(
    tree: &Path,
    upper: &Path,
    base: &Entries,
    added_mode: u16,
    options: Options,
) -> anyhow::Result<Scanned> {
    let scanned = Scanned::scan_with(tree, options)?;
    let upper = read_upper(upper).with_context(|| format!("cannot read {upper:?}"))?;
    let entries = compare(&scanned.entries, &upper, base, added_mode);
    let entries = entries.context("the scanned entries are not a tree")?;
    Ok(Scanned { entries, ..scanned })
}

/// Adds the digests of unchanged files, and restores the permissions of directories that the mount
/// made writable.
fn compare(
    merged: &Entries,
    upper: &Upper,
    base: &Entries,
    added_mode: u16,
) -> Result<Entries, samovar_workspace::entries::TreeError> {
    let below = below(merged, upper, base);
    let mut out: Option<Builder> = None;
    // Index after the last entry below each open directory.
    let mut open: Vec<usize> = Vec::new();
    for (index, entry) in merged.list().iter().enumerate() {
        while open.last() == Some(&index) {
            open.pop();
            leave(&mut out)?;
        }
        let old = below[index].and_then(|old| base.get(old));
        match &entry.kind {
            Kind::Directory { end } => {
                let mode = directory_mode(entry, old, added_mode);
                match &mut out {
                    None => out = Some(Builder::new(mode, entry.mtime)),
                    Some(out) => out.enter(&entry.name, mode, entry.mtime)?,
                }
                open.push(*end);
            }
            Kind::File { size, .. } => {
                let digest = old.and_then(|old| digest_of(old, *size, entry.mtime));
                if let Some(out) = &mut out {
                    out.file(&entry.name, entry.mode, entry.mtime, *size, digest)?;
                }
            }
            Kind::Symlink { target } => {
                if let Some(out) = &mut out {
                    out.symlink(&entry.name, entry.mtime, target)?;
                }
            }
        }
    }
    for _ in open {
        leave(&mut out)?;
    }
    let out = out.unwrap_or_else(|| Builder::new(MODE_MASK, Default::default()));
    out.finish()
}

/// Returns the index of the entry of the snapshot that each entry shows, if it shows one.
fn below(merged: &Entries, upper: &Upper, base: &Entries) -> Vec<Option<usize>> {
    let mut found = vec![None; merged.list().len()];
    found[0] = Some(0);
    let mut pending = vec![0];
    while let Some(directory) = pending.pop() {
        let olds = found[directory].map(|old| base.children(old).collect());
        let olds: Vec<usize> = olds.unwrap_or_default();
        let named = |name: &[u8]| {
            let at = olds.binary_search_by(|old| base.list()[*old].name[..].cmp(name));
            at.ok().map(|at| olds[at])
        };
        let mut path = merged.path(directory);
        if !path.is_empty() {
            path.push(b'/');
        }
        let len = path.len();
        for child in merged.children(directory) {
            let entry = &merged.list()[child];
            path.truncate(len);
            path.extend_from_slice(&entry.name);
            found[child] = match upper.get(&path).map(|entry| &entry.below) {
                None | Some(Below::Same) => named(&entry.name),
                Some(Below::Nothing) => None,
                Some(Below::Renamed(from)) => match from.strip_prefix(b"/") {
                    Some(path) => base.find(path),
                    None => named(from),
                },
            };
            if matches!(entry.kind, Kind::Directory { .. }) {
                pending.push(child);
            }
        }
    }
    found
}

/// Returns the permissions of a directory without those that the mount has added.
fn directory_mode(entry: &Entry, old: Option<&Entry>, added_mode: u16) -> u16 {
    match old {
        Some(old)
            if matches!(old.kind, Kind::Directory { .. })
                && entry.mode == old.mode | added_mode =>
        {
            old.mode
        }
        _ => entry.mode,
    }
}

/// Returns the digest of a file that is below the upper directory, from its entry in the snapshot.
fn digest_of(old: &Entry, size: u64, mtime: Mtime) -> Option<[u8; 32]> {
    match old.kind {
        Kind::File {
            size: old_size,
            digest,
            ..
        } if old_size == size && old.mtime == mtime => digest,
        _ => None,
    }
}

fn leave(out: &mut Option<Builder>) -> Result<(), samovar_workspace::entries::TreeError> {
    match out {
        Some(out) => out.leave().map(drop),
        None => Ok(()),
    }
}

/// Reads all entries below the upper directory.
///
/// # Errors
///
/// A directory cannot be read.
pub fn read_upper(root: &Path) -> Result<Upper, Errno> {
    let mut found = Upper::new();
    let root = open_directory(CWD, root.as_os_str().as_encoded_bytes())?;
    let state = statat(&root, c".", AtFlags::empty())?;
    found.insert(Vec::new(), UpperEntry::of(&state, Below::Same));
    // The open directories, each with the length of its path.
    let mut path = Vec::new();
    let mut open = vec![(Dir::new(root)?, 0)];
    while let Some((directory, len)) = open.last_mut() {
        path.truncate(*len);
        let Some(entry) = directory.read() else {
            open.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        let fd = directory.fd()?;
        let stat = statat(fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if !FileType::from_raw_mode(RawMode::from(stat.st_mode)).is_dir() {
            found.insert(path.clone(), UpperEntry::of(&stat, Below::Nothing));
            continue;
        }
        let inner = open_directory(fd, name.to_bytes())?;
        found.insert(
            path.clone(),
            UpperEntry::of(&stat, below_directory(&inner)?),
        );
        open.push((Dir::new(inner)?, path.len()));
    }
    Ok(found)
}

/// Returns the paths of entries of the upper directory that no snapshot has.
pub fn reserved(upper: &Upper) -> Vec<PathBuf> {
    let end = [b"/", STATE_DIRECTORY.as_bytes()].concat();
    let is_reserved = |path: &&Vec<u8>| [b"/", &path[..]].concat().ends_with(&end);
    let paths = upper.keys().filter(is_reserved);
    let mut paths: Vec<_> = paths
        .map(|path| PathBuf::from(OsStr::from_bytes(path)))
        .collect();
    paths.sort();
    paths
}

/// Returns the full paths of what [`reserved`] finds; the upper directory itself if it cannot be
/// read.
pub fn reserved_in(upper: &Path) -> Vec<PathBuf> {
    let found = read_upper(upper).map(|found| reserved(&found));
    let found = found.unwrap_or_else(|_errno| vec![PathBuf::new()]);
    found.iter().map(|path| upper.join(path)).collect()
}

impl UpperEntry {
    fn of(stat: &Stat, below: Below) -> Self {
        Self {
            below,
            ctime: Mtime {
                seconds: stat.st_ctime,
                nanoseconds: u32::try_from(stat.st_ctime_nsec).unwrap_or_default(),
            },
        }
    }
}

fn open_directory(at: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

/// Returns what a directory of the upper directory shows besides its own entries.
fn below_directory(directory: &OwnedFd) -> Result<Below, Errno> {
    let mut value = [0; REDIRECT_LEN_MAX];
    for name in REDIRECT {
        if let Some(from) = attribute(directory, name, &mut value)? {
            return Ok(Below::Renamed(from.to_vec()));
        }
    }
    for name in OPAQUE {
        if attribute(directory, name, &mut value)? == Some(b"y") {
            return Ok(Below::Nothing);
        }
    }
    Ok(Below::Same)
}

fn attribute<'a>(
    directory: &OwnedFd,
    name: &str,
    value: &'a mut [u8],
) -> Result<Option<&'a [u8]>, Errno> {
    match fgetxattr(directory, name, &mut *value) {
        Ok(len) => Ok(value.get(..len)),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::PathBuf;
    use std::process::Command;

    use samovar_client::workspace::layers::check_file_system;
    use samovar_workspace::pack;

    use super::*;
    use crate::overlay::DIRECTORY_MODE;
    use crate::overlay::layers::{Layers, unmount_lazily};
    use crate::process::namespace::Namespace;

    /// Creates the tree that the programs of [`work`] change.
    fn fill(root: &Path) {
        for (path, text) in [
            ("package.json", "{}"),
            ("keep/same", "same"),
            ("keep/edited", "old"),
            ("keep/mode", "mode"),
            ("gone/a", "a"),
            ("again/old", "old"),
            ("moved/deep/file", "moved"),
            ("moved/other", "other"),
            ("file-to-directory", "x"),
            ("directory-to-file/x", "x"),
            ("linked", "linked"),
        ] {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), text).unwrap();
        }
        symlink("keep/same", root.join("link")).unwrap();
        fs::create_dir(root.join("bin")).unwrap();
    }

    /// Does what package managers do, by the programs that people use.
    fn work(root: &Path) {
        let script = r#"
            set -e
            printf new >package.json.tmp && mv package.json.tmp package.json
            printf edited >keep/edited
            chmod 755 keep/mode
            rm -r gone
            rm -r again && mkdir again && printf new >again/new
            mv moved renamed && printf more >renamed/deep/more
            mkdir moved && printf other >moved/other
            rm file-to-directory && mkdir file-to-directory && printf y >file-to-directory/y
            rm -r directory-to-file && printf z >directory-to-file
            ln linked linked-too && printf both >linked-too
            ln -sfn package.json link
            mkdir -p new/a/b && printf c >new/a/b/c
            rmdir bin
        "#;
        let status = Command::new("sh")
            .args(["-c", script])
            .current_dir(root)
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
    }

    fn hashed(mut scanned: Scanned) -> Entries {
        pack::hash(&mut scanned, false, 1, &|_| {}).unwrap();
        scanned.entries
    }

    /// Returns the entries as text, without times.
    fn lines(entries: &Entries) -> Vec<String> {
        let describe = |(index, entry): (usize, &Entry)| {
            let path = String::from_utf8(entries.path(index)).unwrap();
            let mode = entry.mode;
            match &entry.kind {
                Kind::Directory { .. } => format!("{path} {mode:o}"),
                Kind::File { size, digest, .. } => format!("{path} {mode:o} {size} {digest:?}"),
                Kind::Symlink { target } => format!("{path} {target:?}"),
            }
        };
        entries.list().iter().enumerate().map(describe).collect()
    }

    /// Runs `test` with an overlay in a mount namespace of its own, if this process may mount.
    fn with_overlay(fill: fn(&Path), test: impl FnOnce(&Layers, &Path, &Entries) + Send) {
        std::thread::scope(|threads| {
            // A single thread can have its own mount namespace, but not its own user namespace.
            let tested = threads.spawn(|| {
                if !rustix::process::geteuid().is_root() {
                    eprintln!("skipped: needs root");
                    return;
                }
                let namespace = match Namespace::enter() {
                    Ok(namespace) => namespace,
                    Err(error) => return eprintln!("skipped: {error:#}"),
                };
                let dir = tempfile::tempdir().unwrap();
                if let Err(error) = check_file_system(dir.path()) {
                    return eprintln!("skipped: {error:#}");
                }
                let mode = 0o755;
                let layers = Layers::create(dir.path(), "a", "", mode, Default::default()).unwrap();
                fill(&layers.lower());
                let base = hashed(Scanned::scan(&layers.lower()).unwrap());
                let tree = dir.path().join("tree,:\\");
                fs::create_dir(&tree).unwrap();
                match layers.mount(namespace, &tree) {
                    Ok(()) => test(&layers, &tree, &base),
                    Err(error) => eprintln!("skipped: {error:#}"),
                }
                unmount_lazily(&tree);
                layers.remove().unwrap();
            });
            tested.join().unwrap();
        });
    }

    #[test]
    fn an_overlay_gives_the_same_entries_as_a_directory() {
        with_overlay(fill, |layers, tree, base| {
            let plain = tempfile::tempdir().unwrap();
            fill(plain.path());
            work(plain.path());
            work(tree);
            let scanned = scan(
                tree,
                &layers.upper(),
                base,
                DIRECTORY_MODE,
                Options::default(),
            )
            .unwrap();
            // Only files that were written are read, also below a renamed directory.
            let unread: Vec<PathBuf> = scanned
                .entries
                .list()
                .iter()
                .enumerate()
                .filter(|(_, entry)| {
                    matches!(
                        entry.kind,
                        Kind::File {
                            digest: Some(_),
                            ..
                        }
                    )
                })
                .map(|(index, _)| scanned.path(index))
                .collect();
            let root = tree.canonicalize().unwrap();
            let same = ["keep/same", "renamed/deep/file", "renamed/other"];
            assert_eq!(unread, same.map(|path| root.join(path)));
            let expected = hashed(Scanned::scan(plain.path()).unwrap());
            let found = hashed(scanned);
            assert_eq!(lines(&found)[1..], lines(&expected)[1..]);
        });
    }

    #[test]
    fn a_tree_that_was_only_read_is_unchanged() {
        with_overlay(fill, |layers, tree, base| {
            assert_eq!(fs::read(tree.join("keep/same")).unwrap(), b"same");
            let scanned = scan(
                tree,
                &layers.upper(),
                base,
                DIRECTORY_MODE,
                Options::default(),
            )
            .unwrap();
            assert_eq!(scanned.files_without_digest().count(), 0);
            // The root has the attributes of the upper directory.
            assert_eq!(lines(&scanned.entries)[1..], lines(base)[1..]);
        });
    }

    #[test]
    fn a_file_of_the_same_size_and_time_is_read_if_it_was_written() {
        with_overlay(fill, |layers, tree, base| {
            let file = tree.join("keep/same");
            let time = fs::metadata(&file).unwrap().modified().unwrap();
            fs::write(&file, "SAME").unwrap();
            let file = fs::File::options().write(true).open(&file).unwrap();
            file.set_modified(time).unwrap();
            let scanned = scan(
                tree,
                &layers.upper(),
                base,
                DIRECTORY_MODE,
                Options::default(),
            )
            .unwrap();
            assert_eq!(scanned.files_without_digest().count(), 1);
            assert_ne!(lines(&hashed(scanned)), lines(base));
        });
    }

    #[test]
    fn directories_that_the_mount_made_writable_keep_their_permissions() {
        let writable = |root: &Path| {
            for (name, mode) in [("a", 0o755), ("b", 0o755), ("c", 0o755)] {
                fs::create_dir(root.join(name)).unwrap();
                fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
            }
        };
        with_overlay(writable, |layers, tree, _| {
            let time = Default::default();
            let mut base = Builder::new(0o755, time);
            for name in [b"a", b"b", b"c"] {
                base.enter(name, 0o555, time).unwrap();
                base.leave().unwrap();
            }
            base.leave().unwrap();
            let base = base.finish().unwrap();
            fs::write(tree.join("b/new"), "").unwrap();
            fs::set_permissions(tree.join("c"), Permissions::from_mode(0o750)).unwrap();
            let scanned = scan(
                tree,
                &layers.upper(),
                &base,
                DIRECTORY_MODE,
                Options::default(),
            )
            .unwrap();
            let modes: Vec<u16> = scanned.entries.list()[1..]
                .iter()
                .filter(|entry| matches!(entry.kind, Kind::Directory { .. }))
                .map(|entry| entry.mode)
                .collect();
            assert_eq!(modes, [0o555, 0o555, 0o750]);
        });
    }
}
