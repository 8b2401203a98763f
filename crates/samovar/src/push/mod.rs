//! `samovar push`: uploads paths of the local store, or a directory, to a binary cache.
//!
//! `options`: the command line. `tree`: the form for directories. `exec`: runs the command of
//! `--exec`. `print`: the output. What a push does is in `samovar-client`.

mod exec;
mod options;
mod print;
mod tree;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::anyhow;
use clap::ArgMatches;
use samovar_client::push::{Pusher, Report, spool, watch};

use crate::arguments::sources;
use crate::credential::hide_token;
use crate::outcome::Failed;
use crate::roots::{self, Root};
use options::{Options, Source};
use print::{outcome, print};

pub(crate) use options::{command, message};
pub(crate) use tree::KEEP;

/// Pushes the paths that the command line selects.
///
/// # Errors
///
/// The store or the cache is unavailable, or `out` cannot be written.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let usage = |error| Failed::Usage.because(error);
    let url: Option<&String> = matches.get_one("url");
    if let Some(directory) = url.filter(|url| !url.contains("://")) {
        let options = tree::options(matches, directory).map_err(usage)?;
        return tree::run(&options, &sources(matches), out);
    }
    let options = Options::of(matches).map_err(usage)?;
    if matches!(options.source, Source::Command(_)) {
        hide_token().map_err(usage)?;
    }
    let mut pusher = Pusher::new(options.settings, &options.credentials)?;
    let (code, report) = match &options.source {
        Source::Watch => {
            let mut report = |report: &Report| {
                print(report, out, options.is_json)?;
                Ok(out.flush()?)
            };
            match watch(&mut pusher, options.with_substituted, &mut report)? {}
        }
        Source::Paths(words) => {
            let roots = roots::read(words, pusher.store().store_dir(), io::stdin().lock())?;
            if options.pin.is_some() {
                check_count(&roots)?;
            }
            let mut report = pusher.push_roots(&roots)?;
            if let (Some(pin), [root, ..]) = (&options.pin, &*roots) {
                report.pin = Some(pusher.pin(pin, root, &report));
            }
            (None, report)
        }
        Source::Command(words) => exec::run(&mut pusher, words, options.with_substituted)?,
        Source::Spool(dir) => (None, spool::drain(&mut pusher, dir)?),
    };
    print(&report, out, options.is_json)?;
    Ok(code.unwrap_or_else(|| outcome(&report).code()))
}

/// Refuses several paths for one pin: a generation of a pin has one path.
fn check_count(roots: &[Root]) -> anyhow::Result<()> {
    match roots {
        [first, others @ ..] if others.iter().all(|root| root.hash_part == first.hash_part) => {
            Ok(())
        }
        _ => Err(Failed::Usage.because(anyhow!(
            "--pin needs exactly one path, not {}: push each path by a command of its own, or pin \
             a path that refers to all of them",
            roots.len()
        ))),
    }
}
