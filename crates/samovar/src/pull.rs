//! `samovar pull`: downloads a snapshot or a store path into a new directory.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use clap::{ArgMatches, Command, value_parser};
use samovar_nix::PublicKey;
use samovar_nix::narinfo::NarInfo;
use samovar_workspace::Manifest;
use samovar_workspace::unpack::{Options, UnpackError, unpack};
use serde_json::json;

use crate::arguments::{job_credentials, json, keys_of, required, sources, trusted_keys};
use crate::credentials::Sources;
use crate::outcome::Failed;
use crate::progress::Progress;
use crate::refs::{PathOrRef, is_manifest};
use crate::size::{counted, human};
use crate::snapshot::Snapshots;

/// Defines the command `samovar pull`.
pub(crate) fn command() -> Command {
    Command::new("pull")
        .about("Downloads a snapshot of a ref, or a store path, into a new directory")
        .after_help(
            "A REF is [URL#]NAME[@GENERATION]; see samovar ref. A store path is written as \
             [URL#]/nix/store/…. Everything is verified before DIR appears: the hash of the whole \
             tree and, for snapshots, the digest of each file. The files of a snapshot get their \
             permissions and times back; those of a store path become writable. The download of a \
             pull that was killed is continued by the next one into DIR; until then, its bytes are \
             in .DIR.samovar-download beside DIR. The files are on stable storage when the command \
             has ended with exit code 0. Exit code 1: there is no \
             such ref or path, or it cannot be trusted, or DIR exists; 2: the command line is \
             invalid; 3: the cache or the disk is unavailable.",
        )
        .arg(required("source", "REF|STOREPATH"))
        .arg(
            required("directory", "DIR")
                .value_parser(value_parser!(PathBuf))
                .help("A directory that does not exist or is empty"),
        )
        .arg(trusted_keys())
        .args(job_credentials())
        .arg(json())
}

/// Downloads a snapshot or a store path.
///
/// # Errors
///
/// The cache is unavailable or lacks the path, the content is damaged or untrusted, or the
/// directory cannot be written.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let started_at = Instant::now();
    let text: &String = matches.get_one("source").context("a ref is missing")?;
    let directory: &PathBuf = matches.get_one("directory").context("DIR is missing")?;
    let wanted = Wanted::find(text, &keys_of(matches), &sources(matches))?;
    let received = Arc::<AtomicU64>::default();
    let Wanted {
        snapshots,
        narinfo,
        manifest,
        generation,
    } = &wanted;
    let file_count = download(snapshots, narinfo, manifest.as_ref(), directory, &received)?;
    let seconds = started_at.elapsed().as_secs_f64();
    let received = received.load(Ordering::Relaxed);
    let path = narinfo.store_path.full(snapshots.store_dir());
    if matches.get_flag("json") {
        let document = json!({
            "path": path,
            "generation": generation,
            "files": file_count,
            "narSize": narinfo.nar_size,
            "receivedSize": received,
            "seconds": seconds,
        });
        writeln!(out, "{document}")?;
    } else {
        let generation =
            generation.map_or_else(String::new, |number| format!(", generation {number},"));
        writeln!(
            out,
            "{path}{generation} is in {}: {}, {} received in {seconds:.1} s",
            directory.display(),
            counted(file_count, "file"),
            human(received)
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The tree to download.
struct Wanted {
    snapshots: Snapshots,
    narinfo: NarInfo,
    /// `None`: the tree does not belong to a snapshot.
    manifest: Option<Manifest>,
    /// Generation of the ref that the command line names.
    generation: Option<u64>,
}

impl Wanted {
    /// Finds a ref or a store path. `keys`: if there are any, one of them must have signed what is
    /// found.
    fn find(text: &str, keys: &[PublicKey], sources: &Sources) -> anyhow::Result<Self> {
        let source = PathOrRef::parse(text).map_err(|error| Failed::Usage.because(error))?;
        let (snapshots, path, generation) = Snapshots::find(&source, sources, keys)?;
        let (narinfo, manifest) = match is_manifest(path.name()) {
            true => {
                let manifest = snapshots.manifest(&path)?.manifest;
                (snapshots.narinfo(&manifest.tree)?, Some(manifest))
            }
            false => (snapshots.any_narinfo(&path)?, None),
        };
        Ok(Self {
            snapshots,
            narinfo,
            manifest,
            generation,
        })
    }
}

/// Downloads a NAR and unpacks it into a new directory. `received`: counts the received bytes.
/// Returns the number of files.
///
/// # Errors
///
/// The NAR cannot be downloaded or is damaged, or the directory cannot be written. The directory
/// does not exist then.
pub(crate) fn download(
    snapshots: &Snapshots,
    narinfo: &NarInfo,
    manifest: Option<&Manifest>,
    directory: &Path,
    received: &Arc<AtomicU64>,
) -> anyhow::Result<u64> {
    let progress = Progress::start("pulled", narinfo.nar_size);
    let options = Options {
        nar_hash: Some(narinfo.nar_hash),
        nar_size: Some(narinfo.nar_size),
        ..Options::default()
    };
    let spool = spool_beside(directory);
    let unpacked = snapshots.read_nar_resumably(narinfo, &spool, received, |nar| {
        let mut counted = progress.counted(nar);
        unpack(&mut counted, manifest, directory, &options).map_err(|error| {
            if let UnpackError::Differs { path, difference } = &error {
                let path = path.strip_prefix(directory).unwrap_or(path);
                return snapshots.damaged(narinfo, &format!("{path:?}"), difference);
            }
            let failed = match error {
                UnpackError::Exists { .. }
                | UnpackError::CurrentDirectory { .. }
                | UnpackError::MountPoint { .. }
                | UnpackError::NoName { .. } => return Failed::Refused.because(error),
                UnpackError::Source(_) | UnpackError::File { .. } | UnpackError::Thread(_) => {
                    Failed::Unavailable
                }
                _ => Failed::Refused,
            };
            let url = snapshots.cache().http().url(&format!("/{}", narinfo.url));
            failed.because(anyhow!(error).context(format!("cannot unpack {url}")))
        })
    });
    progress.end();
    Ok(unpacked?.file_count)
}

/// Returns the path of the file for the received bytes of a download into a directory.
fn spool_beside(directory: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(directory.file_name().unwrap_or_default());
    name.push(".samovar-download");
    directory.with_file_name(name)
}
