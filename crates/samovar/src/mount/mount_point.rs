//! [`MountPoint`]: a directory on which a snapshot is mounted.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::available_parallelism;

use anyhow::{Context as _, anyhow, ensure};
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::file_system::FileSystem;
use crate::outcome::Failed;

/// Start of the names of our mounts in the list of mounted file systems.
const PREFIX: &str = "samovar:";

/// Names of the program that mounts for users other than root.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// Read-ahead of the kernel, in KiB.
const READ_AHEAD: &str = "1024";

/// An existing directory.
#[derive(Debug)]
pub(super) struct MountPoint {
    /// Absolute, without links.
    path: PathBuf,
}

/// What is mounted on a directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mounted {
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
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
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

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns what is mounted on the directory. `name`: that of the snapshot to be mounted.
    ///
    /// # Errors
    ///
    /// Another snapshot is mounted, or the directory is not empty.
    pub(super) fn mounted(&self, name: &str) -> anyhow::Result<Mounted> {
        let path = &self.path;
        let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let source = source_of(&mounts, path);
        if let Some(other) = source
            .as_deref()
            .and_then(|source| source.strip_prefix(PREFIX))
        {
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
    ) -> anyhow::Result<BackgroundSession> {
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
        self.set_read_ahead();
        Ok(session)
    }

    /// Raises the read-ahead, which only root may do. The kernel's default is an eighth.
    fn set_read_ahead(&self) {
        if let Ok(metadata) = fs::metadata(&self.path) {
            let device = metadata.dev();
            let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
            let file = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
            fs::write(file, READ_AHEAD).ok();
        }
    }

    /// Unmounts at once. Programs that have files open may go on reading what the kernel has.
    ///
    /// # Errors
    ///
    /// The system refuses it.
    pub(super) fn unmount(&self) -> io::Result<()> {
        match rustix::mount::unmount(&self.path, UnmountFlags::DETACH) {
            Err(Errno::PERM) => {}
            unmounted => return Ok(unmounted?),
        }
        for helper in HELPERS {
            let mut command = Command::new(helper);
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
                "the system refuses it ({error}): in a container, add --cap-add SYS_ADMIN, {PULL}"
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

/// Returns the source of the file system that is mounted on a path. `mounts`: the text of
/// `/proc/self/mountinfo`.
fn source_of(mounts: &[u8], path: &Path) -> Option<String> {
    let mut found = None;
    for line in mounts.split(|byte| *byte == b'\n') {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let point = words.get(4).map(|word| decoded(word));
        if point.is_some_and(|point| point == path.as_os_str().as_bytes()) {
            let end = words.iter().position(|word| *word == b"-");
            let source = end.and_then(|end| words.get(end + 2));
            found = source.map(|source| String::from_utf8_lossy(&decoded(source)).into_owned());
        }
    }
    found
}

/// Decodes a word of `mountinfo`, in which white space is `\` and three octal digits.
fn decoded(word: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        let digits = after.get(..3).filter(|_| *byte == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(decoded) => {
                out.push(decoded);
                rest = after.get(3..).unwrap_or_default();
            }
            None => out.push(*byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"22 1 0:20 / / rw - ext4 /dev/sda rw\n\
          40 22 0:40 / /a\\040b rw,nosuid shared:1 master:2 - fuse samovar:x-app ro,user_id=0\n\
          41 22 0:41 / /c rw - tmpfs none rw\n\
          42 22 0:42 / /c rw - fuse.samovar samovar:y rw\n";

    #[test]
    fn the_last_mount_on_a_directory_counts() {
        let source = |path: &str| source_of(MOUNTS, Path::new(path));
        assert_eq!(source("/a b").as_deref(), Some("samovar:x-app"));
        assert_eq!(source("/c").as_deref(), Some("samovar:y"));
        assert_eq!(source("/d"), None);
    }

    #[test]
    fn words_of_the_list_of_mounts_are_decoded() {
        assert_eq!(decoded(b"a\\040b\\134\\012"), b"a b\\\n");
        assert_eq!(decoded(b"\\04"), b"\\04");
        assert_eq!(decoded(b"\\999"), b"\\999");
    }

    #[test]
    fn separators_of_mount_options_are_escaped() {
        assert_eq!(escaped("a,b\\c"), "a\\,b\\\\c");
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
