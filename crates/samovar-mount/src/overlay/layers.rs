//! [`Layers`]: the directories of an overlay on the local disk.

use std::ffi::{CString, OsStr};
use std::fs::{self, File, Permissions, TryLockError};
use std::io::{ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, ensure};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use samovar_client::failed::Failed;
use samovar_client::user_dirs::create_private;
use samovar_client::workspace::layers::{UPPER, check_file_system, mount_source, upper};
use samovar_workspace::Mtime;
use samovar_workspace::mounts::mounts;

use crate::process::namespace::Namespace;
use crate::refusal::{Step, refusal};

/// Name of the directory, and of the mount, of the snapshot.
pub const LOWER: &str = "lower";
/// Name of the directory that overlayfs needs beside the changes.
const WORK: &str = "work";
/// Name of a mount point that shows whether the overlay is in use.
const PROBE: &str = "probe";
/// Name of the file that describes the snapshot below the changes.
const ORIGIN: &str = "origin";
/// Prefix of the names of directories that are being removed.
const REMOVED: &str = ".removed-";
/// Name of a file that exists while the snapshot is served without the server.
const OFFLINE: &str = "offline";

/// The directories of an overlay: the changes, and the mount point of the snapshot below them.
#[derive(Debug)]
pub struct Layers {
    dir: PathBuf,
    /// Locked while the overlay is in use.
    lock: File,
}

impl Layers {
    /// Creates the directories of a new overlay in a directory below `parent`, whose name begins
    /// with `name`. `origin`: describes the snapshot. `mode`, `mtime`: of the root.
    ///
    /// # Errors
    ///
    /// The directories cannot be created.
    pub fn create(
        parent: &Path,
        name: &str,
        origin: &str,
        mode: u16,
        mtime: Mtime,
    ) -> anyhow::Result<Self> {
        create_private(parent).with_context(|| format!("cannot create {parent:?}"))?;
        // Lock the parent, because the new directory looks like one that a killed process has left
        // until it is complete.
        let parents = File::open(parent).and_then(|parents| parents.lock().map(|()| parents));
        let _parents = parents.with_context(|| format!("cannot lock {parent:?}"))?;
        remove_leftovers(parent);
        let created = tempfile::Builder::new()
            .prefix(&format!("{name}-"))
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent);
        let dir = created.with_context(|| format!("cannot create a directory in {parent:?}"))?;
        let failed = || format!("cannot prepare {:?}", dir.path());
        for name in [LOWER, UPPER, WORK] {
            create_private(&dir.path().join(name)).with_context(failed)?;
        }
        // The root of an overlay has the attributes of its upper directory.
        let upper = dir.path().join(UPPER);
        let permissions = Permissions::from_mode(mode.into());
        fs::set_permissions(&upper, permissions).with_context(failed)?;
        let time = Timespec {
            tv_sec: mtime.seconds,
            tv_nsec: mtime.nanoseconds.into(),
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        rustix::fs::utimensat(CWD, &upper, &times, AtFlags::empty()).with_context(failed)?;
        fs::write(dir.path().join(ORIGIN), origin).with_context(failed)?;
        let lock = lock(dir.path())?;
        Ok(Self {
            dir: dir.keep(),
            lock,
        })
    }

    /// Opens the directories of an earlier overlay. Returns also the description of its snapshot.
    ///
    /// # Errors
    ///
    /// There is no overlay, it belongs to another user, or it is in use.
    pub fn open(dir: &Path) -> anyhow::Result<(Self, String)> {
        let opened = dir.canonicalize().and_then(|dir| {
            let origin = fs::read_to_string(dir.join(ORIGIN))?;
            Ok((dir, origin))
        });
        let (dir, origin) = opened
            .with_context(|| format!("{dir:?} has no changes of samovar ws run"))
            .map_err(|error| Failed::Usage.because(error))?;
        // The overlay of another user could name the server of an attacker, who would get the
        // token.
        ensure!(
            dir.metadata()?.uid() == rustix::process::geteuid().as_raw(),
            Failed::Refused.because(anyhow!(
                "the changes in {dir:?} belong to another user, and only this user can use them"
            ))
        );
        check_file_system(&dir)?;
        let lock = lock(&dir)?;
        Ok((Self { dir, lock }, origin))
    }

