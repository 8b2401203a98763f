//! [`Wanted`]: what is to be mounted, from its name to the files that are served.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use rustix::process::{Resource, getrlimit, setrlimit};
use samovar_client::credentials::Sources;
use samovar_client::failed::Failed;
use samovar_client::notice::notice;
use samovar_client::progress::Progress;
use samovar_client::refs::PathOrRef;
use samovar_client::remote::Remote;
use samovar_client::snapshot::{Downloaded, Snapshots, check_path};
use samovar_nix::{PublicKey, StoreDir};

use super::cache_dir::{CacheDir, SIZE_DEFAULT};
use super::counts::Counts;
use super::fetch::Fetcher;
use super::file_system::{End, FileSystem, Root};
use super::local::{self, Local};
use super::mount_point::MountPoint;
use super::source::{NEVER, Resolved, read_manifest, replace};
use super::store::Store;
use super::transfer::Origin;
use super::tree::Tree;
use super::whole;

/// What is to be mounted.
#[derive(Debug)]
pub enum Wanted {
    /// A snapshot, or a store path.
    Tree(PathOrRef),
    /// The store of this cache.
    Store(Remote),
}

/// How the cache is read.
#[derive(Debug)]
pub struct Access {
    /// The files with the login or the token for the server.
    pub credentials: Sources,
    /// If there are any, one of them must have signed what is mounted.
    pub keys: Vec<PublicKey>,
    /// Whether only what is on this machine is used, and no request is sent.
    pub is_offline: bool,
}

/// What was found, and the server from which its files come.
pub struct Source<'a>(Kind<'a>);

enum Kind<'a> {
    Tree(Snapshot<'a>),
    Store {
        remote: Remote,
        /// `None` without requests.
        server: Option<Snapshots>,
        cache_dir: &'a CacheDir,
    },
}

/// Files that can be mounted. The threads that fetch them are running.
pub struct Opened {
    root: Root,
    fetcher: Option<Fetcher>,
    file_count: Option<usize>,
}

/// How the files are shown.
#[derive(Debug)]
pub struct MountOptions {
    /// Whether other users of this machine may read the files.
    pub is_shared: bool,
    /// Permissions that all directories have besides their own.
    pub directory_mode: u16,
    /// Told when the files are unmounted.
    pub ended: Sender<End>,
}

/// A mounted file system, which other threads serve.
pub struct Mount {
    counts: Arc<Counts>,
    fetcher: Option<Fetcher>,
}

impl fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.name()).finish()
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").finish_non_exhaustive()
    }
}

impl fmt::Debug for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.counts.to_string();
        f.debug_tuple("Mount").field(&counts).finish()
    }
}

impl Wanted {
    /// Finds what is to be mounted, on the server or on this machine. `cache_dir`: where the files
    /// are kept.
    ///
    /// # Errors
    ///
    /// What is to be mounted does not exist, or the server does not answer.
    pub fn find<'a>(&self, access: &Access, cache_dir: &'a CacheDir) -> anyhow::Result<Source<'a>> {
        let remote = match self {
            Self::Tree(wanted) => {
                let snapshot = Snapshot::find(wanted, access, cache_dir)?;
                return Ok(Source(Kind::Tree(snapshot)));
            }
            Self::Store(remote) => remote.clone(),
        };
        let server = match access.is_offline {
            true => None,
            false => Some(Snapshots::open_any(
                remote.clone(),
                &access.credentials,
                &access.keys,
            )?),
        };
        Ok(Source(Kind::Store {
            remote,
            server,
            cache_dir,
        }))
    }
}

