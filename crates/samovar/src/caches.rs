//! `samovar cache list` and `delete`: manage the caches of a storage.
//!
//! The commands work on the database of the storage, even while a server runs. Settings of caches
//! are in the configuration file, so there is no command that creates or changes a cache.

use std::io::{self, BufRead as _, IsTerminal as _, Write};

use anyhow::{Context as _, bail, ensure};
use clap::{ArgMatches, Command};
use samovar_server::config::{CacheSettings, Configuration};
use samovar_storage::gc::{Retention, RetentionRule, retention_time};
use samovar_storage::metadata::{CacheSummary, DAY, Database, Freed, caches};
use samovar_storage::objects::Objects;
use samovar_storage::{kept, purge_step};
use serde_json::{Value, json};

use crate::arguments::{json, required, switch};
use crate::serve;
use crate::size::{counted, human};
use crate::storage;
use crate::token::{date, open};

/// Defines the command `samovar cache`.
pub(crate) fn command() -> Command {
    let list = Command::new("list")
        .about("Lists the caches of a storage: paths, bytes stored, pins, tokens, last upload")
        .after_help(
            "TOKENS counts the valid tokens that are restricted to the cache. With --config, the \
             list also shows quota and retention, and whether the configuration names the cache. \
             The paths of a cache that the configuration does not name are stored, but not served.",
        )
        .arg(json());
    let delete = Command::new("delete")
        .about("Deletes a cache: its uploaded paths, its pins, and the tokens for this cache only")
        .after_help(
            "The server may run meanwhile, and answers requests for the deleted paths with 404 at \
             once. The collector later deletes the files that no other cache uses. If the command \
             is interrupted, either nothing has changed, or the cache is hidden: then run the \
             command again, or leave the rest to the collector. Tokens for all caches or for a \
             pattern stay valid. Example: samovar cache delete --storage /srv/samovar nightly",
        )
        .arg(switch("yes").help("Do not ask for confirmation; needed without a terminal"))
        .arg(required("name", "NAME").help(
            "Name of the cache; \"default\" is the cache without a \
                                            name",
        ));
    Command::new("cache")
        .about("Lists the caches of a storage, and deletes caches")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve::with_options(list, |name| name == "storage"))
        .subcommand(serve::with_options(delete, |name| name == "storage"))
}

/// Runs `samovar cache`.
///
/// # Errors
///
/// The configuration is invalid, there is no such storage or cache, the deletion was not confirmed,
/// or the storage cannot be used.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let (name, matches) = matches.subcommand().context("a subcommand is missing")?;
    let (config, location) = storage::configured(matches)?;
    let metadata = open(&location, false)?;
    // Without a configuration file, it is unknown which caches the server names.
    let configured = serve::file(matches).map(|_| &*config.caches);
    if name == "delete" {
        let objects = Objects::open(&location)?;
        return delete(&metadata, &objects, configured, matches, out);
    }
    let mut caches = caches::all(&metadata)?;
    for settings in configured.unwrap_or_default() {
        let name = settings.storage_name();
        if let Err(at) = caches.binary_search_by(|cache| (*cache.name).cmp(name)) {
            caches.insert(
                at,
                CacheSummary {
                    name: name.to_owned(),
                    ..CacheSummary::default()
                },
            );
        }
    }
    let limits = |cache: &CacheSummary| match configured {
        Some(_) => Limits::of(&config, &cache.name),
        None => None,
    };
    if configured.is_some() {
        // Such as the cache of a trial, which nobody uses any more.
        let is_used = |cache: &CacheSummary| {
            cache.path_count + cache.pin_count + cache.token_count > 0 || cache.is_hidden
        };
        caches.retain(|cache| is_used(cache) || limits(cache).is_some());
    }
    if matches.get_flag("json") {
        let caches = caches.iter();
        let caches = caches.map(|cache| document(cache, configured.is_some(), limits(cache)));
        let list = json!({ "caches": caches.collect::<Vec<_>>() });
        return Ok(writeln!(out, "{list:#}")?);
    }
    let width = caches.iter().map(|cache| cache.name.len()).max();
    let width = width.unwrap_or_default().max(12);
    let title = ["NAME", "PATHS", "STORED", "PINS", "TOKENS", "LAST UPLOAD"].map(str::to_owned);
    let more = ["QUOTA", "RETENTION", "CONFIGURED"].map(str::to_owned);
    row(out, width, &title, configured.is_some().then_some(&more))?;
    for cache in &caches {
        let more = configured.map(|_| configured_cells(limits(cache)));
        row(out, width, &cells(cache), more.as_ref())?;
    }
    Ok(())
}

