//! `samovar profile`: what a tree of small files consists of, and where the time goes.
//!
//! # Modules
//!
//! * `predict`, `words`: mathematics and formatting, without I/O.
//! * `probe`, `server`: measure operations in a directory, and the round-trip time to a cache.
//! * `report`, `svg`: print the results.
//!
//! [`walk`] of `samovar-workspace` counts a tree and reads its files.

mod predict;
mod probe;
mod report;
mod server;
mod svg;
mod words;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::{ArgMatches, Command, value_parser};
use samovar_workspace::profile::{Frames, WalkOptions, walk};

use crate::arguments::{credentials, json, option, required, sources, switch};
use crate::outcome::Outcome;
use predict::{Assumptions, Tree};
use probe::Probe;
use report::Report;
use server::RoundTrip;

/// Default round-trip time in milliseconds: a home network with one switch.
const RTT_MS: &str = "0.28";

/// Default bandwidth in Mbit/s: the payload of gigabit Ethernet.
const MBIT: &str = "940";

/// Default time of a disk flush in milliseconds: one turn of a disk with 5,700 rpm.
const FLUSH_MS: &str = "10.6";

/// Default time per installed file in milliseconds: `npm`, between 0.37 and 0.64 on two machines.
const INSTALL_MS: &str = "0.6";

/// Defines the command `samovar profile`.
pub(crate) fn command() -> Command {
    let number = |id, value_name, default: &'static str| {
        option(id, value_name)
            .default_value(default)
            .value_parser(positive)
    };
    let path = |id, value_name| option(id, value_name).value_parser(value_parser!(PathBuf));
    Command::new("profile")
        .about("Counts the files of a tree, and predicts what they cost on local disks and on NFS")
        .after_help(
            "Without --contents, reads metadata only: no file of DIR is opened or changed. Links \
             are never followed. Each bin of the histogram is labelled with its upper bound. Each \
             prediction is printed with its formula. Exit code 0: the tree was read; 1: a part of \
             the tree could not be read; 2: the command line is invalid, DIR cannot be read, or \
             --server or --probe failed.",
        )
        .arg(
            required("dir", "DIR")
                .help("The root of the tree")
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(number("rtt-ms", "MS", RTT_MS).help("Round-trip time to the server"))
        .arg(
            option("server", "URL")
                .conflicts_with("rtt-ms")
                .help("Measure the round-trip time to this cache: the minimum of 10 requests"),
        )
        .args(credentials().map(|arg| arg.requires("server")))
        .arg(number("mbit", "MBIT", MBIT).help("Bandwidth to the server, in Mbit/s"))
        .arg(number("flush-ms", "MS", FLUSH_MS).help("Time of one flush of the server's disk"))
        .arg(
            number("install-ms", "MS", INSTALL_MS)
                .help("Time that the installing program takes per file on a local disk"),
        )
        .arg(
            option("mtu", "BYTES")
                .default_value("1500")
                .value_parser(value_parser!(u16).range(576..))
                .help("Maximum length of an IP packet; the histogram counts frames of this length"),
        )
        .arg(path("probe", "DIR").help(
            "Also measure operations here, with at most 200 files in a new directory, which is \
             removed",
        ))
        .arg(
            option("top", "N")
                .default_value("10")
                .value_parser(value_parser!(u16).range(..=1000))
                .help("Number of directories to list"),
        )
        .arg(switch("cross-mounts").help("Enter the file systems that are mounted in DIR"))
        .arg(
            switch("contents").help(
                "Also read all files, to find duplicates and to measure how well they compress",
            ),
        )
        .arg(path("svg", "FILE").help("Write the histogram as a picture into FILE"))
        .arg(json())
}

/// Parses a number above 0.
fn positive(text: &str) -> Result<f64, &'static str> {
    let number = text.parse();
    let number = number.ok().filter(|it: &f64| it.is_finite() && *it > 0.0);
    number.ok_or("expected a number above 0")
}

/// Runs `samovar profile`.
///
/// # Errors
///
/// The root of the tree cannot be read, the server or the probe cannot be measured, or a file
/// cannot be written.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let given: &PathBuf = matches.get_one("dir").context("DIR is missing")?;
    let root = fs::canonicalize(given).with_context(|| format!("cannot read {given:?}"))?;
    let mtu = matches.get_one("mtu").copied().unwrap_or(1500);
    let options = WalkOptions {
        frames: Frames::at_mtu(mtu),
        top_count: matches
            .get_one("top")
            .copied()
            .map_or(10, |count: u16| usize::from(count)),
        crosses_mounts: matches.get_flag("cross-mounts"),
        reads_contents: matches.get_flag("contents"),
    };
    ensure!(root.is_dir(), "{given:?} is not a directory");
    let server = matches.get_one::<String>("server");
    let server = server.map(|url| server::measure(url, &sources(matches)));
    let server = server.transpose()?;
    let walked = walk(&root, options).with_context(|| format!("cannot read {given:?}"))?;
    let tree = Tree {
        files: walked.facts.sizes.files(),
        directories: walked.facts.directories,
        bytes: walked.facts.sizes.bytes(),
        nar_len: walked.facts.nar_len(),
    };
    let assumed = assumptions(matches, server.as_ref());
    let mut predictions = predict::predictions(tree, assumed);
    if let Some(contents) = walked.contents {
        predictions.push(predict::compressed(tree, assumed, contents));
    }
    let probe = match matches.get_one::<PathBuf>("probe") {
        Some(dir) => Some((dir.as_path(), measure(dir)?)),
        None => None,
    };
    if let Some((_, probe)) = &probe {
        predictions.extend(predict::measured(tree, assumed, probe.costs));
    }
    if let Some(file) = matches.get_one::<PathBuf>("svg") {
        fs::write(file, svg::render(&walked.facts))
            .with_context(|| format!("cannot write {file:?}"))?;
    }
    let report = Report {
        root: &root,
        file_system: probe::file_system(&root),
        walked: &walked,
        assumed,
        predictions,
        server,
        probe,
    };
    match matches.get_flag("json") {
        true => writeln!(out, "{}", report.json())?,
        false => report.print(out)?,
    }
    Ok(match walked.unreadable {
        0 => Outcome::Complete,
        _ => Outcome::Incomplete,
    })
}

fn assumptions(matches: &ArgMatches, server: Option<&RoundTrip>) -> Assumptions {
    // All these options have defaults.
    let number = |id: &str| matches.get_one(id).copied().unwrap_or_default();
    let milliseconds = |id: &str| number(id) / 1e3;
    Assumptions {
        rtt: server.map_or(milliseconds("rtt-ms"), |measured| measured.seconds),
        mbit: number("mbit"),
        flush: milliseconds("flush-ms"),
        install: milliseconds("install-ms"),
    }
}

/// Measures a directory. Prints on standard error what it will do, so that the user knows the
/// directory that is left behind if the process is killed.
fn measure(dir: &Path) -> anyhow::Result<Probe> {
    let scratch = probe::scratch(dir)?;
    writeln!(
        io::stderr(),
        "samovar: creating up to {} files of {} bytes and {} directories in {:?}, for at most {} s \
         per kind of operation; all are removed",
        probe::FILES_MAX,
        probe::FILE_LEN,
        probe::FEW_MAX,
        scratch.dir(),
        probe::PHASE_TIME.as_secs()
    )
    .ok();
    scratch.measure()
}