impl Source<'_> {
    /// Returns the name that identifies the mount.
    pub fn name(&self) -> &str {
        match &self.0 {
            Kind::Tree(snapshot) => snapshot.resolved.path.base_name(),
            Kind::Store { remote, .. } => remote.url(),
        }
    }

    /// Returns the name for messages.
    pub fn shown(&self) -> &str {
        match &self.0 {
            Kind::Tree(snapshot) => &snapshot.resolved.shown,
            Kind::Store { remote, .. } => remote.url(),
        }
    }

    /// Starts the threads that fetch files. `patience`: time after which reads fail, from when the
    /// server became unreachable.
    ///
    /// # Errors
    ///
    /// The files are damaged or not trusted, or the server does not send them.
    pub fn open(&self, patience: Duration) -> anyhow::Result<Opened> {
        let failed = || "cannot start threads";
        match &self.0 {
            Kind::Tree(snapshot) => {
                let (local, origin) = snapshot.open()?;
                let fetcher = Fetcher::start(Arc::clone(&local), origin, patience);
                let fetcher = fetcher.with_context(failed)?;
                let file_count = local.view().file_count();
                let tree = Tree::new(local, Some(fetcher.clone()));
                Ok(Opened {
                    root: Root::Tree(Arc::new(tree)),
                    fetcher: Some(fetcher),
                    file_count: Some(file_count),
                })
            }
            Kind::Store {
                server, cache_dir, ..
            } => {
                raise_file_limit();
                let store = Store::start(server.as_ref(), (*cache_dir).clone(), patience);
                Ok(Opened {
                    root: Root::Store(store.with_context(failed)?),
                    fetcher: None,
                    file_count: None,
                })
            }
        }
    }
}

impl Opened {
    /// Returns the number of files; `None` for a store.
    pub fn file_count(&self) -> Option<usize> {
        self.file_count
    }

    /// Mounts the files. They stay mounted until they are unmounted, or this process ends. `name`:
    /// the name of the [`Source`].
    ///
    /// # Errors
    ///
    /// The system refuses it. The message names the remedy.
    pub fn mount(
        self,
        point: &MountPoint,
        name: &str,
        options: MountOptions,
    ) -> anyhow::Result<Mount> {
        let file_system = FileSystem::new(self.root, options.ended, options.directory_mode);
        let counts = file_system.counts();
        point.mount(file_system, name, options.is_shared)?;
        Ok(Mount {
            counts,
            fetcher: self.fetcher,
        })
    }
}

impl Mount {
    /// Ends the threads that fetch files.
    pub fn stop(&self) {
        if let Some(fetcher) = &self.fetcher {
            fetcher.stop();
        }
    }

    /// Returns the numbers of requests so far, of the kernel and to the server, as text.
    pub fn statistics(&self) -> String {
        let requests = self.fetcher.as_ref().map_or(0, Fetcher::request_count);
        format!("{}, {requests} requests to the server", self.counts)
    }
}

/// Raises the limit of open files, because each open store path has some.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).ok();
}

/// A snapshot that is being mounted.
struct Snapshot<'a> {
    resolved: Resolved,
    /// `None` without requests.
    server: Option<Snapshots>,
    cache_dir: &'a CacheDir,
}

impl<'a> Snapshot<'a> {
    fn find(wanted: &PathOrRef, access: &Access, cache_dir: &'a CacheDir) -> anyhow::Result<Self> {
        let (server, resolved) = match access.is_offline {
            true => (None, Resolved::offline(wanted, cache_dir)?),
            false => {
                let (credentials, keys) = (&access.credentials, &access.keys);
                let (server, found) = Resolved::online(wanted, credentials, keys, cache_dir)?;
                (Some(server), found)
            }
        };
        Ok(Self {
            resolved,
            server,
            cache_dir,
        })
    }

