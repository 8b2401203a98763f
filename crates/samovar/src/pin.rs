//! `samovar pin add`, `list` and `remove`: manage pins, which protect the paths of a storage from
//! the collector.
//!
//! The commands write to the database of the storage, even while a server runs. Once `add` has
//! returned, the path and its closure are not deleted.

use std::io::{self, Write};

use anyhow::{Context as _, bail};
use clap::{Arg, ArgMatches, Command, value_parser};
use samovar_protocol::names::PinName;
use samovar_protocol::pins::{Condition, Tags};
use samovar_storage::metadata::{CacheRow, Database, NewPin, Pin, Pinned, caches, paths, pins};
use samovar_storage::token::now;

use crate::arguments::switch;
use crate::refs::check_successor;
use crate::roots::{self, Root};
use crate::token::{date, lifetime, location, open, storage};

/// Defines the command `samovar pin`.
pub(crate) fn command() -> Command {
    let add = Command::new("add")
        .about("Pins an uploaded path: the collector keeps it with its closure")
        .after_help(
            "A path under the name of an existing pin is a new generation of that pin. Example: \
             samovar pin add --storage /srv/samovar app-main --keep 5 --expires 90d ./result",
        )
        .args(storage())
        .arg(cache())
        .arg(name())
        .arg(
            Arg::new("path")
                .value_name("PATH")
                .required(true)
                .help("Store path, base name, hash part, or a link to a store path"),
        )
        .arg(
            Arg::new("keep")
                .long("keep")
                .value_name("NUMBER")
                .value_parser(value_parser!(u32).range(1..))
                .help(
                    "Keep only this number of newest generations, including the new one \
                       [default: all]",
                ),
        )
        .arg(
            Arg::new("expires")
                .long("expires")
                .value_name("TIME")
                .value_parser(lifetime)
                .help("Time until the generation expires, as 12h, 90d or 52w [default: never]"),
        )
        .arg(switch("force").help("Pin the path even if NAME is a ref of snapshots"));
    Command::new("pin")
        .about("Manages pins: names of uploaded paths that the collector keeps")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(add)
        .subcommand(
            Command::new("list")
                .about("Lists the pins of a storage, with all generations")
                .args(storage()),
        )
        .subcommand(
            Command::new("remove")
                .about("Removes all generations of a pin; the collector deletes unused paths later")
                .args(storage())
                .arg(cache())
                .arg(name()),
        )
}

fn cache() -> Arg {
    Arg::new("cache")
        .long("cache")
        .value_name("NAME")
        .default_value("default")
        .help("Cache of the path; \"default\" is the cache without a name")
}

fn name() -> Arg {
    Arg::new("name")
        .value_name("NAME")
        .required(true)
        .help("Name of the pin")
}

/// Runs `samovar pin`.
///
/// # Errors
///
/// There is no such storage, path or pin, or the database cannot be used.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let (name, matches) = matches.subcommand().context("a subcommand is missing")?;
    let metadata = open(&location(matches)?, false)?;
    match name {
        "add" => add(&metadata, matches, out),
        "remove" => remove(&metadata, matches, out),
        _ => list(&metadata, out),
    }
}

fn text<'a>(matches: &'a ArgMatches, id: &str) -> anyhow::Result<&'a String> {
    matches
        .get_one(id)
        .with_context(|| format!("{id} is missing"))
}

fn add(metadata: &Database, matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let (cache, path) = (text(matches, "cache")?, text(matches, "path")?);
    let name: PinName = text(matches, "name")?.parse()?;
    name.check_new()?;
    let row = caches::find(metadata, cache)?;
    let dir = row.as_ref().map(|row| row.store_dir.clone());
    let dir = dir.unwrap_or_default();
    let roots = roots::read(std::slice::from_ref(path), &dir, io::empty())?;
    let root = roots.first().context("PATH is missing")?;
    let condition = match &row {
        Some(row) => condition(metadata, row, &name, root, matches.get_flag("force"))?,
        None => Condition::default(),
    };
    let lifetime: Option<&i64> = matches.get_one("expires");
    let new = NewPin {
        cache: cache.clone(),
        name: name.clone(),
        hash_part: root.hash_part,
        keep: matches.get_one("keep").copied(),
        expires_at: lifetime.map(|seconds| now().saturating_add(*seconds)),
        token: None,
        host: None,
        message: None,
        condition,
    };
    match pins::add(metadata, &new)? {
        Pinned::Done(pin) => Ok(writeln!(
            out,
            "{name} generation {} is {}",
            pin.generation,
            pin.path.display(&dir)
        )?),
        Pinned::Changed(_) => {
            bail!("a client has changed the pin {name} at the same time: run the command again")
        }
        _ => bail!(
            "the cache {cache:?} has no path {}: upload it first, or name its cache with --cache",
            root.text
        ),
    }
}

/// Returns the state of the pin in which the path may be pinned.
fn condition(
    metadata: &Database,
    cache: &CacheRow,
    name: &PinName,
    root: &Root,
    is_forced: bool,
) -> anyhow::Result<Condition> {
    let Some(stored) = paths::peek(metadata, cache.id, root.hash_part)? else {
        return Ok(Condition::default());
    };
    if let Some(text) = root.misnamed(&stored.path, &cache.store_dir, "the cache") {
        bail!(text);
    }
    if is_forced {
        return Ok(Condition::default());
    }
    let newest = pins::generations(metadata, cache.id, name, i64::MAX, 1)?;
    let Some(newest) = newest.first() else {
        return Ok(Condition {
            only: None,
            except: Some(Tags::Any),
        });
    };
    check_successor(name, &newest.path, &stored.path)?;
    Ok(Condition {
        only: Some(Tags::Listed(vec![newest.version()])),
        except: None,
    })
}

fn remove(metadata: &Database, matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let (cache, name) = (text(matches, "cache")?, text(matches, "name")?);
    match pins::remove(metadata, cache, name)? {
        0 => bail!("the cache {cache:?} has no pin {name:?}; see samovar pin list"),
        1 => Ok(writeln!(out, "1 generation was removed")?),
        count => Ok(writeln!(out, "{count} generations were removed")?),
    }
}

fn list(metadata: &Database, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(
        out,
        "{:12} {:20} {:>10} {:10} {:10} PATH",
        "CACHE", "NAME", "GENERATION", "CREATED", "EXPIRES"
    )?;
    for pin in pins::all(metadata)? {
        let Pin {
            cache,
            name,
            generation,
            path,
            created_at,
            expires_at,
            token: _,
            host,
            message,
            lineage: _,
        } = &pin;
        let expires = expires_at.map_or_else(|| "never".to_owned(), date);
        let dir = caches::find(metadata, cache)?.map(|row| row.store_dir);
        writeln!(
            out,
            "{cache:12} {name:20} {generation:>10} {:10} {expires:10} {}{}{}",
            date(*created_at),
            path.display(&dir.unwrap_or_default()),
            stated("host", host.as_deref()),
            stated("message", message.as_deref()),
        )?;
    }
    Ok(())
}

/// Returns a column for a text that a client stated. Control characters are escaped, so that they
/// cannot change the terminal.
fn stated(column: &str, text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!("  {column} {text:?}"))
}
