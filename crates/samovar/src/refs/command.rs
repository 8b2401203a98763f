//! `samovar ref`: lists the refs of a cache, and changes them.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, ensure};
use clap::{Arg, ArgMatches, Command};
use serde_json::json;

use super::{Expected, Generation, RefName, Refs, Update, Updated, check_snapshot};
use crate::arguments::{job_credentials, json, required, sources};
use crate::credentials::Sources;
use crate::http::{Http, Patience, printable};
use crate::outcome::Failed;
use crate::remote::Remote;
use crate::token::{date, date_and_time};

/// Defines the command `samovar ref`.
pub(crate) fn command() -> Command {
    let sub = |name, about| Command::new(name).about(about).args(job_credentials());
    Command::new("ref")
        .about("Manages refs: names of snapshots of trees, with numbered generations")
        .after_help(
            "A REF is [URL#]NAME[@GENERATION], as in https://cache.example.org#mr/app@3. Without \
             URL#, the cache is that of the variable SAMOVAR_CACHE. Without @GENERATION, the \
             newest generation is meant. Exit code 0: done; 1: there is no such ref, or the cache \
             refused the request; 2: the command line is invalid; 3: the cache is unavailable.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            sub(
                "list",
                "Lists the refs of a cache, with their newest generations",
            )
            .visible_alias("ls")
            .arg(json())
            .arg(
                Arg::new("url")
                    .value_name("URL")
                    .help("URL of the cache [default: $SAMOVAR_CACHE]"),
            ),
        )
        .subcommand(
            sub("log", "Lists the generations of a ref, the newest first")
                .arg(json())
                .arg(required("ref", "REF")),
        )
        .subcommand(
            sub(
                "pin",
                "Keeps a generation of a ref, even if newer ones displace it",
            )
            .arg(required("ref", "REF")),
        )
        .subcommand(
            sub("unpin", "Ends the effect of samovar ref pin")
                .arg(required("ref", "REF@GENERATION")),
        )
        .subcommand(
            sub("remove", "Removes a ref, or one of its generations")
                .visible_alias("rm")
                .after_help(
                    "The collector deletes the snapshots later, unless another ref or pin has \
                     them.",
                )
                .arg(required("ref", "REF")),
        )
}