    /// Atomically replaces the description of the snapshot.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn set_origin(&mut self, origin: &str) -> anyhow::Result<()> {
        let file = self.dir.join(ORIGIN);
        let new = self.dir.join(format!("{ORIGIN}.new"));
        let replaced = || {
            let mut lock = File::create(&new)?;
            lock.write_all(origin.as_bytes())?;
            lock.sync_all()?;
            // Take the lock before others can open the overlay.
            lock.try_lock()?;
            fs::rename(&new, &file)?;
            Ok::<_, std::io::Error>(lock)
        };
        self.lock = replaced().with_context(|| format!("cannot write {file:?}"))?;
        Ok(())
    }

    /// Stores whether the snapshot is served without the server.
    pub fn set_offline(&self, is_offline: bool) {
        let file = self.dir.join(OFFLINE);
        // Ignore errors: the file only matters for the next command.
        match is_offline {
            true => fs::write(file, "").ok(),
            false => fs::remove_file(file).ok(),
        };
    }

    /// Returns whether the snapshot is served without the server.
    pub fn is_offline(&self) -> bool {
        self.dir.join(OFFLINE).exists()
    }

    /// Returns the directory with all layers, an absolute path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the mount point of the snapshot.
    pub fn lower(&self) -> PathBuf {
        self.dir.join(LOWER)
    }

    /// Returns the directory with the changes.
    pub fn upper(&self) -> PathBuf {
        upper(&self.dir)
    }

    /// Returns the source of the mount, which identifies the overlay in the list of mounts.
    pub fn source(&self) -> String {
        mount_source(&self.dir)
    }

    /// Returns whether the overlay is mounted.
    ///
    /// # Errors
    ///
    /// `/proc` is not mounted.
    pub fn is_mounted(&self) -> anyhow::Result<bool> {
        let mounts = mounts().context("cannot read the list of mounts")?;
        let source = self.source();
        Ok(mounts.iter().any(|mount| mount.source == *source))
    }

    /// Mounts the overlay on the directory `target`, an absolute path. Changes the current
    /// directory of the process.
    ///
    /// # Errors
    ///
    /// The kernel refuses the overlay; the error names the reason and the remedy.
    pub fn mount(&self, namespace: Namespace, target: &Path) -> anyhow::Result<()> {
        // Relative paths need no escapes, which differ among versions of Linux.
        std::env::set_current_dir(&self.dir)
            .with_context(|| format!("cannot enter {:?}", self.dir))?;
        // Without redirect_dir, renaming a directory of the snapshot fails with EXDEV, and programs
        // copy the directory. Users other than root may not use this option.
        let attributes = match namespace.is_unprivileged {
            true => "userxattr",
            false => "redirect_dir=on,index=off",
        };
        let options =
            format!("lowerdir={LOWER},upperdir={UPPER},workdir={WORK},metacopy=off,{attributes}");
        let options = CString::new(options)?;
        match mount(
            self.source(),
            target,
            "overlay",
            MountFlags::NODEV | MountFlags::NOSUID,
            Some(options.as_c_str()),
        ) {
            Ok(()) => Ok(()),
            Err(errno @ (Errno::NOENT | Errno::NOTDIR)) => {
                let error = anyhow!("cannot mount on {target:?}: {errno}");
                Err(Failed::Usage.because(error))
            }
            Err(errno) => Err(refusal(Step::Overlay, errno)),
        }
    }

    /// Returns whether the overlay is still mounted in another mount namespace, as far as the
    /// kernel says so. In the namespace of this process, the overlay must be unmounted. Changes the
    /// current directory of the process.
    pub fn is_in_use(&self) -> bool {
        let probe = self.dir.join(PROBE);
        if std::env::set_current_dir(&self.dir).is_err() || create_private(&probe).is_err() {
            return false;
        }
        // With an index, the kernel refuses a second mount of the same changes.
        let options = format!("lowerdir={LOWER},upperdir={UPPER},workdir={WORK},index=on");
        let mounted = CString::new(options).map(|options| {
            let flags = MountFlags::NODEV | MountFlags::NOSUID;
            mount("none", PROBE, "overlay", flags, Some(options.as_c_str()))
        });
        if matches!(mounted, Ok(Ok(()))) {
            unmount_lazily(&probe);
        }
        // The probe is also removed with the layers.
        fs::remove_dir(&probe).ok();
        matches!(mounted, Ok(Err(Errno::BUSY)))
    }

    /// Removes the directories with all changes. The overlay must not be mounted.
    ///
    /// # Errors
    ///
    /// A directory cannot be removed.
    pub fn remove(self) -> anyhow::Result<()> {
        let name = self.dir.file_name().unwrap_or_default().as_bytes();
        let name = [REMOVED.as_bytes(), name].concat();
        let removed = Self {
            dir: self.dir.with_file_name(OsStr::from_bytes(&name)),
            lock: self.lock,
        };
        // Rename first: if the process is killed meanwhile, the rest must not count as the changes.
        fs::rename(&self.dir, &removed.dir)
            .with_context(|| format!("cannot rename {:?}", self.dir))?;
        removed.settle();
        fs::remove_dir_all(&removed.dir).with_context(|| format!("cannot remove {:?}", removed.dir))
    }

    /// Removes the directories of the overlay in `dir` with all changes, also if a process was
    /// killed meanwhile.
    ///
    /// # Errors
    ///
    /// As [`remove`](Self::remove), or the directory of all overlays does not exist.
    pub fn remove_rest(dir: &Path) -> anyhow::Result<()> {
        let parent = dir.parent().unwrap_or(dir);
        let parents = File::open(parent).and_then(|parents| parents.lock().map(|()| parents));
        let _parents = parents.with_context(|| format!("cannot lock {parent:?}"))?;
        remove_leftovers(parent);
        match dir.exists() {
            true => Self::open(dir)?.0.remove(),
            false => Ok(()),
        }
    }

    /// Lets the user remove the directories: overlayfs leaves one without permissions.
    pub fn settle(&self) {
        settle(&self.dir);
    }
}

