//! Side-by-side benchmarks of binary cache servers: commands in, a table out.
//!
//! ```text
//! samovar-bench --store DIR --big-store DIR --out DIR \
//!   --server 'samovar=nix-serve --listen 127.0.0.1:{port} --store local?root={store}'
//! ```
//!
//! [`rows`] performs the measurements, with one module for each method; [`figures`] defines the
//! results, which [`table`], [`summary`] and [`chart`] render and [`report`] writes.
//!
//! `samovar-bench engine` compares HTTP engines instead: see [`engine`]. `samovar-bench uploads`
//! measures uploads, `samovar-bench upstreams` upstream caches, and `samovar-bench workspaces`
//! workspaces: see [`uploads`], [`upstreams`] and [`workspaces`]. `samovar-bench sockets` holds
//! many WebSockets: see [`sockets`].
//!
//! Rules for measuring, which keep the figures comparable:
//!
//! - All servers run at the same time, but only one receives requests at a time. Rounds are
//!   interleaved (every server's first, then every server's second), and a figure is the median of
//!   its rounds.
//! - nginx serves the same bytes from static files in the same run. Compare ratios to nginx within
//!   one run; rates of different runs or machines cannot be compared.
//! - Server CPU time per request, over all its processes, accompanies the rate: it is robust
//!   against other load on the machine.
//! - Before any measurement, every server's narinfos are compared with Nix's information, its NARs
//!   with `nix-store --dump`, and its signatures with the other servers'.
//! - A server that lacks a feature, or responds incorrectly, has a reason in place of a figure.
//! - Rows with one request at a time run client and server on one core. On two cores, every request
//!   waits twice for an idle core to wake, which no server can avoid.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool: the table goes to stdout, progress to stderr"
)]

mod arguments;
mod chart;
mod check;
mod contender;
mod disk;
mod engine;
mod figures;
mod floor;
mod goals;
mod http;
mod load;
mod machine;
mod nginx;
mod process;
mod report;
mod rows;
mod sockets;
mod store;
mod summary;
mod table;
mod uploads;
mod upstreams;
mod workspaces;
mod wrk;

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::arguments::{Arguments, Mode};
use crate::contender::{Contender, Places, Setting, gap_error};
use crate::figures::Gap;
use crate::store::{BigStore, Store};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help") {
        println!("{}", arguments::USAGE);
        return ExitCode::SUCCESS;
    }
    let done = Arguments::parse(&words).map(|arguments| match arguments.mode {
        Mode::Caches => run(&arguments),
        Mode::Engine => engine::run(&arguments),
        Mode::Sockets => sockets::run(&arguments),
        Mode::Uploads => uploads::run(&arguments),
        Mode::Upstreams => upstreams::run(&arguments),
        Mode::Workspaces => workspaces::run(&arguments),
    });
    match done.flatten() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("samovar-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    machine::enter_network_namespace();
    let load_before = machine::load();
    let store = Store::open(&arguments.store)?;
    let big_store = arguments.big_store.as_deref().map(BigStore::open);
    let big_store = big_store.transpose()?;
    let scratch = tempfile::Builder::new()
        .prefix("samovar-bench-")
        .tempdir()?;
    let places = Places {
        store: store.dir.clone(),
        big_store: big_store.as_ref().map(|big| big.dir.clone()),
        key: testkit::nix::key_pair(scratch.path(), check::KEY_NAME).0,
        scratch: scratch.path().to_owned(),
    };

    let mut contenders = Contender::of_commands(&arguments.servers, &places);
    progress("copying files for nginx");
    let first = contenders.first().context("no server is given")?;
    let first = first.standing(Setting::Plain).map_err(gap_error)?;
    let files = nginx::render(&store, &first.server, scratch.path())?;
    for &variant in arguments.nginx {
        let (name, command) = nginx::command(&files, variant, scratch.path())?;
        contenders.push(Contender::anchor(name, command, &places));
    }
    let mut remarks = check(&store, &contenders)?;
    if !rows::can_count_calls() {
        remarks.push("strace is not installed, so system calls are not counted.".into());
    }

    progress("floor of the first copy");
    remarks.extend(floor::describe(&store, scratch.path())?);

    let results = rows::measure(
        arguments,
        &store,
        big_store.as_ref(),
        &contenders,
        scratch.path(),
    )?;
    let how = format!(
        "{} rounds of {} s, medians (once where one takes over 6 s)",
        arguments.rounds, arguments.seconds
    );
    let machine = machine::describe(&["nginx", "wrk"], &how, &load_before);
    let text = report::markdown(&machine, &remarks, &results);
    print!("{text}");
    if let Some(folder) = &arguments.out {
        report::write(folder, &text, &results)?;
    }
    results.ensure_complete()
}

/// Starts every server and verifies its responses before any measurement.
fn check(store: &Store, contenders: &[Contender]) -> Result<Vec<String>> {
    let mut remarks = Vec::new();
    let mut dumps = check::Dumps::default();
    for contender in contenders {
        progress(&format!("checking the answers of {}", contender.name));
        let running = contender.standing(Setting::Plain).map_err(gap_error)?;
        remarks.extend(check::answers(store, &running.server, &mut dumps)?);
        match contender.standing(Setting::Signing) {
            Ok(running) => check::signatures(store, &running.server, &mut dumps)?,
            Err(Gap::NotAsked(_)) => {}
            Err(gap) => return Err(gap_error(gap)),
        }
    }
    Ok(remarks)
}

/// Prints one line of progress.
fn progress(line: &str) {
    eprintln!("bench: {line}");
}
