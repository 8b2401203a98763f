//! A server and a client, each with a new disk, and the line between them.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::process::without_variables;
use testkit::wait::holds_within;

use super::tree::Tree;
use crate::arguments::Arguments;
use crate::disk::Disk;
use crate::figures::to_f64;
use crate::load::line;
use crate::machine;
use crate::uploads::contender::{Contender, Running, samovar_program};

/// Gigabit Ethernet with a round-trip time of 0.28 ms: one-way delay, and bits per second. The
/// delay is left out if the kernel can limit the rate: a proxy needs processor time of both cores,
/// and a command waits for at most 12 round trips.
const FAST: (Duration, u32) = (Duration::from_micros(140), 940_000_000);

/// A line of 100 Mbit/s with a round-trip time of 20 ms.
const SLOW: (Duration, u32) = (Duration::from_millis(10), 100_000_000);

/// Offset of the byte in the file `marks` of a mounted snapshot that is not 0 once all files have
/// arrived and were verified.
const WHOLE_AT: usize = 56;

/// Maximum time until all files of a mount have arrived.
const ARRIVAL_MAX: Duration = Duration::from_secs(120);

/// A server with an empty storage, and a client with an empty home directory.
#[derive(Debug)]
pub(super) struct Stand<'a> {
    tree: &'a Tree,
    running: Running,
    /// URLs of the server, over gigabit Ethernet and over the slow line.
    urls: [String; 2],
    pub(super) server_disk: Disk,
    pub(super) client_disk: Disk,
}

/// A command that has succeeded.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) started: Instant,
    /// Duration in seconds.
    pub(super) seconds: f64,
    pub(super) stdout: String,
}

impl Done {
    /// Returns a number of the JSON document that the command has printed.
    pub(super) fn field(&self, name: &str) -> Result<f64> {
        let document: Value = serde_json::from_str(&self.stdout)?;
        let value = document[name].as_u64().map(to_f64);
        value.with_context(|| format!("no {name}: {}", self.stdout))
    }
}

/// Returns a sentence about the line for the report.
pub(super) fn line_remark() -> &'static str {
    match machine::limit_loopback(FAST.1) {
        true => "The kernel limits loopback to 940 Mbit/s, without a delay.",
        false => "A proxy has a rate of 940 Mbit/s and a round-trip time of 0.28 ms.",
    }
}

/// Returns a directory for a client or server.
pub(super) fn disk(arguments: &Arguments, options: &str) -> Result<Disk> {
    Disk::new(&arguments.dir, (!arguments.is_check).then_some(options))
}

/// Runs a line of the shell in `dir`, which is also the home directory. It must succeed. The
/// variables `TREE` and `PROJECT` name the files and the npm project.
pub(super) fn run(tree: &Tree, dir: &Path, line: &str, variables: &[(&str, &str)]) -> Result<Done> {
    let program = PathBuf::from(samovar_program()?);
    let own = program.parent().map(Path::to_path_buf);
    let others = env::var_os("PATH").unwrap_or_default();
    let path: OsString = env::join_paths(own.into_iter().chain(env::split_paths(&others)))?;
    let mut command = without_variables("sh", &["NIX_", "SAMOVAR_", "XDG_", "npm_"]);
    command.args(["-c", line]).current_dir(dir);
    command.env("PATH", path).env("HOME", dir);
    command.env("TREE", &tree.files);
    command.env("PROJECT", tree.project.as_deref().unwrap_or(dir));
    command.envs(variables.iter().copied());
    let started = Instant::now();
    let done = command.output()?;
    let seconds = started.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(
        done.status.success(),
        "{line}: {}: {}",
        done.status,
        said.trim_end()
    );
    Ok(Done {
        started,
        seconds,
        stdout: String::from_utf8(done.stdout)?,
    })
}

/// Writes all files to the disk, so that a measurement does not wait for those of earlier ones.
pub(super) fn sync() -> Result<()> {
    Command::new("sync").status().context("cannot start sync")?;
    Ok(())
}

impl<'a> Stand<'a> {
    pub(super) fn new(arguments: &Arguments, tree: &'a Tree) -> Result<Self> {
        let server_disk = disk(arguments, "")?;
        let client_disk = disk(arguments, "")?;
        let running = Contender::ours()?.start(&server_disk.dir)?;
        let server = running.server.as_ref().context("a server")?;
        let address = |(delay, rate)| line::start(server.address, delay, Some(rate));
        let fast = match machine::limit_loopback(FAST.1) {
            true => server.address,
            false => address(FAST)?,
        };
        let urls = [fast, address(SLOW)?].map(|address| format!("http://{address}"));
        Ok(Self {
            tree,
            running,
            urls,
            server_disk,
            client_disk,
        })
    }

    /// Runs a line of the shell in the client's directory. The variable `SLOW` is the URL over the
    /// slow line.
    pub(super) fn run(&self, line: &str) -> Result<Done> {
        let [fast, slow] = &self.urls;
        let variables = [
            ("SAMOVAR_CACHE", fast.as_str()),
            ("SLOW", slow),
            ("SAMOVAR_TOKEN", self.running.token.trim_end()),
        ];
        run(self.tree, &self.client_disk.dir, line, &variables)
    }

    /// Runs a line of the shell when disks and server are idle.
    pub(super) fn measured(&self, line: &str) -> Result<Done> {
        sync()?;
        if let Some(server) = &self.running.server {
            server.rest();
        }
        self.run(line)
    }

    /// Waits until all files of the snapshot in the directory `cache` of mounts have arrived.
    pub(super) fn wait_for_files(&self, cache: &str) -> Result<()> {
        let snapshots = self.client_disk.dir.join(cache).join("snapshots");
        let is_whole = || {
            let folders = fs::read_dir(&snapshots).into_iter().flatten().flatten();
            let mut marks = folders.filter_map(|it| fs::read(it.path().join("marks")).ok());
            marks.any(|marks| marks.get(WHOLE_AT).is_some_and(|byte| *byte != 0))
        };
        ensure!(holds_within(ARRIVAL_MAX, is_whole), "not all files arrive");
        Ok(())
    }

    /// Returns a guard that runs a line when it is dropped.
    pub(super) fn finally(&self, line: &'static str) -> Finally<'_> {
        Finally { stand: self, line }
    }
}

/// Runs a line when it is dropped, so that a disk can be unmounted.
pub(super) struct Finally<'a> {
    stand: &'a Stand<'a>,
    line: &'static str,
}

impl Drop for Finally<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.stand.run(self.line) {
            crate::progress(&format!("{error:#}"));
        }
    }
}
