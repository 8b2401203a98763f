//! `samovar mount`: mounts a snapshot, read-only, before its contents are on this machine.
//!
//! # Theory of operation
//!
//! ```text
//! kernel ⇄ FileSystem → Local (NAR file, marks) ← Fetcher ← Origin ← server
//! ```
//!
//! The manifest has all names and attributes, so the snapshot is mounted as soon as the manifest is
//! here. The [`Fetcher`] streams the whole NAR into one sparse file in the background. A read whose
//! blocks are missing jumps the queue. Each file is verified before its first byte is returned:
//! with the digest in the manifest, until the whole NAR is here and matches its hash.
//!
//! A store path without a manifest is fetched and verified as a whole before it is mounted.

mod background;
mod cache_dir;
mod download;
mod fetch;
mod file_system;
mod local;
mod mount_point;
mod queue;
mod source;
mod transfer;
mod view;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::{Arg, ArgMatches, Command, value_parser};
use samovar_nix::PublicKey;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::arguments::{option, required, switch};
use crate::credentials::{self, Sources};
use crate::notice::notice;
use crate::outcome::Failed;
use crate::pull::{keys_of, trusted_keys};
use crate::refs::PathOrRef;
use crate::size::grouped;
use crate::snapshot::Snapshots;
use cache_dir::{CacheDir, SIZE_DEFAULT};
use fetch::Fetcher;
use file_system::FileSystem;
use local::Local;
use mount_point::{MountPoint, Mounted};
use source::{NEVER, Resolved, narinfo, read_manifest, replace};
use transfer::Origin;

/// Time after which reads fail, from when the server became unreachable.
const PATIENCE: Duration = Duration::from_secs(15);

/// Permissions that the owner has on all directories of a snapshot below an overlay. Without them,
/// users other than root could not change a snapshot with read-only directories.
pub(crate) const DIRECTORY_MODE: u16 = 0o700;

/// Defines the command `samovar mount`.
pub(crate) fn command() -> Command {
    Command::new("mount")
        .about("Mounts a snapshot of a ref, or a store path, read-only")
        .after_help(
            "A REF is [URL#]NAME[@GENERATION]; see samovar ref. A store path is written as \
             [URL#]/nix/store/…. A snapshot is mounted before its files are here: those that are \
             read are fetched first, and everything else in the background. Each file is verified \
             before it is read. A store path without a manifest is downloaded and verified before \
             it is mounted. What was fetched stays in $SAMOVAR_CACHE_DIR, else in \
             $XDG_CACHE_HOME/samovar/mount or ~/.cache/samovar/mount, which must be on a local \
             disk. The command runs until DIR is unmounted, by fusermount3 -u DIR or by a signal. \
             Exit code 0: it was unmounted, or has this snapshot already; 1: there is no such ref \
             or path, or it cannot be trusted, or DIR is not usable; 2: the command line is \
             invalid; 3: the cache, the disk or FUSE is unavailable.",
        )
        .arg(required("source", "REF|STOREPATH"))
        .arg(
            required("directory", "DIR")
                .value_parser(value_parser!(PathBuf))
                .help("Empty directory; it is created if it does not exist"),
        )
        .arg(switch("background").help("Return once the snapshot is mounted"))
        .arg(switch("offline").help("Use only what is on this machine, and send no request"))
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
        .args(credentials::options())
        .arg(Arg::new("detached").long("detached").num_args(0).hide(true))
        // For overlays, in which the owner may change every directory.
        .arg(switch("writable-directories").hide(true))
}

