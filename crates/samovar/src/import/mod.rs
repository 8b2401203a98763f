//! `samovar import`: publishes the paths of other caches in a storage.

mod order;
mod source;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail, ensure};
use clap::{Arg, ArgAction, ArgMatches, Command};
use samovar_cache::Signing;
use samovar_nix::narinfo::NarInfo;
use samovar_nix::{HashPart, PublicKey, StoreDir, StorePath};
use samovar_protocol::names::FileName;
use samovar_server::config::Configuration;
use samovar_storage::backup::{self, Restored};
use samovar_storage::import::{self, Found, Remains};
use samovar_storage::metadata::{Published, StoredPath};
use samovar_storage::token::Token;
use samovar_storage::{Location, PutError, Refusal, Storage, StorageError, StoredCache, narinfo};
use samovar_store::{Settings, Store};

use crate::outcome::{Failed, Outcome};
use crate::serve;
use crate::size::counted;
use crate::storage::{announce_new, become_owner, configured, make_for_user, renderer, signing};
use crate::trust::{is_signed, keys};
use source::Source;

/// Maximum number of NARs that are verified or downloaded at the same time.
const AT_ONCE_MAX: usize = 8;

/// Number of paths between two progress reports.
const REPORT_COUNT: usize = 1000;

/// Defines the command `samovar import`.
pub(crate) fn command() -> Command {
    let command = Command::new("import")
        .about("Verifies the paths of another cache and publishes them in a storage")
        .after_help(
            "Without --from, the paths whose narinfos are in the storage directory are published, \
             and no file is copied: so a directory that was written by nix copy --to file://DIR \
             becomes a storage. Paths that the storage has are skipped; an import that was \
             interrupted goes on when it is repeated. Prints a line for each path that cannot be \
             imported. Exit code 0: all paths were imported; 1: a path was not imported, or the \
             source refused the request; 2: the command line or the configuration is invalid; 3: \
             the source or the storage is unavailable. Give the configuration of the server, for \
             its signing keys: samovar import --config FILE --from https://cache.example.org \
             ./result",
        )
        .arg(
            Arg::new("from")
                .long("from")
                .value_name("SOURCE")
                .action(ArgAction::Append)
                .help(
                    "Cache to read: a directory, file:///DIRECTORY, or the URL of a binary cache \
                     over HTTP; if repeated, a path comes from the first cache that has it \
                     [default: the storage directory]",
                ),
        )
        .arg(
            Arg::new("link")
                .long("link")
                .action(ArgAction::SetTrue)
                .requires("from")
                .help(
                    "Link the files of a directory on the same file system, do not copy them. \
                     Files that the owner of the storage may not read are copied",
                ),
        )
        .arg(
            Arg::new("rebuild")
                .long("rebuild")
                .action(ArgAction::SetTrue)
                .conflicts_with("from")
                .help(
                    "Make a new database from the narinfos beside the files of the storage and the \
                     newest daily backup, if the database was lost. Paths are published even if \
                     references are missing. Until the command has ended, nothing else can use the \
                     storage; after an interruption, repeat the command to continue",
                ),
        )
        .arg(
            Arg::new("cache")
                .long("cache")
                .value_name("NAME")
                .help("Cache that gets the paths [default: the first one by name]"),
        )
        .arg(
            Arg::new("trusted-public-keys")
                .long("trusted-public-keys")
                .value_name("KEYS")
                .action(ArgAction::Append)
                .value_parser(keys)
                .help("Import only paths that one of these keys, separated by spaces, has signed"),
        )
        .arg(
            Arg::new("paths")
                .value_name("PATH")
                .num_args(0..)
                .help("Paths to import, with their closures [default: all paths of a directory]"),
        );
    serve::with_options(command, |name| name == "storage")
}

