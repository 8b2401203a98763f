//! `samovar export`: writes the uploaded paths of a cache into a directory that any Nix can read.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, ensure};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use samovar_nix::{HashPart, StoreDir, StorePath};
use samovar_storage::cache_info;
use samovar_storage::metadata::{CacheId, Database, StoredPath, caches, check, packs, paths};
use samovar_storage::objects::Objects;
use tempfile::NamedTempFile;

use crate::outcome::{Failed, Outcome};
use crate::roots;
use crate::serve;
use crate::size::{counted, human};
use crate::storage::{configured, copy, renderer, signing};
use crate::token::open_as_caller;

/// Number of paths that one database query reads.
const BATCH_COUNT: u32 = 500;

/// Defines the command `samovar export`.
pub(crate) fn command() -> Command {
    let command = Command::new("export")
        .about(
            "Writes uploaded paths into a directory, as a binary cache for file:// or any server",
        )
        .after_help(
            "Writes the NARs, the narinfos with the signatures that the server sends, and \
             nix-cache-info. Files that the directory has are skipped. Hashes of files are \
             checked. Prints a line for each path that cannot be exported, or that refers to a \
             path of the server's Nix store, which is not exported. Exit code 0: all paths were \
             exported; 1: a path was not exported, or lacks a reference; 2: the command line or \
             the configuration is invalid; 3: the storage or the directory is unavailable. The \
             server may run meanwhile. Give its configuration, for the signing keys: samovar \
             export --config FILE --to DIRECTORY",
        )
        .arg(
            Arg::new("to")
                .long("to")
                .value_name("DIRECTORY")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("Directory to write to; it is created if it does not exist"),
        )
        .arg(
            Arg::new("link")
                .long("link")
                .action(ArgAction::SetTrue)
                .help("Link the files on the same file system, do not copy them"),
        )
        .arg(
            Arg::new("cache")
                .long("cache")
                .value_name("NAME")
                .help("Cache to export [default: the first one by name]"),
        )
        .arg(
            Arg::new("paths")
                .value_name("PATH")
                .num_args(0..)
                .help("Paths to export, with their closures [default: all paths of the cache]"),
        );
    serve::with_options(command, |name| name == "storage")
}

/// Runs `samovar export`.
///
/// # Errors
///
/// The configuration is invalid, or the storage or the directory cannot be used.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let (config, location) = configured(matches)?;
    let root = location.directory();
    // Root stays root: the target is root's, and nothing is created in the storage.
    let metadata: &Database = &open_as_caller(&location, false)?;
    let first = config.caches.first().context("a server has a cache")?;
    let named: Option<&String> = matches.get_one("cache");
    let name = named.map_or(first.storage_name(), String::as_str);
    let settings = config
        .caches
        .iter()
        .find(|cache| cache.storage_name() == name);
    let cache = caches::find(metadata, name)?;
    let cache = cache.ok_or_else(|| {
        Failed::Usage.because(anyhow!(
            "the storage has no cache {name:?}: correct --cache"
        ))
    })?;
    let signing = signing(settings.unwrap_or(first))?;
    let render = renderer(&signing, cache.store_dir.clone());
    let to: &PathBuf = matches.get_one("to").context("a directory is missing")?;
    let export = Export {
        metadata,
        objects: &Objects::open(&location)?,
        root,
        cache: cache.id,
        store_dir: &cache.store_dir,
        to,
        links: matches.get_flag("link"),
    };
    export.begin()?;
    let paths = matches.get_many("paths").into_iter().flatten();
    let paths: Vec<String> = paths.cloned().collect();
    let wanted = export.closure(&paths)?;
    let counts = export.all(wanted.as_ref(), &render, out)?;
    let (exported, bytes, faults) = (counts.exported, human(counts.bytes), counts.faults);
    writeln!(
        out,
        "{} exported, {bytes} written, {}",
        counted(exported, "path"),
        counted(faults, "fault")
    )?;
    if counts.unsigned > 0 {
        // Ignore errors: standard error may be closed, and the paths are exported nevertheless.
        writeln!(
            io::stderr(),
            "samovar: warning: {} exported paths have no signature, so clients refuse them: give \
             the configuration of the server with --config FILE, or --secret-key-files FILE",
            counts.unsigned
        )
        .ok();
    }
    Ok(match faults {
        0 => Outcome::Complete,
        _ => Outcome::Incomplete,
    })
}

#[derive(Default)]
struct Counts {
    exported: u64,
    /// Total length of the NAR files written, in bytes.
    bytes: u64,
    /// Number of paths that could not be exported, plus the number of missing references.
    faults: u64,
    /// Number of exported paths without a signature.
    unsigned: u64,
}

/// The outcome of exporting one path.
struct Exported {
    /// Number of bytes of the NAR file that were written.
    bytes: u64,
    /// References that the cache does not have.
    missing: Vec<StorePath>,
    /// Whether the narinfo has a signature.
    has_signature: bool,
}

/// An export of one cache.
struct Export<'a> {
    metadata: &'a Database,
    objects: &'a Objects,
    /// The storage directory, from which the paths are exported.
    root: &'a Path,
    cache: CacheId,
    store_dir: &'a StoreDir,
    to: &'a Path,
    links: bool,
}

