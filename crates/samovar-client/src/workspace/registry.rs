//! The states of all workspaces of a user, each with the identity of its directory.
//!
//! The state of a workspace is not in the workspace: what is in a tree can come from a clone or an
//! archive, and programs such as `git clean` remove it.
//!
//! `$XDG_STATE_HOME/samovar/.samovar/ID` is the state directory of a workspace. ID is 32 random
//! hexadecimal digits. No snapshot contains a directory with the name `.samovar`. So a home
//! directory can be a workspace, and `close --delete` does not delete the states in it. Besides the
//! files of the [state](super::Workspace), a state directory has the file `directory`, which is
//! written last:
//!
//! ```text
//! samovar-directory 1
//! path <percent-encoded path where the directory was found last>
//! inode <inode number>
//! device <device number>
//! born <seconds.nanoseconds since 1970, or ->
//! boot <ID of the boot of the kernel>
//! machine <ID of the machine>
//! marked <yes or no>
//! mount <source of the overlay that is mounted on it, or ->
//! ```
//!
//! # Identity
//!
//! The extended attribute `user.samovar.workspace` of the directory names the ID, if the file
//! system has such attributes. A copy has the same attribute, but another inode or another time of
//! birth. A new directory that has got the inode of a removed one lacks the attribute, and has
//! another time of birth. The path decides only where the file system has neither.
//!
//! Device numbers of some file systems change with each mount. A directory with another number
//! counts as the same only if it is where it was found last, or if it is no longer there.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, ensure};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use rustix::fs::{Dir, XattrFlags, getxattr, setxattr};

use samovar_workspace::boot_id;
use samovar_workspace::mounts::mounts;

use super::based;
use super::mode::field;
use crate::failed::Failed;
use crate::machine::host;
use crate::sys;
use crate::user_dirs::{self, create_private};

/// Extended attribute with the ID of the workspace.
const MARK: &str = "user.samovar.workspace";

const ID_LEN: usize = 32;

/// Name of the file with the identity of the directory.
const DIRECTORY: &str = "directory";

/// Prefix of the names of state directories that are being removed.
const REMOVED: &str = ".removed-";

const MAGIC: &str = "samovar-directory 1\n";

const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// A state directory, and the directory to which it belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// The state directory.
    pub dir: PathBuf,
    /// Where the workspace was found last.
    pub path: PathBuf,
    inode: u64,
    device: u64,
    /// Time of birth, in seconds and nanoseconds.
    born: Option<(i64, u32)>,
    boot: String,
    machine: String,
    is_marked: bool,
    /// Source of the overlay of the workspace. `None`: it has none.
    pub mount: Option<String>,
}

/// What identifies a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    inode: u64,
    device: u64,
    born: Option<(i64, u32)>,
    mark: Option<String>,
}

impl Identity {
    fn of(directory: &Path) -> io::Result<Self> {
        let origin = sys::origin(directory)?;
        Ok(Self {
            inode: origin.inode,
            device: origin.device,
            born: origin.born,
            mark: mark(directory),
        })
    }