/// Runs `samovar import`.
///
/// # Errors
///
/// The configuration is invalid, or the source or the storage cannot be used.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let (config, location) = configured(matches)?;
    let root = location.directory();
    let rebuilds = matches.get_flag("rebuild");
    let from: Vec<&String> = matches.get_many("from").into_iter().flatten().collect();
    let paths = matches.get_many("paths").into_iter().flatten();
    let paths: Vec<String> = paths.cloned().collect();
    make_for_user(root, &config, from.is_empty())?;
    become_owner(root)?;
    let source = source(&location, &from, matches)?;
    if !rebuilds {
        announce_new(&location)?;
    }
    let failed = || format!("cannot use the storage {root:?}");
    let storage = open(&location, source.store_dir(), rebuilds, from.is_empty());
    let storage = storage.with_context(failed)?;
    let (cache, signing) = cache_of(&storage, &config, matches.get_one("cache"), from.is_empty())?;
    let (found, mut failures) = source.find(&paths)?;
    let keys = matches.get_many::<Vec<PublicKey>>("trusted-public-keys");
    let keys: Vec<&PublicKey> = keys.into_iter().flatten().flatten().collect();
    let (infos, untrusted): (Vec<NarInfo>, Vec<NarInfo>) = found
        .into_iter()
        .partition(|info| is_signed(&keys, info, source.store_dir()));
    failures.extend(
        untrusted
            .into_iter()
            .map(|info| Failure::new(&info, source.store_dir(), "no trusted key has signed it")),
    );
    let render = renderer(&signing, source.store_dir().clone());
    let import = Import {
        cache: &cache,
        token: import::token(&storage)?,
        source: &source,
        // A rebuild needs no store: its paths had their references when they were first published.
        store: if rebuilds { None } else { live_store(&config) },
        accepts_missing: rebuilds,
        render: &render,
    };
    let mut counts = Counts {
        failed: failures.len(),
        ..Counts::default()
    };
    for failure in failures {
        writeln!(out, "{failure}")?;
    }
    let backup = match rebuilds {
        true => Some(import.rebuild(&storage, &infos, &mut counts, out)?),
        false => {
            import.all(&infos, &mut counts, out)?;
            None
        }
    };
    let Counts {
        imported,
        known,
        failed,
    } = counts;
    writeln!(
        out,
        "{} imported, {known} known, {failed} not imported",
        counted(imported, "path")
    )?;
    advise(&storage, backup);
    Ok(match failed {
        0 => Outcome::Complete,
        _ => Outcome::Incomplete,
    })
}

/// Opens the caches to read: those that `--from` names, or the storage itself.
fn source(location: &Location, from: &[&String], matches: &ArgMatches) -> anyhow::Result<Source> {
    let root = location.directory();
    if !from.is_empty() || location.bucket().is_none() {
        return Source::open(from, root, matches.get_flag("link"));
    }
    ensure!(
        matches.get_flag("rebuild"),
        Failed::Usage.because(anyhow!(
            "the storage is in a bucket: name the cache to import with --from; if the database of \
             the bucket is lost, use --rebuild"
        ))
    );
    let remains = Remains::open(location)?.context("the storage has a bucket")?;
    Source::of_remains(remains, root)
}

/// Reports what a rebuild has found in the bucket and cannot use.
fn report(found: &Found, out: &mut dyn Write) -> anyhow::Result<()> {
    for (key, reason) in &found.damaged {
        writeln!(out, "not read {key}: {reason}")?;
    }
    if found.unnamed_count > 0 {
        let text = format!(
            "samovar: {} in the bucket: no narinfo beside them or in the newest backup names them. \
             They stay; push their paths again, or delete them with samovar fsck --delete-orphans",
            counted(found.unnamed_count, "NAR file")
        );
        // Ignore errors: standard error may be closed.
        writeln!(io::stderr(), "{text}").ok();
    }
    Ok(())
}

/// Opens the storage. `is_in_place`: the paths are in its own directory.
fn open(
    location: &Location,
    store_dir: &StoreDir,
    rebuilds: bool,
    is_in_place: bool,
) -> Result<Arc<Storage>, StorageError> {
    let root = location.directory();
    if rebuilds {
        import::begin_rebuild(location)?;
        return import::open_for_rebuild(location, store_dir);
    }
    if is_in_place {
        import::begin(root)?;
    }
    Storage::open(location, store_dir)
}

/// Returns the cache into which the paths are imported, and its signing keys.
fn cache_of(
    storage: &Arc<Storage>,
    config: &Configuration,
    name: Option<&String>,
    is_in_place: bool,
) -> anyhow::Result<(StoredCache, Signing)> {
    let first = config.caches.first().context("a server has a cache")?;
    // Take the name from the storage, not from the configuration: the first cache there may be
    // another one than when the narinfos were written.
    let mirrored = import::mirrored_name(storage)?;
    let mirrored = mirrored.unwrap_or_else(|| first.storage_name().to_owned());
    let name = name.unwrap_or(&mirrored);
    if is_in_place && *name != mirrored {
        return Err(Failed::Usage.because(anyhow!(
            "the narinfos in the directory are those of the cache {mirrored:?}: leave out --cache"
        )));
    }
    let settings = config
        .caches
        .iter()
        .find(|cache| cache.storage_name() == name);
    if settings.is_none() && !is_in_place {
        return Err(Failed::Usage.because(anyhow!(
            "the configuration has no cache {name:?}, so its paths would not be served: correct \
             --cache, or add [caches.{name}]"
        )));
    }
    let signing = signing(settings.unwrap_or(first))?;
    Ok((storage.cache(name, *name == mirrored)?, signing))
}

