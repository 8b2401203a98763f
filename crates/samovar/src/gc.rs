//! `samovar gc`: collects uploaded paths of a storage that are not kept.
//!
//! The command may run while the server runs. It uses the options of `samovar serve`, so with the
//! same configuration it does what the server does every hour.

use std::collections::HashSet;
use std::io::Write;

use anyhow::bail;
use clap::{Arg, ArgAction, ArgMatches, Command};
use samovar_server::server::{retentions, unserved};
use samovar_storage::gc::{Collector, Retention, Retentions, Rules, Verdict, preview};
use samovar_storage::metadata::{Database, caches, collect, totals};
use samovar_storage::objects::Objects;
use samovar_storage::upkeep::PAUSE;
use samovar_storage::{is_in_use, unused_extras};

use crate::serve;
use crate::size::{counted, human};
use crate::storage;
use crate::token::{date, open};

/// Defines the command `samovar gc`.
pub(crate) fn command() -> Command {
    let command = Command::new("gc")
        .about("Deletes uploaded paths that are not kept, as the server does every hour")
        .after_help(
            "Keeps pinned paths, paths uploaded within the last day, and paths used within \
             uploads.retention, all with their closures. The first run only marks the other paths \
             for deletion; marked paths are still served. A run at least an hour later deletes the \
             marked paths that were not used in between. A run at least an hour after that deletes \
             their files, unless other paths use them. With --now, one run does all of this, but \
             keeps the files that clients have sent, or asked for with their token, within the \
             last hour, because a push may be in progress; without --now, such files are kept for \
             a day. If a server runs, a run with --now waits 15 seconds between marking and \
             deleting, and keeps the paths that clients use meanwhile. Give the configuration of \
             the server: samovar gc --config FILE --dry-run. A run that would delete more than \
             half of the paths, or that finds that the clock may have jumped, changes nothing \
             without --force.",
        )
        .arg(
            Arg::new("dry-run")
                .long("dry-run")
                .action(ArgAction::SetTrue)
                .help("Print the paths that would be deleted, and change nothing"),
        )
        .arg(Arg::new("now").long("now").action(ArgAction::SetTrue).help(
            "Delete at once all paths that are not kept, and unused files sent more than \
                       an hour ago",
        ))
        .arg(
            Arg::new("force")
                .long("force")
                .action(ArgAction::SetTrue)
                .conflicts_with("dry-run")
                .help(
                    "Run although more than half of the paths would be deleted, or the clock may \
                     have jumped",
                ),
        );
    serve::with_options(command, |name| {
        name == "storage" || name.starts_with("uploads.retention")
    })
}

/// Runs `samovar gc`.
///
/// # Errors
///
/// The configuration is invalid, there is no storage, another collector is running, or the storage
/// cannot be used.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let (config, location) = storage::configured(matches)?;
    let metadata = open(&location, false)?;
    let retentions = retentions(&config);
    let is_now = matches.get_flag("now");
    let rules = match is_now {
        true => Rules::default().at_once(),
        false => Rules::default(),
    };
    if matches.get_flag("dry-run") {
        show(&metadata, &rules, &retentions, out)?;
        let keeps = config
            .upstreams
            .iter()
            .any(|upstream| upstream.keep.is_some());
        if !keeps && !config.caches.iter().any(|cache| deletes(&cache.retention)) {
            writeln!(
                out,
                "nothing is deleted, because no retention is set: set uploads.retention in the \
                 file of --config, or give --uploads-retention"
            )?;
        }
        if serve::file(matches).is_some() {
            for (_name, text) in unserved(&config.caches, caches::all(&metadata)?) {
                writeln!(out, "{text}, and not collected")?;
            }
        }
        return Ok(());
    }
    let objects = Objects::open(&location)?;
    let collector = Collector::start(
        location.directory(),
        &metadata,
        &objects,
        rules,
        &retentions,
        // The server notices deleted paths by itself.
        &|_cache, _hash_part| Ok(()),
    )?;
    let Some(collector) = collector else {
        bail!("another collector uses the storage: try again when it has ended");
    };
    let collector = match is_now && is_in_use(location.directory())? {
        true => collector.pausing(PAUSE),
        false => collector,
    };
    let summary = collector.forced(matches.get_flag("force")).run()?;
    let condemned = counted(condemned_count(&metadata)?, "path");
    writeln!(out, "{summary}; waiting for deletion: {condemned}")?;
    let totals = totals::read(&metadata)?;
    if is_now && totals.loose_count > 0 {
        writeln!(
            out,
            "kept for pushes in progress: {} without a path ({}), sent within the last hour",
            counted(totals.loose_count, "file"),
            human(totals.loose_bytes)
        )?;
    }
    Ok(())
}

/// Returns whether paths of a cache can ever be deleted because they are unused.
fn deletes(retention: &Retention) -> bool {
    let mut rules = retention.rules.iter();
    retention.time.is_some() || retention.size.is_some() || rules.any(|rule| rule.time.is_some())
}

/// Returns the number of condemned paths: a later run deletes them unless a client uses them first.
fn condemned_count(metadata: &Database) -> anyhow::Result<usize> {
    Ok(collect::condemned_paths(metadata, i64::MAX)?.len())
}

/// Prints the paths that a run would delete, with the size of their files and the reason.
fn show(
    metadata: &Database,
    rules: &Rules,
    retentions: &Retentions,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let (graph, verdicts) = preview(metadata, rules, retentions)?;
    let kept: HashSet<i64> = graph
        .paths
        .iter()
        .zip(&verdicts)
        .filter(|(_, verdict)| **verdict == Verdict::Keep)
        .map(|(path, _)| path.nar_id)
        .collect();
    let (mut count, mut freed, mut freed_nars) = (0_u64, 0, HashSet::new());
    let of_names = graph.caches.iter().map(|cache| &retentions.of(cache).rules);
    let widths = of_names.flatten().map(|rule| rule.names.to_string().len());
    let width = widths.max().unwrap_or_default().max(9);
    writeln!(
        out,
        "{:>10}  {:10}  {:width$}  {:12}  PATH",
        "SIZE", "LAST USE", "REASON", "CACHE"
    )?;
    for (path, verdict) in graph.paths.iter().zip(&verdicts) {
        if *verdict == Verdict::Keep {
            continue;
        }
        let Some(store_path) = collect::store_path(metadata, path.id)? else {
            continue;
        };
        let cache = graph.caches.get(path.cache as usize);
        let cache = cache.map_or("", String::as_str);
        let rule = retentions.of(cache).rule(store_path.name());
        let reason = match (verdict, rule) {
            (Verdict::OverSize, _) => "size".to_owned(),
            (_, Some(rule)) => rule.names.to_string(),
            (_, None) => "unused".to_owned(),
        };
        count += 1;
        if !kept.contains(&path.nar_id) && freed_nars.insert(path.nar_id) {
            freed += path.file_size;
        }
        writeln!(
            out,
            "{:>10}  {:10}  {reason:width$}  {cache:12}  {}",
            human(path.file_size),
            date(path.used_at),
            store_path.base_name()
        )?;
    }
    let total = graph.paths.len();
    let extras = unused_extras(metadata, rules, retentions)?;
    if !extras.is_empty() {
        let freed = extras.iter().map(|extra| extra.size).sum();
        writeln!(
            out,
            "{} build logs and realisations without a path would be deleted, {} freed",
            extras.len(),
            human(freed)
        )?;
    }
    Ok(writeln!(
        out,
        "{count} of {} would be deleted, {} freed; already condemned: {}",
        counted(total, "path"),
        human(freed),
        counted(condemned_count(metadata)?, "path")
    )?)
}