fn settle(dir: &Path) {
    let inner = dir.join(WORK).join("work");
    // Ignore errors: the directory does not exist if the overlay was never mounted.
    fs::set_permissions(inner, Permissions::from_mode(0o700)).ok();
}

/// Removes what killed processes have left in the directory of all overlays, which is locked:
/// directories that are not complete yet, or not any more. Ignores errors: the next command tries
/// again.
fn remove_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_removed = entry.file_name().as_bytes().starts_with(REMOVED.as_bytes());
        let dir = entry.path();
        let lock = match File::open(dir.join(ORIGIN)) {
            Ok(_) if !is_removed => continue,
            Ok(lock) => Some(lock),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(_) => continue,
        };
        if lock.as_ref().is_none_or(|lock| lock.try_lock().is_ok()) {
            settle(&dir);
            fs::remove_dir_all(&dir).ok();
        }
    }
}

/// Removes a mount at once, even if programs still use it. Ignores directories without a mount.
pub fn unmount_lazily(target: &Path) {
    unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).ok();
}

fn lock(dir: &Path) -> anyhow::Result<File> {
    let lock = File::open(dir.join(ORIGIN)).with_context(|| format!("cannot open {dir:?}"))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            let error = anyhow!("another command uses {dir:?}: wait until it has ended");
            Err(Failed::Refused.because(error))
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {dir:?}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_have_the_attributes_of_the_root_and_one_user_at_a_time() {
        let parent = tempfile::tempdir().unwrap();
        let mtime = Mtime {
            seconds: -5,
            nanoseconds: 250,
        };
        let layers = Layers::create(parent.path(), "a", "text", 0o750, mtime).unwrap();
        let upper = fs::metadata(layers.upper()).unwrap();
        assert_eq!(upper.mode() & 0o777, 0o750);
        assert_eq!((upper.mtime(), upper.mtime_nsec()), (-5, 250));
        let error = Layers::open(layers.dir()).unwrap_err();
        assert!(
            error.to_string().contains("another command uses"),
            "{error}"
        );
        let dir = layers.dir().to_owned();
        drop(layers);
        let (layers, origin) = Layers::open(&dir).unwrap();
        assert_eq!(origin, "text");
        let mut layers = layers;
        layers.set_origin("other").unwrap();
        let error = Layers::open(layers.dir()).unwrap_err();
        assert!(
            error.to_string().contains("another command uses"),
            "{error}"
        );
        drop(layers);
        let (layers, origin) = Layers::open(&dir).unwrap();
        assert_eq!(origin, "other");
        layers.remove().unwrap();
        assert!(!dir.exists());
        let error = Layers::open(&dir).unwrap_err();
        assert!(error.to_string().contains("no changes"), "{error}");
    }

    #[test]
    fn what_killed_processes_have_left_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let create = || Layers::create(parent.path(), "a", "text", 0o750, Mtime::default());
        let kept = create().unwrap();
        let [kept, removing] = [kept, create().unwrap()].map(|layers| layers.dir().to_owned());
        let gone = parent.path().join(format!("{REMOVED}a-1"));
        fs::rename(&removing, &gone).unwrap();
        let held = parent.path().join(format!("{REMOVED}a-2"));
        fs::rename(create().unwrap().dir(), &held).unwrap();
        let lock = File::open(held.join(ORIGIN)).unwrap();
        lock.lock().unwrap();
        let incomplete = parent.path().join("a-3");
        fs::create_dir_all(incomplete.join(UPPER).join("x")).unwrap();
        let new = create().unwrap();
        assert!(!gone.exists() && !incomplete.exists());
        assert!(kept.exists() && held.exists() && new.dir().exists());
        drop(lock);
        create().unwrap();
        assert!(!held.exists() && kept.exists());
    }
}
