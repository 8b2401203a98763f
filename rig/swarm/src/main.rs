//! Command line of the load generator: `swarm kettles` and `swarm cache`.
//!
//! Exit codes: 0, all bounds were kept; 1, a bound was missed; 2, wrong command line; 3, the run
//! failed.

#![forbid(unsafe_code)]

mod arguments;
mod full;
mod goal;
mod overload;
mod process;
mod report;
mod server;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use swarm::{Catalog, Clients, Kettles, Plan, TURN, Tally, run};

use arguments::{Arguments, Load};
use process::Process;
use report::Taken;
use server::Server;

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args_os()) {
        Ok(arguments) => arguments,
        // Help goes to stdout with exit code 0, errors to stderr.
        Err(error) => error.exit(),
    };
    match try_it(&arguments) {
        Ok(missed) if missed.is_empty() => ExitCode::SUCCESS,
        Ok(missed) => {
            for bound in missed {
                say(&format!("missed: {bound}"));
            }
            ExitCode::from(1)
        }
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::from(3)
        }
    }
}

/// Starts the server if a command is given and runs the load; returns the missed bounds.
fn try_it(arguments: &Arguments) -> Result<Vec<String>> {
    let server = match arguments.address {
        Some(_) => None,
        None => Some(Server::start(&arguments.command)?),
    };
    let address = server.as_ref().map(|server| server.address);
    let address = address.or(arguments.address).context("no address")?;
    TcpStream::connect_timeout(&address, arguments.timeout)
        .map_err(|error| no_server(address, &error))?;
    let plan = Plan {
        timeout: arguments.timeout,
        connections: arguments.connections(),
        ..Plan::new(address, 0, arguments.duration)
    };
    if plan.connections < arguments.connections {
        say(&format!(
            "{} connections instead of {}: the limit of descriptors allows no more",
            plan.connections, arguments.connections
        ));
    }
    let pid = server.as_ref().map(Server::pid).or(arguments.pid);
    let watched = pid.map(|id| Process::of(id).with_context(|| format!("no process has PID {id}")));
    let watched = watched.transpose()?;
    match arguments.load {
        Load::Full => return full::run(arguments, address),
        Load::Overload => {
            let watched = watched.context("this goal needs --pid or a server command")?;
            return overload::run(arguments, address, &watched);
        }
        Load::Kettles { .. } | Load::WebSockets | Load::Cache(_) => {}
    }
    let own_cpu_before = process::own_cpu();
    let mut most_descriptors = None;
    let mut each_second = |now, second: &Tally| {
        if !arguments.quiet {
            say(&report::progress(now, second));
        }
        let descriptors = watched.as_ref().and_then(Process::descriptors);
        most_descriptors = most_descriptors.max(descriptors);
    };
    let tally = load(arguments, &plan, &mut each_second)?;
    let taken = Taken {
        server_cpu: watched.as_ref().and_then(Process::cpu),
        server_memory_peak: watched.as_ref().and_then(Process::memory_peak),
        server_descriptors: most_descriptors,
        own_cpu: process::own_cpu()
            .zip(own_cpu_before)
            .map(|(now, before)| now - before),
    };
    tell(arguments, &plan, &tally, &taken)?;
    Ok(arguments.bounds.missed(&tally, &taken))
}

/// Explains that the server cannot be reached.
fn no_server(address: SocketAddr, error: &io::Error) -> anyhow::Error {
    let what = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => error.to_string(),
    };
    anyhow::anyhow!(
        "{what} at {address}: start the server first, or give the right --address, or let swarm \
         start one: -- COMMAND"
    )
}

/// Runs the load that the command line selects.
fn load(
    arguments: &Arguments,
    plan: &Plan,
    each_second: &mut dyn FnMut(Duration, &Tally),
) -> Result<Tally> {
    let host = plan.address.to_string();
    let stop = AtomicBool::new(false);
    let (period, within, seed) = (arguments.period, arguments.within, arguments.seed);
    let kettles = |count| Kettles::new(&host, count, period, within, seed);
    Ok(match &arguments.load {
        Load::WebSockets => swarm::talk(plan, kettles(plan.connections), &stop, each_second)?,
        Load::Kettles { log_in: true } => {
            let kettles = kettles(arguments.count).with_login();
            run(plan, kettles, &stop, each_second)?
        }
        Load::Cache(paths) => {
            let text = std::fs::read_to_string(paths)
                .with_context(|| format!("cannot read {}", paths.display()))?;
            let catalog = Catalog::parse(&text)
                .with_context(|| format!("no store paths in {}", paths.display()))?;
            let clients = Clients::new(&host, catalog, TURN, arguments.count, period, seed);
            run(plan, clients, &stop, each_second)?
        }
        _ => run(plan, kettles(arguments.count), &stop, each_second)?,
    })
}

fn tell(arguments: &Arguments, plan: &Plan, tally: &Tally, taken: &Taken) -> Result<()> {
    let text = report::text(plan, tally, taken);
    // A reader may close the pipe early.
    write!(io::stdout(), "{text}").unwrap_or_default();
    if let Some(path) = &arguments.json {
        let json = format!("{:#}\n", report::json(plan, tally, taken));
        std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Prints to standard error, which may be closed.
fn say(message: &str) {
    writeln!(io::stderr(), "swarm: {message}").unwrap_or_default();
}