/// Runs one subcommand of `samovar ref`.
///
/// # Errors
///
/// The cache is unavailable, refuses the request, or has no such ref.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let (command, matches) = matches.subcommand().context("a command is missing")?;
    let sources = sources(matches);
    let usage = |error| Failed::Usage.because(error);
    if command == "list" {
        let url = matches.get_one::<String>("url").cloned();
        let url = url.or_else(|| std::env::var(crate::remote::URL_VARIABLE).ok());
        let url =
            url.with_context(|| format!("give a URL, or set {}", crate::remote::URL_VARIABLE));
        let remote = url.and_then(|url| Remote::of_cache(&url)).map_err(usage)?;
        let refs = open(remote, &sources)?;
        list(&refs, matches.get_flag("json"), out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let text: &String = matches.get_one("ref").context("a ref is missing")?;
    let name = RefName::parse(text).map_err(usage)?;
    let refs = open(name.remote.clone(), &sources)?;
    match command {
        "log" => log(&refs, &name, matches.get_flag("json"), out)?,
        "pin" => pin(&refs, &name, out)?,
        "unpin" => {
            let pin = pin_name(&name).map_err(usage)?;
            let is_removed = refs.remove(&pin, None)?;
            ensure_found(is_removed, || format!("{name} is not pinned"))?;
            writeln!(out, "{name} is no longer pinned")?;
        }
        _ => {
            let is_removed = refs.remove(&name.name, name.generation)?;
            ensure_found(is_removed, || {
                format!("there is no {name}: see samovar ref list")
            })?;
            writeln!(out, "{name} was removed")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the refs of the cache at `remote`.
pub(crate) fn open(mut remote: Remote, sources: &Sources) -> anyhow::Result<Refs> {
    let authorized = sources.authorize(&mut remote);
    authorized.map_err(|error| Failed::Usage.because(error))?;
    Ok(Refs::new(&Http::new(remote, Patience::SETUP)?))
}

fn list(refs: &Refs, is_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let list = refs.list()?;
    if is_json {
        let refs = list.iter().map(|newest| {
            json!({
                "name": newest.name,
                "generation": newest.number,
                "manifest": newest.path.base_name(),
                "created": newest.created_at,
            })
        });
        return Ok(writeln!(
            out,
            "{}",
            json!({ "refs": refs.collect::<Vec<_>>() })
        )?);
    }
    writeln!(out, "{:>10} {:10} NAME", "GENERATION", "CREATED")?;
    for newest in list {
        let created = date(newest.created_at);
        writeln!(out, "{:>10} {created:10} {}", newest.number, newest.name)?;
    }
    Ok(())
}

fn log(refs: &Refs, name: &RefName, is_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut log = refs.log(&name.name)?.generations;
    if let Some(number) = name.generation {
        log.retain(|one| one.number == number);
    }
    if is_json {
        let generations = log.iter().map(|one| {
            json!({
                "generation": one.number,
                "manifest": one.manifest.base_name(),
                "created": one.created_at,
                "expires": one.expires_at,
                "token": one.token,
                "host": one.host,
                "message": one.message,
                "lineage": one.lineage.map(|lineage| lineage.to_string()),
            })
        });
        let generations: Vec<_> = generations.collect();
        let document = json!({ "ref": name.name.as_str(), "generations": generations });
        return Ok(writeln!(out, "{document}")?);
    }
    write_log(&log, |_| "", out)
}

/// Writes generations of a ref as a table. `mark`: returns what precedes the line of a generation;
/// for 0, that of the heading.
pub(crate) fn write_log(
    log: &[Generation],
    mark: impl Fn(u64) -> &'static str,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let (generation, created, host) = ("GENERATION", "CREATED", "HOST");
    writeln!(
        out,
        "{}{generation:>10} {created:20} {host:16} MESSAGE",
        mark(0)
    )?;
    for one in log {
        let host = printable(one.host.as_deref().unwrap_or("-"));
        let message = printable(one.message.as_deref().unwrap_or_default());
        let (mark, created) = (mark(one.number), date_and_time(one.created_at));
        let line = format!("{mark}{:>10} {created:20} {host:16} {message}", one.number);
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn pin(refs: &Refs, name: &RefName, out: &mut dyn Write) -> anyhow::Result<()> {
    let log = refs.log(&name.name)?;
    let generation = log.generation(&name.name, name.generation)?;
    let name = &RefName {
        generation: Some(generation.number),
        ..name.clone()
    };
    let pin = pin_name(name).map_err(|error| Failed::Usage.because(error))?;
    let existing = refs.get(&pin)?.unwrap_or_default();
    if let Some(newest) = existing.generations.first() {
        check_snapshot(&pin, &newest.manifest, "remove that pin first")?;
    }
    let update = Update {
        manifest: &generation.manifest,
        expected: Expected::Any,
        keep: None,
        host: generation.host.as_deref(),
        message: generation.message.as_deref(),
    };
    match refs.put(&pin, &update)? {
        Updated::Done(_) => Ok(writeln!(out, "{name} is kept until samovar ref unpin")?),
        Updated::Conflict(sentence) => Err(Failed::Refused.because(anyhow!(sentence))),
    }
}

/// Returns the name of the pin that keeps a generation of a ref.
fn pin_name(name: &RefName) -> anyhow::Result<samovar_protocol::names::PinName> {
    let generation = name.generation;
    let generation =
        generation.with_context(|| format!("{name} names no generation: append @N"))?;
    let pin = format!("{}@{generation}", name.name).parse();
    pin.map_err(|_error| anyhow!("the name of {name} is too long to pin a generation"))
}

fn ensure_found(is_found: bool, message: impl FnOnce() -> String) -> anyhow::Result<()> {
    ensure!(is_found, Failed::Refused.because(anyhow!(message())));
    Ok(())
}