    /// Opens the snapshot's files on this machine, and the NAR on the server from which missing
    /// files are read. The NAR is `None` if no files are missing, or without requests.
    fn open(&self) -> anyhow::Result<(Arc<Local>, Option<Origin>)> {
        if !self.resolved.is_snapshot() {
            return Ok((Arc::new(self.open_whole()?), None));
        }
        let name = self.resolved.path.base_name();
        let (dir, lock) = self.cache_dir.snapshot(name, |dir| self.prepare(dir))?;
        let manifest = read_manifest(&dir.join("manifest"))?;
        let (tree, nar_hash) = (manifest.tree.clone(), manifest.nar_hash);
        let local = Arc::new(Local::open(&dir, lock, manifest)?);
        let Some(server) = self.server.as_ref().filter(|_| !local.is_whole()) else {
            return Ok((local, None));
        };
        let info = server.any_narinfo(&tree)?;
        if info.nar_hash != nar_hash || info.nar_size != local.nar_size() {
            let url = server.cache().url();
            let error = anyhow!("the contents of {tree} at {url} differ from its manifest");
            return Err(Failed::Refused.because(error));
        }
        let http = server.cache().http().clone();
        let origin = Origin::open(http, &info).map_err(|reason| {
            Failed::Unavailable.because(anyhow!("cannot read the NAR of {tree}: {reason}"))
        })?;
        Ok((local, Some(origin)))
    }

    /// Opens the files of a store path that has no manifest.
    fn open_whole(&self) -> anyhow::Result<Local> {
        let Resolved { path, shown } = &self.resolved;
        let info = match &self.server {
            Some(server) => {
                let info = server.signed_narinfo(path)?;
                Some((server, info.ok_or_else(|| server.lacks(path))?))
            }
            None => None,
        };
        let source = info.as_ref().map(|(server, info)| (*server, info));
        let nar_size = source.map_or(0, |(_, info)| info.nar_size);
        let mut progress = None;
        let opened = whole::open(self.cache_dir, path, source, &mut |len| {
            let progress = progress.get_or_insert_with(|| {
                notice(&format!(
                    "{shown} has no manifest: it is downloaded and verified before it is mounted"
                ));
                Progress::start("fetched", nar_size)
            });
            progress.add(len, len);
        });
        if let Some(progress) = progress {
            progress.end();
        }
        let local = opened?.with_context(|| format!("{shown} {NEVER}"));
        let local = local.map_err(|error| Failed::Unavailable.because(error))?;
        if !whole::is_directory(local.view().entries()) {
            let error = anyhow!(
                "cannot mount {shown}: it is a file or a link, not a directory: fetch it with nix \
                 copy instead"
            );
            return Err(Failed::Refused.because(error));
        }
        Ok(local)
    }

    /// Creates the files of the snapshot in its folder, unless they exist.
    fn prepare(&self, dir: &Path) -> anyhow::Result<()> {
        let Resolved { path, shown } = &self.resolved;
        prepare(self.cache_dir, dir, || match &self.server {
            Some(server) => server.manifest(path),
            None => Err(Failed::Unavailable.because(anyhow!("{shown} {NEVER}"))),
        })
    }
}

/// Creates the files of a snapshot in its folder, unless they exist.
fn prepare(
    cache_dir: &CacheDir,
    dir: &Path,
    download: impl FnOnce() -> anyhow::Result<Downloaded>,
) -> anyhow::Result<()> {
    let file = dir.join("manifest");
    if let Ok(manifest) = read_manifest(&file) {
        return local::prepare(dir, &manifest);
    }
    let downloaded = download()?;
    let nar_size = downloaded.manifest.entries.nar_size();
    cache_dir.make_room(nar_size, downloaded.path.base_name())?;
    local::prepare(dir, &downloaded.manifest)?;
    let written = replace(&file, downloaded.text.as_bytes());
    written.with_context(|| format!("cannot write {file:?}"))
}

/// Adds a manifest to the cache of mounts, so that a mount of its snapshot need not download it.
///
/// # Errors
///
/// The store path does not belong to the manifest, or the cache cannot be written.
pub fn keep_manifest(snapshot: &Downloaded, dir: &StoreDir) -> anyhow::Result<()> {
    let references = [snapshot.manifest.tree.clone()];
    check_path(&snapshot.path, &snapshot.nar_hash, &references, dir)?;
    let cache_dir = CacheDir::open(SIZE_DEFAULT)?;
    let name = snapshot.path.base_name();
    cache_dir.snapshot(name, |dir| {
        prepare(&cache_dir, dir, || Ok(snapshot.clone()))
    })?;
    Ok(())
}
