//! `samovar storage copy`: copies a storage into another one.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use clap::{ArgMatches, Command};
use samovar_nix::StoreDir;
use samovar_server::config::{Configuration, Settings};
use samovar_storage::copy::{self, Origin, Progress, Report};
use samovar_storage::{Location, RootKind, Storage, StorageError, is_in_use};

use crate::arguments::required;
use crate::outcome::{Failed, Outcome};
use crate::serve;
use crate::size::{counted, human};
use crate::storage::{announce_new, become_owner, location, make_for_user, note};

/// Maximum number of NARs that are copied at the same time. More than cores, because an object
/// store answers late.
const AT_ONCE_MAX: usize = 16;

/// Time between two reports of progress.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// Defines the command `samovar storage`.
pub(crate) fn command() -> Command {
    let copy = Command::new("copy")
        .about("Copies all paths, build logs, pins and tokens of a storage into another one")
        .after_help(
            "The storages may keep their data in different places: one in a directory, the other \
             in a bucket and a PostgreSQL database. Each NAR is verified while it is copied, and \
             keeps its file. What the target has is skipped: an interrupted copy continues when \
             the command is repeated. The server of the source may run meanwhile. To move a \
             storage, copy it while the server runs, stop the server, repeat the command, which \
             copies what was uploaded meanwhile, and start the server with the new configuration. \
             Prints a line for each path that is not copied. Exit code 0: everything was copied; \
             1: something was not; 2: the command line or a configuration is invalid; 3: a \
             storage is unavailable. Example: samovar storage copy /srv/samovar new.toml",
        )
        .arg(required("from", "FROM").help(
            "Storage to copy: the configuration file of its server, or the directory of a storage \
             without a bucket",
        ))
        .arg(
            required("to", "TO")
                .help("Storage that gets the copy, in the same form. A new directory is created"),
        );
    Command::new("storage")
        .about("Copies storages")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(copy)
}

/// Runs `samovar storage`.
///
/// # Errors
///
/// A configuration is invalid, or a storage cannot be used.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let (_, matches) = matches.subcommand().context("a subcommand is missing")?;
    let place = |name: &str| {
        let text: &String = matches.get_one(name).context("a storage is missing")?;
        Place::of(Path::new(text))
    };
    let (from, to) = (place("from")?, place("to")?);
    from.check_exists()?;
    make_for_user(to.location.directory(), &to.config, false)?;
    become_owner(to.location.directory())?;
    announce_new(&to.location)?;
    let origin = Origin::open(&from.location);
    let origin = origin.with_context(|| format!("cannot read the storage {}", from.shown))?;
    let was_in_use = is_in_use(from.location.directory()).unwrap_or(true);
    let failed = || format!("cannot use the storage {}", to.shown);
    let store_dir = origin.store_dir()?.unwrap_or_else(StoreDir::default);
    let storage = Storage::open(&to.location, &store_dir).with_context(failed)?;
    let progress = run_copy(&origin, &storage, out)
        .with_context(|| format!("cannot copy {} to {}", from.shown, to.shown))?;
    writeln!(out, "{}", summary(&progress))?;
    if was_in_use {
        note(
            "samovar: a server uses the source: to copy what is uploaded meanwhile, stop it and \
             repeat the command",
        );
    }
    if !storage.is_alone() {
        note("samovar: a server uses the target: reload it (HUP), so that it serves the paths");
    }
    Ok(match progress.failed_count {
        0 => Outcome::Complete,
        _ => Outcome::Incomplete,
    })
}

/// Copies, and prints faults and progress.
fn run_copy(
    origin: &Origin,
    storage: &std::sync::Arc<Storage>,
    out: &mut dyn Write,
) -> Result<Progress, StorageError> {
    let mut reported_at = Instant::now();
    let failed = |error| StorageError::File {
        action: "cannot write to",
        path: "standard output".to_owned(),
        error,
    };
    copy::run(origin, storage, AT_ONCE_MAX, &mut |report| match report {
        Report::Fault(fault) => writeln!(out, "{fault}").map_err(failed),
        Report::Progress(progress) => {
            if reported_at.elapsed() >= REPORT_INTERVAL {
                reported_at = Instant::now();
                // Ignore errors: standard error may be closed.
                writeln!(io::stderr(), "samovar: {}", so_far(progress)).ok();
            }
            Ok(())
        }
    })
}

fn so_far(progress: &Progress) -> String {
    format!(
        "{}: {} copied with {}, {} known, {} not copied",
        counted(progress.path_count, "path"),
        progress.copied_count,
        human(progress.nar_bytes),
        progress.known_count,
        progress.failed_count
    )
}

fn summary(progress: &Progress) -> String {
    format!(
        "{}\n{} and {} sent; {}, {} and {} are up to date",
        so_far(progress),
        counted(progress.nar_count, "NAR"),
        counted(progress.log_count, "build log"),
        counted(progress.realisation_count, "realisation"),
        counted(progress.pin_count, "pin"),
        counted(progress.token_count, "token")
    )
}

/// A storage that the command line names.
struct Place {
    location: Location,
    config: Configuration,
    /// What the command line has, for messages.
    shown: String,
}

impl Place {
    /// Returns the storage of a configuration file or of a directory.
    fn of(path: &Path) -> anyhow::Result<Self> {
        let shown = format!("{path:?}");
        let is_file = path.extension().is_some_and(|end| end == "toml") || path.is_file();
        if !is_file {
            let config = Configuration {
                storage: Some(PathBuf::from(path)),
                ..Configuration::default()
            };
            return Ok(Self {
                location: location(&config)?,
                config,
                shown,
            });
        }
        let mut settings = Settings::default();
        settings.add_file(path)?;
        let config = serve::configuration(&settings)?;
        let none = || Failed::Usage.because(anyhow!("{shown} has no storage"));
        ensure!(config.storage.is_some(), none());
        Ok(Self {
            location: location(&config)?,
            config,
            shown,
        })
    }

    /// Refuses a directory that is no storage: opening it would make one.
    fn check_exists(&self) -> anyhow::Result<()> {
        ensure!(
            RootKind::at(&self.location)? == RootKind::Storage,
            Failed::Usage.because(anyhow!("{} is no storage", self.shown))
        );
        Ok(())
    }
}
