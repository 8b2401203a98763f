//! `samovar mount`: mounts a snapshot, read-only, before its contents are on this machine; or the
//! store of a cache.
//!
//! # Theory of operation
//!
//! ```text
//! kernel ⇄ FileSystem → Local (NAR file, marks) ← Fetcher ← Origin ← server
//! ```
//!
//! The manifest has all names and attributes, so the snapshot is mounted as soon as the manifest is
//! here. The [`Fetcher`] streams the whole NAR into one sparse file in the background. A read whose
//! blocks are missing jumps the queue. Each file is verified with its digest in the manifest before
//! its first byte is returned: as it arrives, or when it is read.
//!
//! A store path without a manifest is fetched and verified as a whole before it is mounted.
//!
//! With `--store`, the root of the [`FileSystem`] is a [`Store`], which opens a tree for each store
//! path whose name is looked up, in the same way as a single one.

mod arrivals;
mod background;
mod cache_dir;
mod counts;
mod download;
mod fetch;
mod file_system;
mod local;
mod mount_point;
mod queue;
mod source;
mod store;
mod transfer;
mod tree;
mod view;
mod whole;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::{Arg, ArgMatches, Command, value_parser};
use rustix::process::{Resource, getrlimit, setrlimit};
use samovar_mount::overlay::DIRECTORY_MODE;
use samovar_nix::StoreDir;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::arguments::{credentials, keys_of, option, required, sources, switch, trusted_keys};
use crate::credential::{is_passed, seal};
use crate::notice::notice;
use crate::outcome::Failed;
use crate::progress::Progress;
use crate::refs::PathOrRef;
use crate::remote::Remote;
use crate::size::grouped;
use crate::snapshot::{Downloaded, Snapshots, check_path};
use cache_dir::{CacheDir, SIZE_DEFAULT};
use fetch::Fetcher;
use file_system::{FileSystem, Root};
use local::Local;
use mount_point::{MountPoint, Mounted};
use source::{NEVER, Resolved, read_manifest, replace};
use store::Store;
use transfer::Origin;
use tree::Tree;

/// Time after which reads fail, from when the server became unreachable.
const PATIENCE: Duration = Duration::from_secs(15);

/// Defines the command `samovar mount`.
pub(crate) fn command() -> Command {
    Command::new("mount")
        .about("Mounts a snapshot of a ref, a store path, or the store of a cache, read-only")
        .override_usage(
            "samovar mount [OPTIONS] REF|STOREPATH DIR\n       \
             samovar mount [OPTIONS] --store URL DIR",
        )
        .after_help(
            "A REF is [URL#]NAME[@GENERATION]; see samovar ref. A store path is written as \
             [URL#]/nix/store/…. A snapshot is mounted before its files are here: those that are \
             read are fetched first, and everything else in the background. Each file is verified \
             before it is read. A store path without a manifest is downloaded and verified before \
             it is mounted. With --store, DIR shows all store paths of a cache: each one is \
             downloaded and verified when its name is looked up, and DIR lists those that are in \
             use, because a cache has no list. Without --trusted-public-keys, the cache is \
             trusted: contents are compared with the hash that it states. What was fetched stays \
             in $SAMOVAR_CACHE_DIR, else in $XDG_CACHE_HOME/samovar/mount or \
             ~/.cache/samovar/mount, which must be on a local disk. The command runs until DIR is \
             unmounted, by fusermount3 -u DIR or by a signal. \
             Exit code 0: it was unmounted, or has this snapshot already; 1: there is no such ref \
             or path, or it cannot be trusted, or DIR is not usable; 2: the command line is \
             invalid; 3: the cache, the disk or FUSE is unavailable.",
        )
        .arg(required("source", "REF|STOREPATH").value_parser(value_parser!(OsString)))
        .arg(
            Arg::new("directory")
                .value_name("DIR")
                .required_unless_present("store")
                .value_parser(value_parser!(PathBuf))
                .help("Empty directory; it is created if it does not exist"),
        )
        .arg(option("store", "URL").help("Mount the store of this cache"))
        .arg(switch("background").help("Return once DIR is mounted"))
        .arg(
            switch("offline")
                .conflicts_with("trusted-public-keys")
                .help("Use only what is on this machine, and send no request"),
        )
        .arg(switch("allow-other").help("Let other users of this machine read the files"))
        .arg(
            option("cache-size", "GIB")
                .value_parser(value_parser!(u32).range(1..))
                .help("Maximum size of what was fetched, in GiB [default: 20]"),
        )
        .arg(
            option("timeout", "SECONDS")
                .value_parser(value_parser!(u32).range(1..))
                .help("Time after which reads fail while the server is away [default: 15]"),
        )
        .arg(trusted_keys())
        .args(credentials())
        .arg(Arg::new("detached").long("detached").num_args(0).hide(true))
        // For overlays, in which the owner may change every directory.
        .arg(switch("writable-directories").hide(true))
        // For tests and measurements.
        .arg(switch("statistics").hide(true))
}

