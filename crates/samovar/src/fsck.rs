//! `samovar fsck`: checks a storage, and repairs it.
//!
//! The command may run while the server runs.

use std::io::Write;

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command};
use samovar_storage::check::fsck::{Finding, Fsck, Options, Summary};
use samovar_storage::metadata::caches;
use samovar_storage::objects::Objects;
use serde_json::json;

use crate::outcome::Outcome;
use crate::serve;
use crate::size::{counted, human};
use crate::storage::{configured, renderer, signing};
use crate::token::open;

/// Defines the command `samovar fsck`.
pub(crate) fn command() -> Command {
    let command = Command::new("fsck")
        .about("Checks the storage of uploaded paths, and repairs it")
        .after_help(
            "Checks that the file of each uploaded NAR is there and has the right length, that the \
             narinfos in the directory agree with the database, that references exist, and that \
             each file in nar/ belongs to a path. Prints a line for each finding, with the paths \
             that it affects. Exit code 0: no findings; 1: findings, whether or not they were \
             repaired; 2: a file or the storage cannot be read, or the command line is invalid. \
             The server may run meanwhile. To rewrite narinfos, the command needs the signing \
             keys: samovar fsck --config FILE --repair",
        )
        .arg(switch("deep").help("Also read, decompress and hash all files"))
        .arg(switch("repair").help(
            "Record missing and damaged files as lost, so that the next push of their paths \
             replaces them, and rewrite narinfos in the directory",
        ))
        .arg(switch("delete-orphans").help(
            "Delete files in nar/ that have belonged to no path for two days; their names are not \
             used again for a week",
        ))
        .arg(switch("json").help(
            "Print a JSON document for each finding, and a last one with the \
                                 counts",
        ));
    serve::with_options(command, |name| {
        matches!(name, "storage" | "secret-key-files")
    })
}

fn switch(id: &'static str) -> Arg {
    Arg::new(id).long(id).action(ArgAction::SetTrue)
}

/// Runs `samovar fsck`.
///
/// # Errors
///
/// The configuration is invalid, there is no storage, or it cannot be read.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let (config, location) = configured(matches)?;
    let metadata = open(&location, false)?;
    let objects = Objects::open(&location)?;
    let options = Options {
        deep: matches.get_flag("deep"),
        repair: matches.get_flag("repair"),
        delete_orphans: matches.get_flag("delete-orphans"),
    };
    let is_json = matches.get_flag("json");
    let mirrored = config.caches.first().context("a server has a cache")?;
    let signing = signing(mirrored)?;
    let dir = caches::mirrored(&metadata)?.map(|cache| cache.store_dir);
    let render = renderer(&signing, dir.unwrap_or_default());
    let has_keys = !signing.keys.is_empty();
    let mut written = Ok(());
    let mut report = |finding: Finding| {
        let line = match is_json {
            true => as_json(&finding).to_string(),
            false => finding.to_string(),
        };
        if written.is_ok() {
            written = writeln!(out, "{line}");
        }
    };
    let render = has_keys.then_some(&render as _);
    let summary = Fsck::new(&metadata, &objects, options, render, &mut report).run()?;
    written?;
    match is_json {
        true => writeln!(out, "{}", counts(&summary))?,
        false => print(&summary, options, out)?,
    }
    Ok(match (summary.findings, summary.unreadable) {
        (0, 0) => Outcome::Complete,
        (0, _) => Outcome::Unchecked,
        _ => Outcome::Incomplete,
    })
}

fn as_json(finding: &Finding) -> serde_json::Value {
    let paths = finding.paths.iter();
    let paths = paths.map(|(cache, path)| json!({ "cache": cache, "path": path }));
    json!({
        "kind": finding.kind.name(),
        "object": finding.object,
        "reason": finding.reason,
        "repair": finding.repair,
        "paths": paths.collect::<Vec<_>>(),
    })
}

fn counts(summary: &Summary) -> serde_json::Value {
    json!({
        "files": summary.objects,
        "bytes": summary.bytes,
        "paths": summary.paths,
        "findings": summary.findings,
        "unreadable": summary.unreadable,
        "repaired": summary.repaired,
    })
}

fn print(summary: &Summary, options: Options, out: &mut dyn Write) -> anyhow::Result<()> {
    let depth = if options.deep { "contents" } else { "lengths" };
    write!(
        out,
        "{} ({}) of {}, {depth} checked: {}",
        counted(summary.objects, "file"),
        human(summary.bytes),
        counted(summary.paths, "path"),
        counted(summary.findings, "finding")
    )?;
    for (count, what) in [
        (summary.repaired, "repaired"),
        (summary.unreadable, "not readable"),
    ] {
        if count > 0 {
            write!(out, ", {count} {what}")?;
        }
    }
    Ok(writeln!(out)?)
}
