//! The difference between a mounted overlay and the snapshot below it.
//!
//! The mounted tree is scanned like any directory: the kernel applies whiteouts and opaque
//! directories. The upper directory shows which files are still those of the snapshot, so that only
//! the others are read.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Context as _;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, fgetxattr, openat, statat};
use rustix::io::Errno;
use samovar_workspace::entries::{Builder, MODE_MASK};
use samovar_workspace::{Entries, Entry, Kind, Mtime, Scanned, Walk};

use crate::mount::DIRECTORY_MODE;

/// Attributes of a directory in the upper directory that hides or replaces the one of the snapshot.
const REPLACED: [&str; 4] = [
    "user.overlay.opaque",
    "user.overlay.redirect",
    "trusted.overlay.opaque",
    "trusted.overlay.redirect",
];

/// The entries of the upper directory: for each path, whether it replaces the one of the snapshot,
/// with everything below it.
type Upper = HashMap<Vec<u8>, bool>;

/// Scans the overlay that is mounted on `tree`. Files of the snapshot `base` that are unchanged
/// have their digests; changed and new files have none.
///
/// # Errors
///
/// An entry is unreadable, or a NAR cannot contain it.
pub(crate) fn scan(tree: &Path, upper: &Path, base: &Entries) -> anyhow::Result<Scanned> {
    let scanned = Scanned::scan(tree)?;
    let upper = read_upper(upper).with_context(|| format!("cannot read {upper:?}"))?;
    let entries = compare(&scanned.entries, &upper, base);
    let entries = entries.context("the scanned entries are not a tree")?;
    Ok(Scanned { entries, ..scanned })
}

/// Adds the digests of unchanged files, and restores the permissions of directories that the mount
/// made writable.
fn compare(
    merged: &Entries,
    upper: &Upper,
    base: &Entries,
) -> Result<Entries, samovar_workspace::entries::TreeError> {
    let mut in_base = vec![None; merged.list().len()];
    for [old, new] in Walk::new([base, merged]) {
        if let (Some(old), Some(new)) = (old, new) {
            in_base[new] = base.get(old);
        }
    }
    let mut out: Option<Builder> = None;
    // Index after the last entry below each open directory, and whether the directory, or one above
    // it, replaces that of the snapshot.
    let mut open: Vec<(usize, bool)> = Vec::new();
    let mut path = Vec::new();
    let mut lens = Vec::new();
    for (index, entry) in merged.list().iter().enumerate() {
        while open.last().is_some_and(|(end, _)| *end == index) {
            open.pop();
            path.truncate(lens.pop().unwrap_or_default());
            leave(&mut out)?;
        }
        let len = path.len();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&entry.name);
        let is_replaced = open.last().is_some_and(|(_, is_replaced)| *is_replaced);
        let in_upper = upper.get(&path).copied();
        let old = in_base[index];
        match &entry.kind {
            Kind::Directory { end } => {
                let mode = directory_mode(entry, old);
                match &mut out {
                    None => out = Some(Builder::new(mode, entry.mtime)),
                    Some(out) => out.enter(&entry.name, mode, entry.mtime)?,
                }
                open.push((*end, is_replaced || in_upper == Some(true)));
                lens.push(len);
                continue;
            }
            Kind::File { size, .. } => {
                let is_known = in_upper.is_none() && !is_replaced;
                let digest = old.filter(|_| is_known);
                let digest = digest.and_then(|old| digest_of(old, *size, entry.mtime));
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
        path.truncate(len);
    }
    for _ in open {
        leave(&mut out)?;
    }
    let out = out.unwrap_or_else(|| Builder::new(MODE_MASK, Default::default()));
    out.finish()
}

/// Returns the permissions of a directory without those that the mount has added.
fn directory_mode(entry: &Entry, old: Option<&Entry>) -> u16 {
    match old {
        Some(old)
            if matches!(old.kind, Kind::Directory { .. })
                && entry.mode == old.mode | DIRECTORY_MODE =>
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

/// Reads the names of all entries below the upper directory.
fn read_upper(root: &Path) -> Result<Upper, Errno> {
    let mut found = Upper::new();
    let root = open_directory(CWD, root.as_os_str().as_encoded_bytes())?;
    found.insert(Vec::new(), is_replaced(&root)?);
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
        let is_directory = match entry.file_type() {
            FileType::Unknown => {
                let stat = statat(fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(RawMode::from(stat.st_mode)).is_dir()
            }
            other => other.is_dir(),
        };
        if !is_directory {
            found.insert(path.clone(), true);
            continue;
        }
        let inner = open_directory(fd, name.to_bytes())?;
        found.insert(path.clone(), is_replaced(&inner)?);
        open.push((Dir::new(inner)?, path.len()));
    }
    Ok(found)
}

fn open_directory(at: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

fn is_replaced(directory: &OwnedFd) -> Result<bool, Errno> {
    for name in REPLACED {
        match fgetxattr(directory, name, &mut [0_u8; 0][..]) {
            // The value of `opaque` may also be `x`, for a directory that only may have whiteouts
            // as attributes: then files are read without need.
            Ok(_) => return Ok(true),
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::PathBuf;
    use std::process::Command;

    use samovar_workspace::pack;

    use super::*;
    use crate::workspace::overlay::layers::{Layers, unmount_lazily};
    use crate::workspace::overlay::namespace::Namespace;

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
        pack::hash(&mut scanned, false, 1).unwrap();
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
            // A mount namespace can be that of one thread. A user namespace cannot.
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
                if let Err(error) = crate::workspace::overlay::layers::check_file_system(dir.path())
                {
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
            let scanned = scan(tree, &layers.upper(), base).unwrap();
            // Only files that were touched are read. A renamed directory counts as touched.
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
            assert_eq!(unread, [tree.canonicalize().unwrap().join("keep/same")]);
            let expected = hashed(Scanned::scan(plain.path()).unwrap());
            let found = hashed(scanned);
            assert_eq!(lines(&found)[1..], lines(&expected)[1..]);
        });
    }

    #[test]
    fn a_tree_that_was_only_read_is_unchanged() {
        with_overlay(fill, |layers, tree, base| {
            assert_eq!(fs::read(tree.join("keep/same")).unwrap(), b"same");
            let scanned = scan(tree, &layers.upper(), base).unwrap();
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
            let scanned = scan(tree, &layers.upper(), base).unwrap();
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
            let scanned = scan(tree, &layers.upper(), &base).unwrap();
            let modes: Vec<u16> = scanned.entries.list()[1..]
                .iter()
                .filter(|entry| matches!(entry.kind, Kind::Directory { .. }))
                .map(|entry| entry.mode)
                .collect();
            assert_eq!(modes, [0o555, 0o555, 0o750]);
        });
    }
}