/// Opens the server's Nix store, to whose paths uploaded paths may refer. Returns `None` if the
/// store cannot be opened.
fn live_store(config: &Configuration) -> Option<Box<dyn Store>> {
    let settings = Settings::from_process().ok()?;
    samovar_store::open(config.store.as_deref(), &settings).ok()
}

/// Prints on standard error what the operator has to do after the import. `backup`: `None` unless
/// the database was rebuilt; then the backup from which tokens, pins and last uses were restored,
/// if there was one.
fn advise(storage: &Storage, backup: Option<Option<Restored>>) {
    let mut advice = Vec::new();
    match backup {
        Some(Some(Restored { key, unreadable })) => {
            let older = |reason| format!("a newer backup cannot be used: {reason}");
            advice.extend(unreadable.into_iter().map(older));
            advice.push(format!(
                "tokens, pins, last uses and the paths of other caches were restored from the \
                 backup {key}: repeat later changes, such as revocations"
            ));
        }
        Some(None) => advice.push(
            "there is no backup of tokens, pins and last uses: create the tokens and pins again; \
             push the paths of other caches again, because no narinfo names them"
                .to_owned(),
        ),
        None => {}
    }
    if !storage.is_alone() {
        let reload = "a server uses the storage: reload it (HUP), so that it serves the paths";
        advice.push(reload.to_owned());
    }
    for line in advice {
        // Ignore errors: standard error may be closed.
        writeln!(io::stderr(), "samovar: {line}").ok();
    }
}

/// A path that was not imported. `Display` prints it in one line.
struct Failure {
    /// Store path, or file name of the narinfo.
    name: String,
    reason: String,
}

impl Failure {
    fn new(info: &NarInfo, dir: &StoreDir, reason: impl fmt::Display) -> Self {
        Self {
            name: info.store_path.full(dir),
            reason: reason.to_string(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not imported {}: {}", self.name, self.reason)
    }
}

#[derive(Default)]
struct Counts {
    imported: usize,
    known: usize,
    failed: usize,
}

/// An import of paths into one cache.
struct Import<'a> {
    cache: &'a StoredCache,
    token: Token,
    source: &'a Source,
    /// The Nix store of the server, to whose paths imported paths may refer.
    store: Option<Box<dyn Store>>,
    /// Whether a path is published even if the cache lacks some of its references.
    accepts_missing: bool,
    render: &'a (dyn Fn(&StoredPath) -> Vec<u8> + Sync),
}

impl Import<'_> {
    /// Imports these paths. Each must come after its references.
    fn all(
        &self,
        infos: &[NarInfo],
        counts: &mut Counts,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        let place = |(at, info): (usize, &NarInfo)| (info.store_path.hash_part(), at);
        let places: HashMap<HashPart, usize> = infos.iter().enumerate().map(place).collect();
        let before = |at: usize| {
            let references = infos[at].references.iter();
            let places = references.filter_map(|one| places.get(&one.hash_part()).copied());
            places.collect::<Vec<usize>>()
        };
        let work = |at: usize, wait: &dyn Fn()| {
            // Several threads verify NARs at once, but `wait` makes each path wait for its
            // references before it is published.
            let received = self.receive(&infos[at]);
            wait();
            self.publish(&infos[at], received?)
        };
        let mut done = 0;
        order::run(infos.len(), AT_ONCE_MAX, &before, &work, |at, outcome| {
            match outcome {
                Ok(true) => counts.imported += 1,
                Ok(false) => counts.known += 1,
                Err(error) => {
                    counts.failed += 1;
                    let dir = self.source.store_dir();
                    let failure = Failure::new(&infos[at], dir, format!("{error:#}"));
                    writeln!(out, "{failure}")?;
                }
            }
            done += 1;
            if done % REPORT_COUNT == 0 {
                writeln!(io::stderr(), "samovar: {done} of {} paths", infos.len()).ok();
            }
            Ok(())
        })
    }