impl Export<'_> {
    /// Creates the target directory. An existing one must have the same store directory.
    fn begin(&self) -> anyhow::Result<()> {
        let store_dir = self.store_dir;
        let failed = || format!("cannot write to {:?}", self.to);
        fs::create_dir_all(self.to.join("nar")).with_context(failed)?;
        let storage = fs::canonicalize(self.root)?;
        ensure!(
            !fs::canonicalize(self.to)?.starts_with(storage),
            "{:?} is the storage itself: export to another directory",
            self.to
        );
        let (info, text) = (self.to.join("nix-cache-info"), cache_info(store_dir));
        let line = format!("StoreDir: {store_dir}\n");
        match fs::read_to_string(&info) {
            Ok(found) => {
                ensure!(
                    found.contains(&line),
                    "{info:?} has paths of another store directory"
                );
                Ok(())
            }
            Err(_) => self
                .write("nix-cache-info", text.as_bytes())
                .with_context(failed),
        }
    }

    /// Returns the hash parts in the closures of `paths`. Returns `None`, which means all paths of
    /// the cache, if `paths` is empty.
    fn closure(&self, paths: &[String]) -> anyhow::Result<Option<HashSet<HashPart>>> {
        if paths.is_empty() {
            return Ok(None);
        }
        let roots = roots::read(paths, self.store_dir, io::stdin().lock())?;
        let mut open = Vec::new();
        for root in roots {
            let is_known = paths::exists(self.metadata, self.cache, root.hash_part)?;
            if !is_known {
                let error = anyhow!("the cache does not have {}", root.shown());
                return Err(Failed::Refused.because(error));
            }
            open.push(root.hash_part);
        }
        let mut closure = HashSet::new();
        while let Some(hash_part) = open.pop() {
            if closure.insert(hash_part)
                && let Some(path) = paths::peek(self.metadata, self.cache, hash_part)?
            {
                open.extend(path.references.iter().map(StorePath::hash_part));
            }
        }
        Ok(Some(closure))
    }

    /// Exports the wanted paths of the cache, or all if `wanted` is `None`.
    fn all(
        &self,
        wanted: Option<&HashSet<HashPart>>,
        render: &dyn Fn(&StoredPath) -> Vec<u8>,
        out: &mut dyn Write,
    ) -> anyhow::Result<Counts> {
        let mut counts = Counts::default();
        let mut after = 0;
        // The database returns each path after its references.
        loop {
            let mut batch = check::paths_after(self.metadata, after, BATCH_COUNT)?;
            let Some(last) = batch.last() else {
                return Ok(counts);
            };
            after = last.id;
            batch.retain(|listed| {
                let is_wanted = |wanted: &HashSet<_>| wanted.contains(&listed.path.hash_part());
                listed.cache == self.cache && wanted.is_none_or(is_wanted)
            });
            for listed in batch {
                let path = listed.path.display(self.store_dir);
                match self.one(&listed.path, render) {
                    Ok(Exported {
                        bytes,
                        missing,
                        has_signature,
                    }) => {
                        counts.exported += 1;
                        counts.bytes += bytes;
                        counts.unsigned += u64::from(!has_signature);
                        counts.faults += missing.len() as u64;
                        for reference in missing {
                            let reference = reference.display(self.store_dir);
                            writeln!(
                                out,
                                "incomplete {path}: the cache does not have {reference}"
                            )?;
                        }
                    }
                    Err(error) => {
                        counts.faults += 1;
                        writeln!(out, "not exported {path}: {error:#}")?;
                    }
                }
            }
        }
    }

    /// Exports one path: its NAR file and its narinfo.
    fn one(
        &self,
        path: &StorePath,
        render: &dyn Fn(&StoredPath) -> Vec<u8>,
    ) -> anyhow::Result<Exported> {
        // `path` records a use, so that the collector does not delete the file before it is copied.
        let stored = paths::find(self.metadata, self.cache, path.hash_part())?;
        let stored = stored.context("its file is lost")?;
        let key = &stored.nar.object_key;
        let is_there = fs::metadata(self.to.join(key))
            .is_ok_and(|metadata| metadata.len() == stored.nar.file_size);
        let written = if is_there { 0 } else { stored.nar.file_size };
        if !is_there {
            self.nar(&stored)
                .with_context(|| format!("cannot export {key}"))?;
        }
        let narinfo = render(&stored);
        let has_signature = narinfo.windows(5).any(|part| part == b"\nSig:");
        self.write(&format!("{}.narinfo", path.hash_part()), &narinfo)?;
        let mut missing = Vec::new();
        for reference in stored.references {
            if !paths::exists(self.metadata, self.cache, reference.hash_part())? {
                missing.push(reference);
            }
        }
        Ok(Exported {
            bytes: written,
            missing,
            has_signature,
        })
    }

    /// Writes the NAR file of a path into the target directory, and checks its hash.
    fn nar(&self, stored: &StoredPath) -> anyhow::Result<()> {
        let key = &stored.nar.object_key;
        let file = packs::read_nar(self.metadata, self.objects, &stored.nar)?;
        let mut file = file.context("the file is missing")?;
        let to = self.to.join(key);
        let parent = to.parent().unwrap_or(self.to);
        fs::create_dir_all(parent)?;
        let check = |found: [u8; 32]| {
            ensure!(
                found == stored.nar.file_hash,
                "the file is damaged: run samovar fsck --deep"
            );
            Ok(())
        };
        if self.links {
            check(copy(&mut file, &mut io::sink())?)?;
            fs::remove_file(&to).ok();
            return Ok(fs::hard_link(self.root.join(key), &to)?);
        }
        let mut new = temporary(parent)?;
        check(copy(&mut file, &mut new)?)?;
        new.persist(&to)?;
        Ok(())
    }

    /// Writes the file `name` in the target directory.
    fn write(&self, name: &str, text: &[u8]) -> anyhow::Result<()> {
        let mut file = temporary(self.to)?;
        file.write_all(text)?;
        file.persist(self.to.join(name))?;
        Ok(())
    }
}

/// Creates a temporary file that becomes readable by all users once it has its final name.
fn temporary(directory: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(directory)
}
