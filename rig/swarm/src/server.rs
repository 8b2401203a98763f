//! Starts the server for a run, and stops it after the run.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use testkit::process::{Process, address_in, signal_if_alive};

/// Child process, terminated on drop.
#[derive(Debug)]
pub(crate) struct Server {
    process: Process,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts `command` and waits until it prints a URL.
    pub(crate) fn start(command: &[String]) -> Result<Self> {
        let (program, arguments) = command.split_first().context("no server command given")?;
        let mut command = Command::new(program);
        let process = Process::try_spawn(command.args(arguments).stdin(Stdio::null()))
            .with_context(|| format!("cannot start {program}"))?;
        let lines = process
            .try_lines_to("http://")
            .with_context(|| format!("{program} does not print its URL"))?;
        let line = lines.last().context("there is a line")?;
        Ok(Self {
            address: address_in(line),
            process,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        signal_if_alive(&[self.pid()], "TERM");
        self.process.child.wait().ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_a_server_that_ends_is_quoted() {
        let command = ["sh", "-c", "echo no such table >&2; exit 1"];
        let error = Server::start(&command.map(str::to_owned)).unwrap_err();
        assert!(format!("{error:#}").contains("no such table"), "{error:#}");
    }
}