    /// Imports these paths and those in the newest backup, restores what else is in the backup, and
    /// ends the rebuild. Returns the backup, if there is one.
    fn rebuild(
        &self,
        storage: &Arc<Storage>,
        infos: &[NarInfo],
        counts: &mut Counts,
        out: &mut dyn Write,
    ) -> anyhow::Result<Option<Restored>> {
        let mut backed_up = None;
        if let Some(remains) = self.source.remains() {
            // Each pack is read once, so all files in it that are needed must be known.
            let of_backup = backed_up.insert(self.backed_up(storage)?);
            let all = infos.iter().chain(of_backup.values().flatten());
            report(&remains.record_packed(storage, &self.token, all)?, out)?;
        }
        self.all(infos, counts, out)?;
        let backed_up = match backed_up {
            Some(backed_up) => backed_up,
            None => self.backed_up(storage)?,
        };
        self.all_backed_up(storage, &backed_up, counts, out)?;
        let restored = backup::restore(storage)?;
        import::end_rebuild(storage).context("cannot end the rebuild")?;
        Ok(restored)
    }

    /// Returns the narinfos of the caches whose narinfos are not beside the files, from the newest
    /// backup, by the names of the caches.
    fn backed_up(&self, storage: &Arc<Storage>) -> anyhow::Result<BTreeMap<String, Vec<NarInfo>>> {
        let is_mirrored = import::is_mirrored(self.cache);
        let dir = self.source.store_dir();
        let mut caches: BTreeMap<String, Vec<NarInfo>> = BTreeMap::new();
        for (cache, text) in backup::narinfos(storage)? {
            // The mirrored cache may have been another one at the time of the backup.
            if cache != self.cache.name() || !is_mirrored {
                let info = NarInfo::parse(dir, text.as_bytes());
                let info = info.with_context(|| format!("the backup of the cache {cache:?}"))?;
                caches.entry(cache).or_default().push(info);
            }
        }
        Ok(caches)
    }

    /// Imports paths of the caches with these names.
    fn all_backed_up(
        &self,
        storage: &Arc<Storage>,
        caches: &BTreeMap<String, Vec<NarInfo>>,
        counts: &mut Counts,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        for (name, infos) in caches {
            let import = Import {
                cache: &storage.cache(name, false)?,
                token: self.token.clone(),
                source: self.source,
                store: None,
                accepts_missing: true,
                // The narinfos of these caches are not written into the directory.
                render: self.render,
            };
            import.all(infos, counts, out)?;
        }
        Ok(())
    }

    /// Verifies and stores the NAR of a path. Returns the name of the NAR file, or `None` if the
    /// cache already has the path.
    fn receive(&self, info: &NarInfo) -> anyhow::Result<Option<FileName>> {
        if import::has(self.cache, &info.store_path, &info.nar_hash)? {
            return Ok(None);
        }
        let received = self.source.receive(self.cache, &self.token, info);
        received.map(Some).map_err(|error| match error.downcast() {
            Ok(PutError::File(refusal)) => anyhow!(
                "its file {} is damaged ({}): replace the file, and import the path again",
                info.url,
                refusal.fault()
            ),
            Ok(error) => error.into(),
            Err(error) => error,
        })
    }

    /// Publishes a path whose NAR is stored. Returns false if the cache already had the path.
    fn publish(&self, info: &NarInfo, name: Option<FileName>) -> anyhow::Result<bool> {
        let Some(name) = name else {
            return Ok(false);
        };
        let stored = NarInfo {
            url: format!("nar/{name}"),
            // The storage computes these from the stored file.
            file_hash: None,
            file_size: None,
            ..info.clone()
        };
        let mut text = Vec::new();
        stored.write(self.source.store_dir(), &mut text)?;
        let is_elsewhere = |path: &StorePath| self.accepts_missing || self.is_in_store(path);
        let render = |path: &StoredPath| (self.render)(path);
        let hash_part = info.store_path.hash_part();
        let outcome = narinfo::put(
            self.cache,
            &self.token,
            hash_part,
            &text,
            &is_elsewhere,
            &render,
        );
        match outcome {
            Ok((_, Published::Conflict)) => {
                bail!("the cache has this path with another NAR, which stays")
            }
            Ok(_) => Ok(true),
            Err(PutError::Narinfo(refusal)) => match *refusal {
                Refusal::MissingReference { reference, .. } => bail!(
                    "its reference {} was not imported, and neither the cache nor the Nix store \
                     has it",
                    reference.display(self.source.store_dir())
                ),
                other => bail!("{}", other.fault()),
            },
            Err(error) => Err(error.into()),
        }
    }

    fn is_in_store(&self, path: &StorePath) -> bool {
        let found = |store: &dyn Store| store.lookup(path.hash_part()).ok().flatten();
        let found = self.store.as_deref().and_then(found);
        found.is_some_and(|info| info.path == *path)
    }
}
