//! Counts the system calls per response with strace. This is a measurement of its own, because
//! strace slows down every system call.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, kill_process};

use super::{Bench, Target};
use crate::contender::{Contender, Setting};
use crate::figures::{Gap, Quantity, Values, failed, to_f64};
use crate::http::Client;
use crate::process::{self, Server};

/// Number of small responses for which system calls are counted. Large ones are counted for ten.
const COUNT: usize = 200;

/// Maximum time for strace to attach to all threads of a server; usually it takes far less.
const ATTACH_MAX: Duration = Duration::from_secs(5);

/// Returns whether strace is installed.
pub(crate) fn is_possible() -> bool {
    let mut command = Command::new("strace");
    command
        .arg("-V")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

pub(super) fn measure(
    bench: &Bench<'_>,
    target: Target,
    contender: &Contender,
) -> Result<Values, Gap> {
    if !is_possible() {
        return Err(Gap::NotAsked("strace is not installed".into()));
    }
    let (targets, is_found) = failed(bench.targets(target, Setting::Plain, contender))?;
    let count = if target == Target::BigNar { 10 } else { COUNT };
    let targets: Vec<&String> = targets.iter().cycle().take(count).collect();
    let status = if is_found { 200 } else { 404 };
    let running = contender.start(Setting::Plain)?;
    failed(counted(bench.scratch, &running.server, &targets, status))
}

fn counted(scratch: &Path, server: &Server, targets: &[&String], status: u16) -> Result<Values> {
    let mut client = Client::new(server.address);
    let mut ask = || -> Result<()> {
        for target in targets {
            let answer = client.get(target, |_| ())?;
            if answer.status != status {
                bail!("{target}: status {}", answer.status);
            }
        }
        Ok(())
    };
    // Two passes are not counted. In the first one the server allocates memory and opens files, and
    // Samovar loads its catalog at the hundredth request. Until then, narinfos are not kept for
    // later requests, so the second pass renders them once more.
    ask()?;
    ask()?;
    server.rest();
    let file = scratch.join("strace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-qq", "-o"]).arg(&file);
    for process in server.processes() {
        strace.args(["-p", &process.to_string()]);
    }
    let strace = strace.stderr(Stdio::piped()).spawn()?;
    let asked = wait_until_attached(server).and_then(|()| ask());
    let said = end(strace)?;
    asked.with_context(|| format!("output of strace: {said}"))?;
    let table = fs::read_to_string(&file)?;
    let total = total(&table).with_context(|| format!("output of strace: {table}{said}"))?;
    Ok(Values::from([(
        Quantity::Calls,
        to_f64(total) / to_f64(targets.len() as u64),
    )]))
}

fn wait_until_attached(server: &Server) -> Result<()> {
    let started = Instant::now();
    while !server.processes().into_iter().all(process::is_traced) {
        if started.elapsed() > ATTACH_MAX {
            bail!("strace may not attach to {}", server.name);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Detaches strace from the server. Returns what strace wrote to its standard error.
fn end(strace: Child) -> Result<String> {
    if let Some(pid) = process::pid(strace.id()) {
        kill_process(pid, Signal::INT).ok();
    }
    let done = strace.wait_with_output()?;
    Ok(String::from_utf8_lossy(&done.stderr).into_owned())
}

/// Parses the total number of calls from the last line of strace's table, whose columns are share,
/// seconds, µs per call, calls, and errors if there were any.
fn total(table: &str) -> Option<u64> {
    let line = table.lines().rfind(|line| line.ends_with(" total"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_found_with_and_without_errors() {
        let head = "% time     seconds  usecs/call     calls    errors syscall\n";
        let lines = "100.00    0.000013           1        12         3 total\n";
        assert_eq!(total(&format!("{head}{lines}")), Some(12));
        assert_eq!(
            total("100.00    0.000013           1        12           total\n"),
            Some(12)
        );
        assert_eq!(total(head), None);
    }
}
