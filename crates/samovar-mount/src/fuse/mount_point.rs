//! [`MountPoint`]: a directory on which a snapshot is mounted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::available_parallelism;

use anyhow::{Context as _, anyhow, ensure};
use fuser::{Config, MountOption, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use samovar_client::credential::without_token;
use samovar_client::failed::Failed;
use samovar_workspace::mounts::mounts;

use super::file_system::FileSystem;

/// Start of the names of our mounts in the list of mounted file systems.
const PREFIX: &str = "samovar:";

/// Names of the program that mounts for users other than root.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// Read-ahead of the kernel, in KiB.
const READ_AHEAD: &str = "1024";

/// An existing directory.
#[derive(Debug)]
pub struct MountPoint {
    /// Absolute, without links.
    path: PathBuf,
}

/// What is mounted on a directory.
#[derive(Debug, PartialEq, Eq)]
pub enum Mounted {
    /// Nothing, and the directory is empty.
    Nothing,
    /// The same snapshot.
    Same,
}

impl MountPoint {
    /// Opens a directory, and creates it if it does not exist. Unmounts a snapshot whose process
    /// has ended.
    ///
    /// # Errors
    ///
    /// The directory cannot be used.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let failed = || format!("cannot mount on {path:?}");
        match fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists && !is_stale(path) => {
                return Err(error).with_context(failed);
            }
            _ => {}
        }
        // Only the parent can be resolved if the process of a mounted snapshot has ended.
        let name = path.file_name();
        let path = match (path.parent(), name) {
            (Some(parent), Some(name)) if !is_link(path) => {
                let parent = match parent.as_os_str().is_empty() {
                    true => Path::new("."),
                    false => parent,
                };
                fs::canonicalize(parent).with_context(failed)?.join(name)
            }
            _ => fs::canonicalize(path).with_context(failed)?,
        };
        let point = Self { path };
        // A stale mount may lie on others.
        while is_stale(&point.path) {
            point.unmount().with_context(failed)?;
        }
        let metadata = fs::metadata(&point.path).with_context(failed)?;
        ensure!(
            metadata.is_dir(),
            "cannot mount on {:?}: it is not a directory",
            point.path
        );
        Ok(point)
    }

    /// Returns the path of the directory, absolute and without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns what is mounted on the directory. `name`: the name of the snapshot to be mounted.
    ///
    /// # Errors
    ///
    /// Another snapshot is mounted, or the directory is not empty.
    pub fn mounted(&self, name: &str) -> anyhow::Result<Mounted> {
        let path = &self.path;
        let mounts = mounts().unwrap_or_default();
        let last = mounts.iter().rfind(|mount| mount.point == *path);
        let source = last.map(|mount| mount.source.to_string_lossy());
        let other = source.as_deref().and_then(|it| it.strip_prefix(PREFIX));
        if let Some(other) = other {
            if other == name {
                return Ok(Mounted::Same);
            }
            let error =
                anyhow!("{other} is mounted on {path:?}: unmount it with fusermount3 -u {path:?}");
            return Err(Failed::Refused.because(error));
        }
        let mut entries = fs::read_dir(path).with_context(|| format!("cannot list {path:?}"))?;
        if entries.next().is_some() {
            let error = anyhow!("{path:?} is not empty, and a mount would hide its files");
            return Err(Failed::Refused.because(error));
        }
        Ok(Mounted::Nothing)
    }

    /// Mounts a snapshot, and answers the kernel on other threads. `name`: identifies the snapshot.
    /// `is_shared`: other users may read it.
    ///
    /// # Errors
    ///
    /// The system refuses it. The message names the remedy.
    pub(super) fn mount(
        &self,
        file_system: FileSystem,
        name: &str,
        is_shared: bool,
    ) -> anyhow::Result<()> {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(escaped(&format!("{PREFIX}{name}"))),
            MountOption::Subtype("samovar".to_owned()),
            MountOption::RO,
            MountOption::NoSuid,
            MountOption::NoDev,
            MountOption::NoAtime,
            MountOption::DefaultPermissions,
        ];
        if is_shared {
            config.acl = SessionACL::All;
        }
        let threads = available_parallelism().map_or(2, std::num::NonZero::get);
        config.n_threads = Some(threads.clamp(2, 4));
        config.clone_fd = true;
        let session = Session::new(file_system, &self.path, &config).and_then(Session::spawn);
        let session = session.map_err(|error| self.explained(&error))?;
        // Dropping the session would unmount whatever is mounted on the directory by then.
        std::mem::forget(session);
        self.set_read_ahead();
        Ok(())
    }

    /// Raises the read-ahead to [`READ_AHEAD`], which only root may do. The kernel's default is an
    /// eighth of it.
    ///
    /// The device is found in the list of mounts. If this process asked the mounted directory for
    /// the device, the process would wait for its own answer, and the kernel could not end the
    /// process if it was killed meanwhile.
    fn set_read_ahead(&self) {
        let mounts = mounts().unwrap_or_default();
        let own = mounts.iter().rfind(|mount| mount.point == self.path);
        if let Some(own) = own {
            let file = format!("/sys/class/bdi/{}/read_ahead_kb", own.device);
            fs::write(file, READ_AHEAD).ok();
        }
    }

    /// Unmounts at once. Programs that have files open may go on reading what the kernel has.
    /// Does nothing if another process has unmounted it already.
    ///
    /// # Errors
    ///
    /// The system refuses it.
    pub fn unmount(&self) -> io::Result<()> {
        match rustix::mount::unmount(&self.path, UnmountFlags::DETACH) {
            Err(Errno::PERM) => {}
            // Nothing is mounted. A stale mount that this process may not remove fails likewise.
            Err(Errno::INVAL) if !is_stale(&self.path) => return Ok(()),
            unmounted => return Ok(unmounted?),
        }
        for helper in HELPERS {
            let mut command = Command::new(helper);
            without_token(&mut command);
            command.args(["-u", "-z", "--"]).arg(&self.path);
            let output = command.stdin(Stdio::null()).output();
            match output {
                Ok(output) if output.status.success() => return Ok(()),
                Ok(output) => {
                    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                    return Err(io::Error::other(text));
                }
                Err(_) => {}
            }
        }
        Err(io::Error::other(
            "unmounting needs root, or the program fusermount3",
        ))
    }

    /// Explains why mounting has failed.
    fn explained(&self, error: &io::Error) -> anyhow::Error {
        const PULL: &str = "or copy the files with samovar pull instead of mounting them";
        let path = &self.path;
        let device = Path::new("/dev/fuse");
        let opened = fs::OpenOptions::new().read(true).write(true).open(device);
        let is_root = rustix::process::geteuid().is_root();
        let reason = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => format!(
                "/dev/fuse does not exist: load the kernel module with modprobe fuse (in a \
                 container: add --device /dev/fuse), {PULL}"
            ),
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {
                format!("the kernel has no FUSE: load the module with modprobe fuse, {PULL}")
            }
            Err(_) => format!(
                "/dev/fuse may not be opened: run this as root, or let root set its mode to 0666, \
                 as udev does (in a container: add --device /dev/fuse), {PULL}"
            ),
            Ok(_) if error.kind() == io::ErrorKind::NotFound => format!(
                "mounting needs root, or the program fusermount3 of the package fuse3; without \
                 both, run this under unshare --user --map-root-user --mount, {PULL}"
            ),
            Ok(_) if is_root => format!(
                "the system refuses the mount ({error}): in a container, add --cap-add SYS_ADMIN, \
                 {PULL}"
            ),
            Ok(_) => format!("{}, {PULL}", error.to_string().trim()),
        };
        Failed::Unavailable.because(anyhow!("cannot mount on {path:?}: {reason}"))
    }
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink())
}

