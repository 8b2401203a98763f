//! Server that is started for a run and stopped after it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Time limit for a server to print its address.
const START_MAX: Duration = Duration::from_secs(30);

/// Child process, terminated on drop.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) id: u32,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts `command` and waits until it prints a URL with a socket address.
    pub(crate) fn start(command: &[String]) -> Result<Self> {
        let (program, arguments) = command.split_first().context("no server to ask")?;
        let (said, says) = std::io::pipe().context("cannot make a pipe")?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        command.stdout(says.try_clone()?).stderr(says);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        // The command owns a copy of the pipe's write end; without it, the pipe closes when the
        // server exits.
        drop(command);
        let (found, finds) = mpsc::channel();
        // Drains the pipe until the server exits, because a full pipe would block it.
        std::thread::spawn(move || {
            let mut lines = Vec::new();
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                if let Some(address) = address_in(&line) {
                    found.send(Ok(address)).unwrap_or_default();
                } else if lines.len() < 20 {
                    lines.push(line);
                }
            }
            found.send(Err(lines.join("\n"))).unwrap_or_default();
        });
        let id = child.id();
        match finds.recv_timeout(START_MAX) {
            Ok(Ok(address)) => Ok(Self { child, id, address }),
            Ok(Err(lines)) => {
                child.wait()?;
                bail!("{program} ended before it said where it listens\n{lines}")
            }
            Err(_) => {
                child.kill()?;
                child.wait()?;
                bail!("{program} does not say where it listens")
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let id = Pid::from_child(&self.child);
        if kill_process(id, Signal::TERM).is_ok() {
            self.child.wait().ok();
        }
    }
}

/// Returns the socket address in the first `http://…` URL of a line.
fn address_in(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("http://")?;
    let end = rest.find(|c: char| !(c.is_ascii_hexdigit() || "[]:.".contains(c)));
    let address = rest.get(..end.unwrap_or(rest.len()))?;
    address.trim_end_matches('.').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_what_a_server_says() {
        let check = |line: &str, address: Option<&str>| {
            assert_eq!(
                address_in(line).map(|it| it.to_string()).as_deref(),
                address
            );
        };
        check(
            "listening on http://127.0.0.1:8080/",
            Some("127.0.0.1:8080"),
        );
        check("http://[::1]:80.", Some("[::1]:80"));
        check("see http://127.0.0.1:5/live and more", Some("127.0.0.1:5"));
        check("http://localhost:8080", None);
        check("ready", None);
    }

    #[test]
    fn a_server_that_ends_is_quoted() {
        let command = ["sh", "-c", "echo no such table >&2; exit 1"];
        let error = Server::start(&command.map(str::to_owned)).unwrap_err();
        assert!(error.to_string().contains("no such table"), "{error}");
    }
}
