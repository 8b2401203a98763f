//! [`Workspace`]: a directory, and its state.
//!
//! # Files in the state directory
//!
//! | file | content |
//! | --- | --- |
//! | `directory` | the directory of the workspace, see [`registry`] |
//! | `workspace` | the ref, and the generation on which the files are based, see [`State`] |
//! | `base-HASH` | text of the manifest of that generation; HASH is the hash part of its path |
//! | `index` | digests of the files, with the metadata at the time of hashing |
//! | `lock` | locked by the command that changes the workspace; contains its PID |
//! | `pull-…` | text of the manifest of a generation that a pull has [begun](super::begun) to merge |
//! | `closing` | exists while `close` deletes the files |
//! | `repositories` | fingerprints of the indexes of git in the base |
//!
//! Files that a pull has received, but not yet moved to their places, are in the root of the
//! workspace, which may be on another file system, in the directory of
//! [`Workspace::incoming`].
//!
//! # Crashes
//!
//! Each file is replaced atomically. `base-HASH` is written before the `workspace` file that refers
//! to it. A base file to which nothing refers was left by a push whose response did not arrive:
//! [`Workspace::adopt_base`] uses it if the server has its snapshot as the newest generation.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use rustix::fs::OFlags;
use samovar_nix::{NarHash, StorePath};
use samovar_workspace::{CLOCK, Manifest, file_nar, modes};
use sha2::{Digest as _, Sha256};

use super::based;
use super::begun;
use super::file::{TEMPORARY, replace_file};
use super::layers::mount_source;
use super::mode::{Mode, Overlay};
use super::old;
use super::place::Place;
use super::registry::{self, Registered};
use super::state::{Base, STATE, State};
use crate::credentials::Sources;
use crate::failed::Failed;
use crate::http::{Http, Patience};
use crate::notice::notice;
use crate::refs::{Generation, Version};
use crate::remote::Remote;
use crate::snapshot::{Downloaded, Snapshots};

/// Begin of the names of files with manifests.
pub(super) const BASE: &str = "base-";
/// Name of the file that a command locks while it changes the workspace.
pub(super) const LOCK: &str = "lock";

/// Maximum wait for another command in the same workspace.
const LOCK_TIME: Duration = Duration::from_secs(3);

/// A directory, and its state.
#[derive(Debug)]
pub struct Workspace {
    /// Absolute path.
    pub root: PathBuf,
    /// The state directory.
    registered: Registered,
    /// What was read last from the state directory.
    pub state: State,
}

/// The lock of a workspace. Dropping it releases the lock.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Returns whether a directory is a workspace.
pub fn is_workspace(directory: &Path) -> bool {
    let found = registry::find(directory);
    found.is_some_and(|found| found.dir.join(STATE).exists())
}

impl Workspace {
    /// Finds the workspace that contains a directory.
    ///
    /// # Errors
    ///
    /// There is none, or its state cannot be read.
    pub fn find(directory: &Path) -> anyhow::Result<Self> {
        let start = directory
            .canonicalize()
            .with_context(|| format!("cannot open {directory:?}"))
            .map_err(|error| Failed::Usage.because(error))?;
        for root in start.ancestors() {
            if let Some(found) = Self::at(root)? {
                return Ok(found);
            }
        }
        registry::check()?;
        let foreign = old::unused(&start);
        Err(Failed::Usage.because(anyhow!(
            "{start:?} is not in a workspace{foreign}: change the directory, name one by --dir, or \
             create one by samovar workspace open REF DIR, with --adopt if its files come from REF"
        )))
    }

    /// Returns the workspace with this root, if there is one. Converts the state of an earlier
    /// version.
    ///
    /// # Errors
    ///
    /// The state cannot be read, is damaged, or is that of another user.
    pub fn at(root: &Path) -> anyhow::Result<Option<Self>> {
        let found = registry::find(root).filter(|found| found.dir.join(STATE).exists());
        let found = match found {
            Some(found) => Some(found),
            None => old::convert(root)?,
        };
        found.map(|found| Self::of(root, found)).transpose()
    }