/// Mounts a snapshot and serves it until it is unmounted.
///
/// # Errors
///
/// The snapshot cannot be mounted.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let (wanted, directory) =
        Wanted::parse(matches).map_err(|error| Failed::Usage.because(error))?;
    if matches.get_flag("background") {
        return background::run(out);
    }
    let is_detached = matches.get_flag("detached");
    if is_detached {
        background::detach();
    } else if is_passed() {
        // A command that runs in an overlay of the mount must not read the token.
        seal().map_err(|error| Failed::Unavailable.because(error))?;
    }
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot catch signals")?;
    let (ended, ends) = mpsc::channel();
    let is_mounting = Arc::new(AtomicBool::new(false));
    let (flag, sender) = (Arc::clone(&is_mounting), ended.clone());
    thread::spawn(move || wait_for(signals, &flag, &sender));
    let size_max = matches.get_one::<u32>("cache-size");
    let size_max = size_max.map_or(SIZE_DEFAULT, |gib| u64::from(*gib) << 30);
    let cache_dir = CacheDir::open(size_max)?;
    let point = MountPoint::open(&directory).map_err(|error| Failed::Refused.because(error))?;
    let found = wanted.find(matches, &cache_dir)?;
    let (name, shown, dir) = (found.name(), found.shown(), point.path().display());
    if point.mounted(name)? == Mounted::Same {
        writeln!(out, "{shown} is mounted on {dir} already")?;
        return Ok(out.flush()?);
    }
    let patience = matches.get_one::<u32>("timeout");
    let patience = patience.map_or(PATIENCE, |seconds| Duration::from_secs((*seconds).into()));
    let (root, fetcher, files) = found.open(patience)?;
    let directory_mode = match matches.get_flag("writable-directories") {
        true => DIRECTORY_MODE,
        false => 0,
    };
    let file_system = FileSystem::new(root, ended, directory_mode);
    let counts = file_system.counts();
    // From now on, signals are handled after the mount.
    is_mounting.store(true, Ordering::SeqCst);
    let session = point.mount(file_system, name, matches.get_flag("allow-other"))?;
    // Dropping the session would unmount whatever is mounted on the directory by then.
    std::mem::forget(session);
    writeln!(
        out,
        "mounted {shown} on {dir}{files}; unmount with: fusermount3 -u {dir}"
    )?;
    out.flush()?;
    if is_detached {
        background::leave(&cache_dir)?;
    }
    if ends.recv() == Ok(End::Signal) {
        let unmounted = point.unmount();
        unmounted.with_context(|| format!("cannot unmount {:?}", point.path()))?;
    }
    if let Some(fetcher) = &fetcher {
        fetcher.stop();
    }
    if matches.get_flag("statistics") {
        let requests = fetcher.as_ref().map_or(0, Fetcher::request_count);
        writeln!(out, "{counts}, {requests} requests to the server")?;
    }
    Ok(())
}

/// Why the mount ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Signal,
    Unmounted,
}

/// Waits for signals. The first one ends this process, unless it has begun to mount.
fn wait_for(mut signals: Signals, is_mounting: &AtomicBool, ended: &mpsc::Sender<End>) {
    for signal in signals.forever() {
        if !is_mounting.load(Ordering::SeqCst) {
            std::process::exit(128 + signal);
        }
        if ended.send(End::Signal).is_err() {
            return;
        }
    }
}

/// What the command line names.
enum Wanted {
    Tree(PathOrRef),
    /// The store of this cache.
    Store(Remote),
}

/// What is being mounted.
enum Source<'a> {
    Tree(Snapshot<'a>),
    Store {
        remote: Remote,
        /// `None` with `--offline`.
        server: Option<Snapshots>,
        cache_dir: &'a CacheDir,
    },
}

