//! `samovar push DIR REF`: uploads a directory as the next generation of a ref.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{bail, ensure};
use clap::ArgMatches;
use samovar_client::push::directory::{Options, Pushed, push};
use serde_json::json;

use crate::credentials::Sources;
use crate::refs::RefName;
use crate::size::human;

/// Default of `--keep` for refs.
pub(crate) const KEEP: u32 = 10;

/// Reads the options of `samovar push DIR REF`.
///
/// # Errors
///
/// An option is for pushes of store paths, or the ref is invalid.
pub(super) fn options<'a>(
    matches: &'a ArgMatches,
    directory: &'a str,
) -> anyhow::Result<Options<'a>> {
    const OTHERS: [&str; 13] = [
        "exec",
        "spool",
        "watch",
        "store",
        "no-closure",
        "exclude",
        "skip-signed-by",
        "substituted",
        "pin",
        "pin-expires",
        "jobs",
        "compression-level",
        "dry-run",
    ];
    ensure!(
        Path::new(directory).is_dir(),
        "{directory:?} does not begin with http:// or https://, and is not a directory: give \
         the URL of a cache and paths, or a directory and a ref"
    );
    let is_given =
        |id: &&&str| matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
    if let Some(other) = OTHERS.iter().find(is_given) {
        bail!("--{other} is for store paths: it cannot be combined with a directory");
    }
    let names: Vec<&String> = matches.get_many("paths").into_iter().flatten().collect();
    let [name] = names[..] else {
        bail!(
            "{directory:?} is not a URL: give the URL of a cache and paths, or a directory and \
             a ref"
        );
    };
    Ok(Options {
        directory: Path::new(directory),
        name: RefName::parse_new(name)?.without_generation()?,
        message: matches.get_one::<String>("message").map(String::as_str),
        keep: matches.get_one("keep").copied().unwrap_or(KEEP),
        is_forced: matches.get_flag("force"),
        is_public: matches.get_flag("public"),
        is_quiet: matches.get_flag("json"),
    })
}

/// Pushes a directory, and prints the result: as JSON if no progress is shown.
///
/// # Errors
///
/// The directory cannot be read, or the cache is unavailable or refuses the push.
pub(super) fn run(
    options: &Options<'_>,
    sources: &Sources,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let started_at = Instant::now();
    let Pushed {
        path,
        manifest,
        nar_size,
        generation,
        is_unchanged,
        sent_len,
        request_count,
    } = push(options, sources)?;
    let name = &options.name.name;
    let seconds = started_at.elapsed().as_secs_f64();
    if options.is_quiet {
        let document = json!({
            "ref": name.as_str(),
            "generation": generation,
            "path": path,
            "manifest": manifest,
            "narSize": nar_size,
            "sentSize": sent_len,
            "requests": request_count,
            "seconds": seconds,
            "isUnchanged": is_unchanged,
        });
        writeln!(out, "{document}")?;
    } else if is_unchanged {
        writeln!(out, "{name}@{generation} is unchanged: {path}")?;
    } else {
        writeln!(
            out,
            "{name}@{generation} is {path}, {} sent in {seconds:.1} s",
            human(sent_len)
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