/// Mounts a snapshot and serves it until it is unmounted.
///
/// # Errors
///
/// The snapshot cannot be mounted.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let text: &String = matches.get_one("source").context("a source is missing")?;
    let wanted = PathOrRef::parse(text).map_err(|error| Failed::Usage.because(error))?;
    if matches.get_flag("background") {
        return background::run(out);
    }
    let is_detached = matches.get_flag("detached");
    if is_detached {
        background::detach();
    }
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot catch signals")?;
    let (ended, ends) = mpsc::channel();
    let is_mounting = Arc::new(AtomicBool::new(false));
    let (flag, sender) = (Arc::clone(&is_mounting), ended.clone());
    thread::spawn(move || wait_for(signals, &flag, &sender));
    let size_max = matches.get_one::<u32>("cache-size");
    let size_max = size_max.map_or(SIZE_DEFAULT, |gib| u64::from(*gib) << 30);
    let cache_dir = CacheDir::open(size_max)?;
    let directory: &PathBuf = matches.get_one("directory").context("DIR is missing")?;
    let point = MountPoint::open(directory).map_err(|error| Failed::Refused.because(error))?;
    let snapshot = Snapshot::find(&wanted, matches, &cache_dir)?;
    let name = snapshot.resolved.path.base_name();
    let (shown, dir) = (&snapshot.resolved.shown, point.path().display());
    if point.mounted(name)? == Mounted::Same {
        writeln!(out, "{shown} is mounted on {dir} already")?;
        return Ok(out.flush()?);
    }
    let (local, origin) = snapshot.open()?;
    let patience = matches.get_one::<u32>("timeout");
    let patience = patience.map_or(PATIENCE, |seconds| Duration::from_secs((*seconds).into()));
    let fetcher = Fetcher::start(Arc::clone(&local), origin, patience);
    let fetcher = fetcher.context("cannot start threads")?;
    let directory_mode = match matches.get_flag("writable-directories") {
        true => DIRECTORY_MODE,
        false => 0,
    };
    let source = Arc::clone(&local);
    let file_system = FileSystem::new(source, fetcher.clone(), ended, directory_mode);
    // From now on, signals are handled after the mount.
    is_mounting.store(true, Ordering::SeqCst);
    let session = point.mount(file_system, name, matches.get_flag("allow-other"))?;
    // Dropping the session would unmount whatever is mounted on the directory by then.
    std::mem::forget(session);
    let count = grouped(local.view().file_count() as u64);
    writeln!(
        out,
        "mounted {shown} on {dir}, {count} files; unmount with: fusermount3 -u {dir}"
    )?;
    out.flush()?;
    if is_detached {
        background::leave(&cache_dir)?;
    }
    if ends.recv() == Ok(End::Signal) {
        let unmounted = point.unmount();
        unmounted.with_context(|| format!("cannot unmount {:?}", point.path()))?;
    }
    fetcher.stop();
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

/// A snapshot that is being mounted.
struct Snapshot<'a> {
    resolved: Resolved,
    /// `None` with `--offline`.
    server: Option<Snapshots>,
    keys: Vec<PublicKey>,
    cache_dir: &'a CacheDir,
}

impl<'a> Snapshot<'a> {
    fn find(
        wanted: &PathOrRef,
        matches: &ArgMatches,
        cache_dir: &'a CacheDir,
    ) -> anyhow::Result<Self> {
        let keys = keys_of(matches);
        let (server, resolved) = match matches.get_flag("offline") {
            true => (None, Resolved::offline(wanted, cache_dir)?),
            false => {
                let credentials = Sources::of(matches);
                let (server, found) = Resolved::online(wanted, &credentials, &keys, cache_dir)?;
                (Some(server), found)
            }
        };
        Ok(Self {
            resolved,
            server,
            keys,
            cache_dir,
        })
    }

    /// Opens the files of the snapshot on this machine, and the file on the server from which they
    /// are completed. There is none if they are complete, or with `--offline`.
    fn open(&self) -> anyhow::Result<(Arc<Local>, Option<Origin>)> {
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

    /// Creates the files of the snapshot in its folder, unless they exist.
    fn prepare(&self, dir: &Path) -> anyhow::Result<()> {
        let file = dir.join("manifest");
        if let Ok(manifest) = read_manifest(&file) {
            return local::prepare(dir, &manifest);
        }
        let Resolved { path, shown } = &self.resolved;
        let Some(server) = &self.server else {
            return Err(Failed::Unavailable.because(anyhow!("{shown} {NEVER}")));
        };
        let name = path.base_name();
        let failed = || format!("cannot write {file:?}");
        if self.resolved.is_snapshot() {
            let downloaded = server.manifest(path)?;
            let nar_size = downloaded.manifest.entries.nar_size();
            self.cache_dir.make_room(nar_size, name)?;
            local::prepare(dir, &downloaded.manifest)?;
            return replace(&file, downloaded.text.as_bytes()).with_context(failed);
        }
        let info = narinfo(server, path, &self.keys)?;
        self.cache_dir.make_room(info.nar_size, name)?;
        fs::remove_file(dir.join("marks")).ok();
        notice(&format!(
            "{shown} has no manifest: it is downloaded and verified before it is mounted"
        ));
        let manifest = download::download(server, &info, dir)?;
        local::mark_whole(dir, &manifest)?;
        replace(&file, manifest.text().as_bytes()).with_context(failed)
    }
}