fn row(
    out: &mut dyn Write,
    width: usize,
    [name, paths, stored, pins, tokens, uploaded]: &[String; 6],
    configured: Option<&[String; 3]>,
) -> io::Result<()> {
    write!(
        out,
        "{name:width$} {paths:>9} {stored:>10} {pins:>6} {tokens:>6}  "
    )?;
    match configured {
        Some([quota, retention, is_named]) => {
            writeln!(out, "{uploaded:11} {quota:>10}  {retention:20} {is_named}")
        }
        None => writeln!(out, "{uploaded}"),
    }
}

fn cells(cache: &CacheSummary) -> [String; 6] {
    let uploaded = match (cache.is_hidden, cache.uploaded_at) {
        (true, _) => "deleting".to_owned(),
        (false, Some(at)) => date(at),
        (false, None) => "-".to_owned(),
    };
    [
        cache.name.clone(),
        cache.path_count.to_string(),
        human(cache.used_bytes),
        cache.pin_count.to_string(),
        cache.token_count.to_string(),
        uploaded,
    ]
}

/// What the configuration states about a cache of the storage.
struct Limits {
    quota: Option<u64>,
    retention: Retention,
}

impl Limits {
    /// Returns the limits of a cache, or of the paths of an upstream; `None` if the configuration
    /// does not name it.
    fn of(config: &Configuration, name: &str) -> Option<Self> {
        let mut caches = config.caches.iter();
        let of_cache = caches.find(|cache| cache.storage_name() == name);
        let mut upstreams = config.upstreams.iter();
        let of_upstream = || {
            let one = upstreams.find(|one| kept::cache_name(&one.name) == name)?;
            Some(Self {
                quota: Some(one.keep?),
                retention: kept::retention(one.keep),
            })
        };
        let of_cache = of_cache.map(|cache| Self {
            quota: cache.quota,
            retention: cache.retention.clone(),
        });
        of_cache.or_else(of_upstream)
    }
}

/// Returns quota and retention of a cache, and whether the configuration names it.
fn configured_cells(limits: Option<Limits>) -> [String; 3] {
    let Some(limits) = limits else {
        return ["-", "for ever", "no: not served"].map(str::to_owned);
    };
    let Retention { time, rules, size } = &limits.retention;
    let mut retention = match (time.map(retention_time), size) {
        (None, None) => "for ever".to_owned(),
        (Some(time), None) => time,
        (None, Some(size)) => human(*size),
        (Some(time), Some(size)) => format!("{time}, {}", human(*size)),
    };
    if !rules.is_empty() {
        retention.push_str(&format!(", {} rules", rules.len()));
    }
    let quota = limits.quota.map_or_else(|| "-".to_owned(), human);
    [quota, retention, "yes".to_owned()]
}

