//! Processes in other mount namespaces that use an overlay, such as processes of containers. The
//! kernel refuses to unmount an overlay only if a process of this namespace uses it.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use samovar_workspace::mounts::mounts_of;

/// A process that uses an overlay.
#[derive(Debug, PartialEq, Eq)]
pub struct User {
    /// Number of the process, in the PID namespace of this one.
    pub pid: u32,
    /// Name of its program.
    pub name: String,
}

/// Returns a process in another mount namespace that uses a mount with this source: it has a file
/// or directory of the mount open or mapped, or its current directory is there. Processes that this
/// one may not examine are left out.
pub fn elsewhere(source: &str) -> Option<User> {
    let own = namespace(Path::new("/proc/self")).ok()?;
    // The numbers of the mounts, by namespace.
    let mut known: HashMap<PathBuf, Vec<u64>> = HashMap::new();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let process = entry.path();
        let Ok(namespace) = namespace(&process) else {
            continue;
        };
        if namespace == own {
            continue;
        }
        let ids = known.entry(namespace).or_insert_with(|| {
            let mounts = mounts_of(&process).unwrap_or_default().into_iter();
            let mounts = mounts.filter(|mount| mount.source == *source);
            mounts.map(|mount| mount.id).collect()
        });
        if !ids.is_empty() && uses(&process, ids) {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            let name = name.trim().to_owned();
            return Some(User { pid, name });
        }
    }
    None
}

fn namespace(process: &Path) -> io::Result<PathBuf> {
    fs::read_link(process.join("ns/mnt"))
}

/// Returns whether a process uses one of these mounts.
fn uses(process: &Path, ids: &[u64]) -> bool {
    let has = |id: Option<u64>| id.is_some_and(|id| ids.contains(&id));
    let entries = |name: &str| {
        let entries = fs::read_dir(process.join(name)).into_iter().flatten();
        entries.flatten().map(|entry| entry.path())
    };
    let directories = ["cwd", "root", "exe"].map(|name| process.join(name));
    entries("fdinfo").any(|file| has(mount_of(&file)))
        || directories.iter().any(|link| has(mount_behind(link)))
        || entries("map_files").any(|link| has(mount_behind(&link)))
}

/// Returns the number of the mount of an open file, from its description in `/proc`.
fn mount_of(description: &Path) -> Option<u64> {
    let text = fs::read_to_string(description).ok()?;
    let mut lines = text.lines();
    let number = lines.find_map(|line| line.strip_prefix("mnt_id:"))?;
    number.trim().parse().ok()
}

/// Returns the number of the mount of the file to which a link of `/proc` leads.
fn mount_behind(link: &Path) -> Option<u64> {
    let file = open(link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let description = format!("/proc/self/fdinfo/{}", file.as_raw_fd());
    mount_of(Path::new(&description))
}
