//! Side-by-side benchmarks of binary cache servers: commands in, a table out.
//!
//! ```text
//! samovar-bench --store DIR \
//!   --server 'samovar=nix-serve --listen 127.0.0.1:{port} --store local?root={store}'
//! ```
//!
//! `samovar-bench engine` compares HTTP engines instead: see [`engine`].
//!
//! How a figure comes about, and what keeps it honest:
//!
//! - All servers run at the same time, but only one is asked at a time. Rounds are interleaved
//!   (every server's first, then every server's second), and a figure is the median of the rounds.
//! - nginx serves the same bytes from ready-made files in the same run. Compare ratios to it, of
//!   one run; requests per second of different runs or machines say nothing.
//! - Server CPU per request, of all its processes, stands beside the rate: it holds when something
//!   else runs on the machine.
//! - Before anything is timed, every server's narinfos are compared with what Nix says and its NARs
//!   with `nix-store --dump`.
//! - Rows that ask one thing at a time run client and server on one core. On two, every request
//!   waits for an idle core to wake, twice, and no server can help that.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool: the table goes to stdout, progress to stderr"
)]

mod arguments;
mod check;
mod engine;
mod http;
mod load;
mod machine;
mod nginx;
mod process;
mod rows;
mod store;
mod table;
mod wrk;

use std::process::ExitCode;

use anyhow::Result;

use crate::arguments::Arguments;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help") {
        println!("{}\n\n{}", arguments::USAGE, engine::USAGE);
        return ExitCode::SUCCESS;
    }
    let done = match words.split_first() {
        Some((mode, rest)) if mode == "engine" => engine::run(rest),
        _ => Arguments::parse(&words).and_then(|arguments| run(&arguments)),
    };
    match done {
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
    let store = store::Store::open(&arguments.store)?;
    let scratch = tempfile::Builder::new()
        .prefix("samovar-bench-")
        .tempdir()?;

    let mut servers = Vec::new();
    for (name, command) in &arguments.servers {
        progress(&format!("starting {name}"));
        servers.push(process::Server::start(name, command, &store.dir)?);
    }
    if arguments.nginx {
        progress("rendering files for nginx");
        let files = nginx::render(&store, servers.first(), scratch.path())?;
        for variant in [nginx::Variant::Sendfile, nginx::Variant::NoSendfile] {
            servers.push(nginx::start(&files, variant, scratch.path())?);
        }
    }
    progress("checking the answers of every server");
    let mut remarks = Vec::new();
    for server in &servers {
        remarks.extend(check::answers(&store, server)?);
    }

    let results = rows::measure(arguments, &store, &servers, scratch.path())?;
    let how = format!(
        "{} rounds of {} s, medians",
        arguments.rounds, arguments.seconds
    );
    println!("{}", machine::describe(&how, &load_before));
    for remark in remarks {
        println!("{remark}\n");
    }
    println!("{}", table::render(&servers, &results));
    Ok(())
}

/// Prints one line of progress.
fn progress(line: &str) {
    eprintln!("bench: {line}");
}