/// Returns whether a file system is mounted whose process has ended. The kernel still knows the
/// attributes of its directory then, but not those of the file system.
fn is_stale(path: &Path) -> bool {
    rustix::fs::statfs(path).is_err_and(|error| error == Errno::NOTCONN)
}

/// Escapes the characters that separate mount options.
fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace(',', "\\,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_of_mount_options_are_escaped() {
        assert_eq!(escaped("a,b\\c"), "a\\,b\\\\c");
    }

    #[test]
    fn unmounting_what_is_not_mounted_does_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let unmounted = rustix::mount::unmount(dir.path(), UnmountFlags::DETACH);
        if unmounted != Err(Errno::PERM) {
            MountPoint::open(dir.path()).unwrap().unmount().unwrap();
        }
    }

    #[test]
    fn a_directory_with_files_is_not_hidden() {
        let dir = tempfile::tempdir().unwrap();
        let point = MountPoint::open(&dir.path().join("new")).unwrap();
        assert_eq!(point.mounted("x").unwrap(), Mounted::Nothing);
        fs::write(dir.path().join("new/file"), "").unwrap();
        let error = point.mounted("x").unwrap_err().to_string();
        assert!(error.contains("not empty"), "{error}");
        let error = MountPoint::open(&dir.path().join("new/file")).unwrap_err();
        assert!(error.to_string().contains("not a directory"), "{error}");
        assert!(MountPoint::open(&dir.path().join("a/b")).is_err());
    }
}
