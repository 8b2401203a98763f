//! `samovar mount`: mounts a snapshot, read-only, before its contents are on this machine; or the
//! store of a cache.

mod background;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::{Arg, ArgMatches, Command, value_parser};
use samovar_mount::fuse::{
    Access, CacheDir, End, MountOptions, MountPoint, Mounted, SIZE_DEFAULT, Wanted,
};
use samovar_mount::overlay::DIRECTORY_MODE;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::arguments::{credentials, keys_of, option, required, sources, switch, trusted_keys};
use crate::credential::{is_passed, seal};
use crate::outcome::Failed;
use crate::refs::PathOrRef;
use crate::remote::Remote;
use crate::size::grouped;

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
             [URL#]/nix/store/…. A snapshot is mounted before its files are on this machine: files \
             that are read are fetched first, and all others in the background. Each file is \
             verified before it is read. A store path without a manifest is downloaded and \
             verified before it is mounted. With --store, DIR shows all store paths of a cache: \
             each one is downloaded and verified when its name is looked up, and DIR lists only \
             the store paths that are in use, because a cache has no list of its paths. Without \
             --trusted-public-keys, the cache is trusted: contents are compared with the hash that \
             the cache states. Downloaded files stay in $SAMOVAR_CACHE_DIR, else in \
             $XDG_CACHE_HOME/samovar/mount or ~/.cache/samovar/mount, which must be on a local \
             disk. The command runs until DIR is unmounted, by fusermount3 -u DIR or by a signal. \
             Exit code 0: DIR was unmounted, or the snapshot was already mounted there; 1: the ref \
             or path does not exist, or cannot be trusted, or DIR cannot be used; 2: the command \
             line is invalid; 3: the cache, the disk or FUSE is unavailable.",
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
                .help("Use only files that are on this machine, and send no request"),
        )
        .arg(switch("allow-other").help("Let other users of this machine read the files"))
        .arg(
            option("cache-size", "GIB")
                .value_parser(value_parser!(u32).range(1..))
                .help("Maximum size of all downloaded files, in GiB [default: 20]"),
        )
        .arg(
            option("timeout", "SECONDS")
                .value_parser(value_parser!(u32).range(1..))
                .help("Time after which reads fail while the server is unreachable [default: 15]"),
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
    let (wanted, directory) = parse(matches).map_err(|error| Failed::Usage.because(error))?;
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
    let access = Access {
        credentials: sources(matches),
        keys: keys_of(matches),
        is_offline: matches.get_flag("offline"),
    };
    let found = wanted.find(&access, &cache_dir)?;
    let (name, shown, dir) = (found.name(), found.shown(), point.path().display());
    if point.mounted(name)? == Mounted::Same {
        writeln!(out, "{shown} is mounted on {dir} already")?;
        return Ok(out.flush()?);
    }
    let patience = matches.get_one::<u32>("timeout");
    let patience = patience.map_or(PATIENCE, |seconds| Duration::from_secs((*seconds).into()));
    let opened = found.open(patience)?;
    let files = opened.file_count().map_or_else(String::new, |count| {
        format!(", {} files", grouped(count as u64))
    });
    let options = MountOptions {
        is_shared: matches.get_flag("allow-other"),
        directory_mode: match matches.get_flag("writable-directories") {
            true => DIRECTORY_MODE,
            false => 0,
        },
        ended,
    };
    // From now on, signals are handled after the mount.
    is_mounting.store(true, Ordering::SeqCst);
    let mount = opened.mount(&point, name, options)?;
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
    mount.stop();
    if matches.get_flag("statistics") {
        writeln!(out, "{}", mount.statistics())?;
    }
    Ok(())
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

/// Returns what the command line names, and the directory to mount it on.
fn parse(matches: &ArgMatches) -> anyhow::Result<(Wanted, PathBuf)> {
    let source: &OsString = matches.get_one("source").context("a source is missing")?;
    let directory: Option<&PathBuf> = matches.get_one("directory");
    match (matches.get_one::<String>("store"), directory) {
        (Some(url), None) => Ok((Wanted::Store(Remote::of_cache(url)?), source.into())),
        (None, Some(directory)) => {
            let source = source
                .to_str()
                .context("the name of the ref is not UTF-8")?;
            Ok((Wanted::Tree(PathOrRef::parse(source)?), directory.clone()))
        }
        (Some(_), Some(_)) => Err(anyhow!(
            "--store mounts all paths of a cache: leave out {source:?}, or --store"
        )),
        (None, None) => Err(anyhow!("DIR is missing")),
    }
}