    /// Returns the identity of the directory below a mount point.
    fn below_mount(point: &Path) -> io::Result<Self> {
        let parent = point.parent().unwrap_or(point);
        let directory = File::open(parent)?;
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            if Some(entry.file_name().to_bytes()) == point.file_name().map(OsStrExt::as_bytes) {
                return Ok(Self {
                    inode: entry.ino(),
                    ..Self::of(parent)?
                }
                .without_attributes());
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    fn without_attributes(self) -> Self {
        Self {
            born: None,
            mark: None,
            ..self
        }
    }
}

impl Registered {
    /// Returns the name of the state directory.
    pub fn id(&self) -> &str {
        let name = self.dir.file_name().and_then(|name| name.to_str());
        name.unwrap_or_default()
    }

    /// Returns whether this state belongs to the directory `root`.
    fn is_of(&self, root: &Path, found: &Identity) -> bool {
        let is_same_birth = match (self.born, found.born) {
            (Some(own), Some(found)) => own == found,
            _ => true,
        };
        if self.inode != found.inode || !is_same_birth {
            return false;
        }
        let (is_device, is_path) = (self.device == found.device, self.path == root);
        let is_machine = self.machine == machine();
        if self.is_marked && found.mark.as_deref() == Some(self.id()) {
            return is_device || is_path || !self.is_in_its_place();
        }
        // The file system has no attributes, or a program has removed this one.
        match self.born.is_some() && found.born.is_some() {
            true => is_machine && (is_device || is_path),
            false => {
                let is_same_mount = is_device || self.boot != boot();
                !self.is_marked && is_machine && is_path && is_same_mount
            }
        }
    }

    /// Returns whether the directory is where it was found last.
    fn is_in_its_place(&self) -> bool {
        let Ok(found) = Identity::of(&self.path) else {
            return false;
        };
        let born = (self.born, found.born);
        let is_same_birth = !matches!(born, (Some(own), Some(found)) if own != found);
        self.inode == found.inode && found.mark.as_deref() == Some(self.id()) && is_same_birth
    }

    fn text(&self) -> String {
        let born = self
            .born
            .map(|(seconds, nanoseconds)| format!("{seconds}.{nanoseconds}"));
        format!(
            "{MAGIC}path {}\ninode {}\ndevice {}\nborn {}\nboot {}\nmachine {}\nmarked {}\nmount \
             {}\n",
            encoded(&self.path),
            self.inode,
            self.device,
            born.as_deref().unwrap_or("-"),
            self.boot,
            self.machine,
            if self.is_marked { "yes" } else { "no" },
            self.mount.as_deref().unwrap_or("-")
        )
    }

    fn parse(dir: PathBuf, text: &str) -> anyhow::Result<Self> {
        let rest = text.strip_prefix(MAGIC).context("another format")?;
        let (path, rest) = field(rest, "path ")?;
        let (inode, rest) = field(rest, "inode ")?;
        let (device, rest) = field(rest, "device ")?;
        let (born, rest) = field(rest, "born ")?;
        let (boot, rest) = field(rest, "boot ")?;
        let (machine, rest) = field(rest, "machine ")?;
        let (marked, rest) = field(rest, "marked ")?;
        let (mount, _) = field(rest, "mount ")?;
        let born = match born.split_once('.') {
            Some((seconds, nanoseconds)) => Some((seconds.parse()?, nanoseconds.parse()?)),
            None => None,
        };
        Ok(Self {
            dir,
            path: decoded(path),
            inode: inode.parse()?,
            device: device.parse()?,
            born,
            boot: boot.to_owned(),
            machine: machine.to_owned(),
            is_marked: marked == "yes",
            mount: (mount != "-").then(|| mount.to_owned()),
        })
    }

    /// Reads the file with the identity in a state directory.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is damaged.
    pub fn read(dir: PathBuf) -> anyhow::Result<Self> {
        let text = fs::read_to_string(dir.join(DIRECTORY))?;
        Self::parse(dir, &text)
    }

    /// Atomically replaces the file with the identity.
    fn write(&self) -> io::Result<()> {
        let temporary = self.dir.join(format!("{DIRECTORY}.{}.tmp", process_id()));
        fs::write(&temporary, self.text())?;
        File::open(&temporary)?.sync_all()?;
        fs::rename(&temporary, self.dir.join(DIRECTORY))?;
        File::open(&self.dir)?.sync_all()
    }
}

fn process_id() -> u32 {
    std::process::id()
}

/// Returns all registered workspaces. Removes what commands have left that were killed while they
/// removed a state.
pub fn list() -> Vec<Registered> {
    let entries = user_dirs::workspaces().and_then(|states| fs::read_dir(states).ok());
    let mut all = Vec::new();
    for entry in entries.into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.as_bytes().starts_with(REMOVED.as_bytes()) {
            // If this fails, the next command tries again.
            fs::remove_dir_all(entry.path()).ok();
        } else if is_id(name.as_bytes()) {
            // A directory without identity was left by a command that was killed while it created
            // it.
            all.extend(Registered::read(entry.path()).ok());
        }
    }
    all.sort_by(|one, other| one.path.cmp(&other.path));
    all
}

/// Refuses a state that another user has made: it could name the server of an attacker, who would
/// get the token.
///
/// # Errors
///
/// It is another user's, or cannot be opened.
pub fn check_owner(root: &Path, directory: &Path) -> anyhow::Result<()> {
    let found = directory.metadata();
    let found = found.with_context(|| format!("cannot open {directory:?}"))?;
    ensure!(
        found.uid() == rustix::process::geteuid().as_raw(),
        Failed::Refused.because(anyhow!(
            "the state of {root:?}, in {directory:?}, belongs to another user: a workspace can be \
             used only by its owner"
        ))
    );
    Ok(())
}

/// Checks that the states can be read.
///
/// # Errors
///
/// A program has removed the permissions.
pub fn check() -> anyhow::Result<()> {
    let Some(states) = user_dirs::workspaces() else {
        return Ok(());
    };
    let failed = |path: &Path, error: io::Error| {
        let error = anyhow!(error).context(format!("cannot read {path:?}"));
        Err(Failed::Unavailable.because(error))
    };
    let entries = match fs::read_dir(&states) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return failed(&states, error),
        Ok(entries) => entries,
    };
    for entry in entries
        .flatten()
        .filter(|one| is_id(one.file_name().as_bytes()))
    {
        let file = entry.path().join(DIRECTORY);
        match fs::read(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return failed(&file, error),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the state of the workspace at `root`; `None` if `root` is no workspace.
pub fn find(root: &Path) -> Option<Registered> {
    find_in(&list(), root)
}

/// Returns the state of the workspace in the directory `root`, among `all`.
pub fn find_in(all: &[Registered], root: &Path) -> Option<Registered> {
    let sources = all.iter().any(|one| one.mount.is_some());
    if sources && let Some(source) = mounted_on(root) {
        let is_mounted = |one: &&Registered| one.mount.as_deref() == Some(&source);
        if let Some(found) = all.iter().find(is_mounted) {
            return Some(found.clone());
        }
    }
    let identity = Identity::of(root).ok()?;
    let mut all = all.iter();
    all.find(|one| one.is_of(root, &identity)).cloned()
}

/// Returns the state of a workspace in overlay mode whose directory was removed.
pub fn find_removed(root: &Path) -> Option<Registered> {
    let all = list();
    if find_in(&all, root).is_some() {
        return None;
    }
    let mut all = all.into_iter();
    all.find(|one| one.path == root && one.mount.is_some())
}

/// Returns the state of a workspace whose directory was removed while its file system was mounted,
/// if the state has a file with the name `file`.
pub fn find_deleted(root: &Path, file: &str) -> Option<Registered> {
    let is_absent =
        fs::symlink_metadata(root).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let above = Identity::of(root.parent()?).ok()?;
    let is_its = |one: &Registered| {
        one.path == root && one.device == above.device && one.dir.join(file).exists()
    };
    list().into_iter().find(|one| is_absent && is_its(one))
}

/// Returns the source of what is mounted on a directory.
pub fn mounted_on(root: &Path) -> Option<String> {
    let mounts = mounts().ok()?;
    let last = mounts.iter().rfind(|mount| mount.point == root)?;
    last.source.to_str().map(str::to_owned)
}

/// Returns the state directory of the directory `root`. Creates one that has only the identity of
/// `root`, unless there is one. `mount`: source of the overlay of the workspace.
///
/// # Errors
///
/// The user has no home directory, or the directory cannot be created.
pub fn create(root: &Path, mount: Option<&str>) -> anyhow::Result<Registered> {
    let states = user_dirs::workspaces();
    let states = states.context(
        "HOME is not set, so there is no directory for the state of \
                                 workspaces: set HOME",
    )?;
    let context = || {
        format!("cannot create a directory in {states:?}, for the state of the workspace {root:?}")
    };
    let created = || {
        create_private(&states)?;
        // Two commands that open the same directory get the same state.
        let lock = File::create(states.join("lock"))?;
        lock.lock()?;
        if let Some(mut found) = find(root) {
            // If the command that created the state was killed, the state may name the source of
            // another overlay.
            if found.mount.as_deref() != mount {
                found.mount = mount.map(str::to_owned);
                found.write()?;
            }
            return Ok(found);
        }
        let identity = identity_of_own(root, mount)?;
        // Another machine may have marked the directory, with a state that is not here.
        let known = identity.mark.clone().filter(|id| !states.join(id).exists());
        let id = known.unwrap_or_else(random_id);
        let dir = states.join(&id);
        create_private(&dir)?;
        let mut new = Registered {
            dir,
            path: root.to_owned(),
            inode: identity.inode,
            device: identity.device,
            born: identity.born,
            boot: boot(),
            machine: machine(),
            is_marked: false,
            mount: mount.map(str::to_owned),
        };
        new.is_marked = set_mark(&new, root);
        new.write()?;
        File::open(&states)?.sync_all()?;
        Ok(new)
    };
    let created: io::Result<Registered> = created();
    created.map_err(|error| Failed::Unavailable.because(anyhow!(error).context(context())))
}

/// Returns the identity of a directory of a workspace, also if its overlay hides it.
fn identity_of_own(root: &Path, mount: Option<&str>) -> io::Result<Identity> {
    match mount.is_some() && mounted_on(root).as_deref() == mount {
        true => Identity::below_mount(root),
        false => Identity::of(root),
    }
}

/// Marks the directory of a workspace, unless its overlay hides it. Returns whether it is marked.
fn set_mark(one: &Registered, root: &Path) -> bool {
    let is_hidden = one.mount.is_some() && mounted_on(root) == one.mount;
    !is_hidden && setxattr(root, MARK, one.id().as_bytes(), XattrFlags::empty()).is_ok()
}

/// Stores where a workspace is now, and what identifies it now.
///
/// # Errors
///
/// The directory does not exist, or the file cannot be written.
pub fn update(one: &Registered, root: &Path, mount: Option<&str>) -> io::Result<()> {
    let mut new = Registered {
        path: root.to_owned(),
        mount: mount.map(str::to_owned),
        ..one.clone()
    };
    let is_hidden = mount.is_some() && mounted_on(root).as_deref() == mount;
    if !is_hidden {
        new.is_marked = set_mark(&new, root);
    }
    // What is hidden by a mount is known less exactly than before.
    if !is_hidden || one.path != root {
        let identity = identity_of_own(root, mount)?;
        (new.inode, new.device, new.born) = (identity.inode, identity.device, identity.born);
        new.is_marked &= !is_hidden;
        (new.boot, new.machine) = (boot(), machine());
    }
    match new == *one {
        true => Ok(()),
        false => new.write(),
    }
}

/// Removes the state directory of a workspace, and the mark of its directory `root`.
///
/// # Errors
///
/// The directory cannot be removed.
pub fn remove(dir: &Path, root: &Path) -> io::Result<()> {
    let id = dir.file_name().and_then(|name| name.to_str());
    if id.is_some() && mark(root).as_deref() == id {
        // Without a state directory, the mark means nothing.
        rustix::fs::removexattr(root, MARK).ok();
        based::unmark(root);
    }
    let removed = dir.with_file_name(format!("{REMOVED}{}", id.unwrap_or_default()));
    fs::rename(dir, &removed)?;
    // The next command removes what is left. On a network file system, something is left while a
    // file in the directory is open.
    fs::remove_dir_all(&removed).ok();
    Ok(())
}

/// Returns the workspace ID in the extended attribute [`MARK`] of a directory.
fn mark(directory: &Path) -> Option<String> {
    let mut value = [0; ID_LEN + 1];
    let len = getxattr(directory, MARK, &mut value).ok()?;
    let value = value.get(..len).filter(|value| is_id(value))?;
    String::from_utf8(value.to_vec()).ok()
}

fn is_id(name: &[u8]) -> bool {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.len() == ID_LEN && name.iter().all(is_digit)
}

fn random_id() -> String {
    let digits = std::iter::repeat_with(|| fastrand::u64(..));
    let id: String = digits
        .take(2)
        .map(|number| format!("{number:016x}"))
        .collect();
    id
}

fn boot() -> String {
    String::from_utf8_lossy(&boot_id())
        .trim_end_matches('\0')
        .to_owned()
}

/// Returns what identifies this machine among those that share the home directory.
fn machine() -> String {
    let id = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    match id.trim() {
        "" => encoded(Path::new(&host())),
        id => encoded(Path::new(id)),
    }
}

/// Encodes a path for one line of text.
pub fn encoded(path: &Path) -> String {
    percent_encode(path.as_os_str().as_bytes(), ENCODED).to_string()
}

/// Decodes a path that [`encoded`] returned.
pub fn decoded(text: &str) -> PathBuf {
    let bytes: Vec<u8> = percent_decode_str(text).collect();
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests;