impl Wanted {
    /// Also returns the directory to mount on.
    fn parse(matches: &ArgMatches) -> anyhow::Result<(Self, PathBuf)> {
        let source: &OsString = matches.get_one("source").context("a source is missing")?;
        let directory: Option<&PathBuf> = matches.get_one("directory");
        match (matches.get_one::<String>("store"), directory) {
            (Some(url), None) => Ok((Self::Store(Remote::of_cache(url)?), source.into())),
            (None, Some(directory)) => {
                let source = source
                    .to_str()
                    .context("the name of the ref is not UTF-8")?;
                Ok((Self::Tree(PathOrRef::parse(source)?), directory.clone()))
            }
            (Some(_), Some(_)) => Err(anyhow!(
                "--store mounts all paths of a cache: leave out {source:?}, or --store"
            )),
            (None, None) => Err(anyhow!("DIR is missing")),
        }
    }

    fn find<'a>(
        &self,
        matches: &ArgMatches,
        cache_dir: &'a CacheDir,
    ) -> anyhow::Result<Source<'a>> {
        let remote = match self {
            Self::Tree(wanted) => {
                return Ok(Source::Tree(Snapshot::find(wanted, matches, cache_dir)?));
            }
            Self::Store(remote) => remote.clone(),
        };
        let server = match matches.get_flag("offline") {
            true => None,
            false => {
                let (credentials, keys) = (sources(matches), keys_of(matches));
                Some(Snapshots::open_any(remote.clone(), &credentials, &keys)?)
            }
        };
        Ok(Source::Store {
            remote,
            server,
            cache_dir,
        })
    }
}

impl Source<'_> {
    /// Returns the name that identifies the mount.
    fn name(&self) -> &str {
        match self {
            Self::Tree(snapshot) => snapshot.resolved.path.base_name(),
            Self::Store { remote, .. } => remote.url(),
        }
    }

    /// Returns the name for messages.
    fn shown(&self) -> &str {
        match self {
            Self::Tree(snapshot) => &snapshot.resolved.shown,
            Self::Store { remote, .. } => remote.url(),
        }
    }

    /// Starts the threads that fetch files. Also returns the number of files, for a message.
    fn open(&self, patience: Duration) -> anyhow::Result<(Root, Option<Fetcher>, String)> {
        let failed = || "cannot start threads";
        match self {
            Self::Tree(snapshot) => {
                let (local, origin) = snapshot.open()?;
                let fetcher = Fetcher::start(Arc::clone(&local), origin, patience);
                let fetcher = fetcher.with_context(failed)?;
                let files = grouped(local.view().file_count() as u64);
                let tree = Tree::new(local, Some(fetcher.clone()));
                let root = Root::Tree(Arc::new(tree));
                Ok((root, Some(fetcher), format!(", {files} files")))
            }
            Self::Store {
                server, cache_dir, ..
            } => {
                raise_file_limit();
                let store = Store::start(server.as_ref(), (*cache_dir).clone(), patience);
                let root = Root::Store(store.with_context(failed)?);
                Ok((root, None, String::new()))
            }
        }
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
    /// `None` with `--offline`.
    server: Option<Snapshots>,
    cache_dir: &'a CacheDir,
}

impl<'a> Snapshot<'a> {
    fn find(
        wanted: &PathOrRef,
        matches: &ArgMatches,
        cache_dir: &'a CacheDir,
    ) -> anyhow::Result<Self> {
        let (server, resolved) = match matches.get_flag("offline") {
            true => (None, Resolved::offline(wanted, cache_dir)?),
            false => {
                let (credentials, keys) = (sources(matches), keys_of(matches));
                let (server, found) = Resolved::online(wanted, &credentials, &keys, cache_dir)?;
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
    /// files are read. The NAR is `None` if no files are missing, or with `--offline`.
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
            let error = anyhow!("{url} has other contents of {tree} than its manifest states");
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
/// The store path is not that of the manifest, or the cache cannot be written.
pub(crate) fn keep_manifest(snapshot: &Downloaded, dir: &StoreDir) -> anyhow::Result<()> {
    let references = [snapshot.manifest.tree.clone()];
    check_path(&snapshot.path, &snapshot.nar_hash, &references, dir)?;
    let cache_dir = CacheDir::open(SIZE_DEFAULT)?;
    let name = snapshot.path.base_name();
    cache_dir.snapshot(name, |dir| {
        prepare(&cache_dir, dir, || Ok(snapshot.clone()))
    })?;
    Ok(())
}