    /// Reads the state of the workspace with this root.
    ///
    /// # Errors
    ///
    /// The directory is no workspace any more, or as [`at`](Self::at).
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        let found = Self::at(root)?;
        found.with_context(|| format!("{root:?} is not a workspace any more"))
    }

    /// Reads a registered state.
    ///
    /// # Errors
    ///
    /// The state cannot be read, is damaged, or is that of another user.
    pub fn of(root: &Path, registered: Registered) -> anyhow::Result<Self> {
        registry::check_owner(root, &registered.dir)?;
        let file = registered.dir.join(STATE);
        let text = fs::read(&file).with_context(|| format!("cannot read {file:?}"))?;
        let state = State::parse(&String::from_utf8_lossy(&text)).with_context(|| {
            format!(
                "{file:?} is damaged: remove it, then run samovar workspace open --adopt REF {}",
                root.display()
            )
        })?;
        Ok(Self {
            root: root.to_owned(),
            registered,
            state,
        })
    }

    /// Creates a state directory for a new workspace. The state is not written yet.
    ///
    /// # Errors
    ///
    /// The directory cannot be created.
    pub fn create(root: PathBuf, state: State) -> anyhow::Result<Self> {
        let mount = state.mode.layers().map(mount_source);
        let registered = registry::create(&root, mount.as_deref())?;
        registry::check_owner(&root, &registered.dir)?;
        Ok(Self {
            root,
            registered,
            state,
        })
    }

    /// Checks that the files are those that the state describes.
    ///
    /// # Errors
    ///
    /// Another machine has changed the state.
    pub fn check_based(&self) -> anyhow::Result<()> {
        let (files, dir) = (self.files(), &self.registered.dir);
        based::check(files, &self.root, dir, self.version())
    }

    /// Marks the files as those that the state describes.
    pub fn mark_based(&self) {
        based::mark(self.files(), self.version(), self.version());
    }

    fn version(&self) -> Option<Version> {
        self.state.base.as_ref().map(|base| base.version)
    }

    /// Returns a directory on the file system of the files: in overlay mode, the directory of the
    /// layers, otherwise the root.
    fn files(&self) -> &Path {
        self.overlay()
            .map_or(&*self.root, |overlay| &overlay.layers)
    }

    /// If the workspace was moved, stores its new place, so that `list` names this place. Other
    /// commands that only read change nothing.
    pub fn register_moved(&mut self) {
        if self.registered.path != self.root {
            self.register();
        }
    }

    /// Stores where the workspace is, if that has changed.
    pub fn register(&mut self) {
        let mount = self.state.mode.layers().map(mount_source);
        // Ignore errors: the next command finds the workspace by its identity, too.
        registry::update(&self.registered, &self.root, mount.as_deref()).ok();
        if let Ok(registered) = Registered::read(self.registered.dir.clone()) {
            self.registered = registered;
        }
    }

    /// Returns the directory for files that a pull has received. The directory is in the root,
    /// because it must be on the same file system. It has the name of a temporary entry, so it is
    /// in no snapshot.
    pub fn incoming(&self) -> PathBuf {
        let digits = self.registered.id().get(..16).unwrap_or_default();
        self.root.join(format!(".samovar-tmp-{digits}"))
    }

    /// Returns the tree for merges.
    pub fn place(&self) -> Place {
        Place {
            root: self.root.clone(),
            incoming: self.incoming(),
            state: self.path(""),
        }
    }

    /// Returns the layers in overlay mode.
    pub fn overlay(&self) -> Option<&Overlay> {
        match &self.state.mode {
            Mode::Directory => None,
            Mode::Overlay(overlay) => Some(overlay),
        }
    }

    /// Returns the directory with the changes, in overlay mode.
    pub fn upper(&self) -> Option<PathBuf> {
        self.overlay().map(Overlay::upper)
    }

    /// Returns whether the overlay is mounted, in overlay mode.
    pub fn is_mounted(&self) -> bool {
        let source = self.state.mode.layers().map(mount_source);
        source.is_some() && registry::mounted_on(&self.root) == source
    }

    /// Returns the path of a file in the state directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.registered.dir.join(name)
    }

    /// Opens the cache of the workspace.
    ///
    /// # Errors
    ///
    /// The credentials cannot be read, or the cache does not answer.
    pub fn snapshots(&self, sources: &Sources) -> anyhow::Result<Snapshots> {
        let remote = Remote::of_cache(&self.state.url)?;
        let snapshots = Snapshots::open(remote, sources, &self.state.keys)?;
        Ok(snapshots.with_remembered_keys())
    }

    /// Returns a client for the cache of the workspace, without a request.
    ///
    /// # Errors
    ///
    /// The credentials cannot be read.
    pub fn http(&self, sources: &Sources, patience: Patience) -> anyhow::Result<Http> {
        let mut remote = Remote::of_cache(&self.state.url)?;
        let authorized = sources.authorize(&mut remote);
        authorized.map_err(|error| Failed::Usage.because(error))?;
        Http::new(remote, patience)
    }

    /// Returns the ref with the generation of the base, for messages.
    pub fn title(&self) -> String {
        format!("{}@{}", self.state.name, self.state.generation())
    }

    /// Takes the lock of the workspace. Waits briefly for another command.
    ///
    /// # Errors
    ///
    /// Another command changes the workspace, or has removed its state, or the files are not those
    /// that the state describes.
    pub fn lock(&mut self) -> anyhow::Result<Lock> {
        let path = self.path(LOCK);
        let context = || format!("cannot lock {path:?}");
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path)
            .with_context(context)?;
        let started_at = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(error).with_context(context),
                Err(TryLockError::WouldBlock) if started_at.elapsed() < LOCK_TIME => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(TryLockError::WouldBlock) => {
                    let mut owner = String::new();
                    file.read_to_string(&mut owner).unwrap_or_default();
                    return Err(Failed::Unavailable.because(anyhow!(
                        "another command changes {:?} (PID {}): wait for its end, then try again",
                        self.root,
                        owner.trim()
                    )));
                }
            }
        }
        // The PID is for messages only.
        file.set_len(0).unwrap_or_default();
        file.rewind().unwrap_or_default();
        writeln!(file, "{}", std::process::id()).unwrap_or_default();
        // The other command may have changed or removed the state.
        ensure!(
            self.path("").exists(),
            Failed::Refused.because(anyhow!("{:?} was closed meanwhile", self.root))
        );
        if self.path(STATE).exists() {
            *self = Self::of(&self.root, self.registered.clone())?;
            self.check_based()?;
            self.register();
            old::finish(&self.root);
        }
        modes::complete(&self.root, &self.path(""));
        Ok(Lock { _file: file })
    }

    /// Replaces the state. Base files to which it does not refer are removed.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn set_state(&mut self, state: State) -> anyhow::Result<()> {
        let version = state.base.as_ref().map(|base| base.version);
        based::mark(self.files(), self.version(), version);
        self.write(STATE, state.text().as_bytes())?;
        if state.base != self.state.base {
            begun::end(&self.registered.dir);
        }
        self.state = state;
        self.remove_files(|name| name.starts_with(BASE) && !self.needs_base(name));
        Ok(())
    }

    /// Writes the base file of a snapshot, to which the state may refer afterwards.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write_base(&self, snapshot: &Downloaded) -> anyhow::Result<()> {
        self.write(&base_file(&snapshot.path), snapshot.text.as_bytes())
    }

    /// Removes the base file of a snapshot that is not the base.
    pub fn remove_base(&self, snapshot: &Downloaded) {
        let file = base_file(&snapshot.path);
        if !self.needs_base(&file) {
            // If this fails, the file is removed with the next change of the state.
            fs::remove_file(self.path(&file)).unwrap_or_default();
        }
    }

    /// Makes a snapshot the base if its base file exists: then this workspace has pushed the
    /// snapshot, but did not get the response. Returns whether the snapshot is the base now.
    ///
    /// # Errors
    ///
    /// The state cannot be written.
    pub fn adopt_base(&mut self, newest: &Generation) -> anyhow::Result<bool> {
        let manifest = &newest.manifest;
        let Ok(text) = fs::read_to_string(self.path(&base_file(manifest))) else {
            return Ok(false);
        };
        let Ok(snapshot) = downloaded(manifest, text) else {
            return Ok(false);
        };
        let state = State {
            base: Some(Base::now(newest.version(), &snapshot)),
            ..self.state.clone()
        };
        self.set_state(state)?;
        Ok(true)
    }

    /// Returns whether the state refers to the base file with this name.
    fn needs_base(&self, name: &str) -> bool {
        let base = self.state.base.as_ref().map(|base| &base.manifest);
        let lower = self.overlay().and_then(|overlay| overlay.lower.as_ref());
        base.into_iter()
            .chain(lower.map(|lower| &lower.manifest))
            .any(|path| base_file(path) == name)
    }

    /// Reads the snapshot on which the workspace is based.
    ///
    /// # Errors
    ///
    /// The file with the manifest is missing or damaged.
    pub fn base(&self) -> anyhow::Result<Option<Downloaded>> {
        let Some(base) = &self.state.base else {
            return Ok(None);
        };
        let snapshot = self.snapshot(&base.manifest)?;
        let is_intact = snapshot.nar_hash == base.nar_hash;
        let error = || Failed::Unavailable.because(anyhow!(self.damaged(&base.manifest)));
        ensure!(is_intact, error());
        Ok(Some(snapshot))
    }

    /// Reads the snapshot with this manifest from its base file.
    ///
    /// # Errors
    ///
    /// The file is missing or damaged.
    pub fn snapshot(&self, manifest: &StorePath) -> anyhow::Result<Downloaded> {
        let text = fs::read_to_string(self.path(&base_file(manifest)));
        let text = text.with_context(|| self.damaged(manifest))?;
        downloaded(manifest, text).with_context(|| self.damaged(manifest))
    }

    fn damaged(&self, manifest: &StorePath) -> String {
        let file = self.path(&base_file(manifest));
        format!("{file:?} is missing or damaged: run samovar workspace repair")
    }

    /// Removes the directory of the workspace, in which only files of this program are left, and
    /// then its state. If the state went first and this failed, no command would know the empty
    /// directory.
    ///
    /// # Errors
    ///
    /// The state cannot be removed.
    pub fn remove(&self) -> anyhow::Result<()> {
        self.remove_own_files();
        // The directory stays if it is a mount point.
        if let Err(error) = fs::remove_dir(&self.root)
            && error.kind() != ErrorKind::NotFound
        {
            let root = &self.root;
            notice(&format!(
                "{root:?} is empty, but cannot be removed: {error}"
            ));
        }
        self.remove_state()
    }

    fn remove_own_files(&self) {
        fs::remove_dir_all(self.incoming()).unwrap_or_default();
        fs::remove_file(self.root.join(CLOCK)).unwrap_or_default();
    }

    /// Removes the state of the workspace.
    ///
    /// # Errors
    ///
    /// It cannot be removed.
    pub fn remove_state(&self) -> anyhow::Result<()> {
        self.remove_own_files();
        let directory = &self.registered.dir;
        let removed = registry::remove(directory, &self.root);
        removed.with_context(|| format!("cannot remove {directory:?}"))
    }

    /// Removes what killed processes have left. Returns the number of files.
    pub fn remove_leftovers(&self) -> usize {
        let incoming = self.incoming();
        let has_incoming = incoming.exists();
        fs::remove_dir_all(incoming).unwrap_or_default();
        let is_left = |name: &str| {
            name.ends_with(TEMPORARY) || name.starts_with(BASE) && !self.needs_base(name)
        };
        self.remove_files(is_left) + usize::from(has_incoming)
    }

    fn remove_files(&self, is_wanted: impl Fn(&str) -> bool) -> usize {
        let entries = fs::read_dir(self.path("")).into_iter().flatten().flatten();
        let removed = entries.filter(|entry| {
            let name = entry.file_name();
            name.to_str().is_some_and(&is_wanted) && fs::remove_file(entry.path()).is_ok()
        });
        removed.count()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        replace_file(&self.registered.dir, name, bytes)
    }
}

fn base_file(manifest: &StorePath) -> String {
    format!("{BASE}{}", manifest.hash_part())
}

/// Parses the text of a manifest.
fn downloaded(path: &StorePath, text: String) -> anyhow::Result<Downloaded> {
    Ok(Downloaded {
        manifest: Manifest::parse(&text)?,
        path: path.clone(),
        nar_hash: NarHash::from_bytes(Sha256::digest(file_nar(text.as_bytes())).into()),
        text,
    })
}