fn document(cache: &CacheSummary, is_known: bool, limits: Option<Limits>) -> Value {
    let mut document = json!({
        "name": cache.name,
        "paths": cache.path_count,
        "fileSize": cache.used_bytes,
        "pins": cache.pin_count,
        "tokens": cache.token_count,
        "lastUpload": cache.uploaded_at,
        "deleting": cache.is_hidden,
    });
    if is_known {
        document["configured"] = limits.is_some().into();
        document["quota"] = limits.as_ref().and_then(|limits| limits.quota).into();
        let retention = limits.as_ref().map(|limits| &limits.retention);
        let time = retention.and_then(|retention| retention.time);
        document["retentionDays"] = days(time).into();
        document["retentionSeconds"] = time.into();
        let rules = retention.map(|retention| retention.rules.iter());
        let rule = |rule: &RetentionRule| {
            let names = rule.names.to_string();
            json!({ "names": names, "days": days(rule.time), "seconds": rule.time })
        };
        document["retentionRules"] = rules
            .map(|rules| rules.map(rule).collect::<Vec<_>>())
            .into();
        document["retentionSize"] = retention.and_then(|retention| retention.size).into();
    }
    document
}

/// Returns a retention time in days, or `None` if it is not in whole days.
fn days(time: Option<i64>) -> Option<i64> {
    time.filter(|time| time % DAY == 0).map(|time| time / DAY)
}

fn delete(
    metadata: &Database,
    objects: &Objects,
    configured: Option<&[CacheSettings]>,
    matches: &ArgMatches,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let name: &String = matches.get_one("name").context("a name is missing")?;
    let caches = caches::all(metadata)?;
    let cache = caches.iter().find(|cache| cache.name == *name);
    let cache = cache
        .with_context(|| format!("the storage has no cache {name:?}; see samovar cache list"))?;
    let freed = caches::own_nars(metadata, name)?;
    if !matches.get_flag("yes") {
        confirm(cache)?;
    }
    let Some(deleted) = caches::delete(metadata, name)? else {
        bail!("the cache {name:?} was deleted by another command");
    };
    writeln!(
        out,
        "deleted the cache {name:?}: {}, {}; {} revoked",
        counted(cache.path_count, "path"),
        counted(deleted.pin_count, "pin"),
        counted(deleted.token_count, "token")
    )?;
    if cache.path_count > 0 {
        announce(&freed, out)?;
    }
    let mut configured = configured.unwrap_or_default().iter();
    if configured.any(|settings| settings.storage_name() == name) {
        writeln!(
            out,
            "the configuration still names this cache: remove it there, unless clients are to push \
             to it again"
        )?;
    }
    // The cache is hidden by now, and deleting a million rows takes minutes.
    out.flush()?;
    while purge_step(metadata, objects).context(
        "the cache is deleted and no longer served, but the database still has some of its rows: \
         run the command again, or leave these rows to the collector",
    )? {}
    Ok(())
}

/// Prints what the collector will free, and when.
fn announce(freed: &Freed, out: &mut dyn Write) -> io::Result<()> {
    match freed.nar_count {
        0 => writeln!(out, "no files are freed: other caches use them"),
        count => writeln!(
            out,
            "the collector frees {} ({} that no other cache uses) within 3 hours, but keeps each \
             file for a day after its upload",
            human(freed.file_bytes),
            counted(count, "file")
        ),
    }
}

/// Asks the user on the terminal whether to delete a cache. Fails unless the answer is yes.
fn confirm(cache: &CacheSummary) -> anyhow::Result<()> {
    let input = io::stdin();
    ensure!(
        input.is_terminal(),
        "a cache is not deleted without confirmation: run this in a terminal, or give --yes"
    );
    // Ignore errors: standard error may be closed, and the user can type the answer nevertheless.
    write!(
        io::stderr(),
        "The cache {:?} has {} ({}), {}, and {} of its own.\nDelete it? It cannot be restored. \
         [y/N] ",
        cache.name,
        counted(cache.path_count, "path"),
        human(cache.used_bytes),
        counted(cache.pin_count, "pin"),
        counted(cache.token_count, "token")
    )
    .ok();
    let mut answer = String::new();
    input.lock().read_line(&mut answer)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => bail!("the deletion was not confirmed; nothing was changed"),
    }
}
