//! A test program, and running it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use testkit::procfs;

use super::report::Summary;
use crate::command::repository;

/// Interval at which a running program is looked at.
const STEP: Duration = Duration::from_millis(20);

/// A test program, or the doctests.
#[derive(Debug)]
pub(super) struct Program {
    /// Name that is unique in the workspace: the package's folder and the target's name.
    pub(super) name: String,
    executable: PathBuf,
    words: &'static [&'static str],
    /// Working directory.
    folder: PathBuf,
}

/// The outcome of a run of a program.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) time: Duration,
    pub(super) output: String,
    pub(super) summary: Summary,
}

impl Program {
    /// Creates the program of a target of the package in `folder`. A package may have a library and
    /// a program of the same name, so names of programs end in `(bin)`.
    pub(super) fn new(folder: &Path, target: &str, is_bin: bool, executable: PathBuf) -> Self {
        let package = folder.file_name().unwrap_or_default().to_string_lossy();
        let kind = if is_bin { "(bin)" } else { "" };
        Self {
            name: format!("{package}/{target}{kind}"),
            executable,
            words: &[],
            folder: folder.to_owned(),
        }
    }

    /// Creates the program that runs the doctests of the whole workspace.
    pub(super) fn doctests() -> Self {
        Self {
            name: "doctests".to_owned(),
            executable: "cargo".into(),
            words: &["test", "--workspace", "--doc", "--no-fail-fast"],
            folder: repository(),
        }
    }

    pub(super) fn is_doctests(&self) -> bool {
        !self.words.is_empty()
    }

    /// Runs all tests of the program and prints its output.
    pub(super) fn run_all(&self, outputs: &Path, limit: Duration) -> Result<Ended> {
        let mut command = Command::new(&self.executable);
        self.run(command.args(self.words), "", outputs, limit)
    }

    /// Runs one test of the program and prints its output.
    pub(super) fn run_one(&self, test: &str, outputs: &Path, limit: Duration) -> Result<Ended> {
        let mut command = Command::new(&self.executable);
        self.run(command.args(["--exact", test]), test, outputs, limit)
    }

    fn run(
        &self,
        command: &mut Command,
        test: &str,
        outputs: &Path,
        limit: Duration,
    ) -> Result<Ended> {
        let started = Instant::now();
        // Output goes to a file. A pipe would stay open as long as any server that a test has left
        // running.
        let name = format!("{} {test}", self.name).replace(|c: char| !c.is_alphanumeric(), "-");
        let file = outputs.join(name.trim_end_matches('-'));
        let output = fs::File::create(&file)?;
        let mut child = command
            .current_dir(&self.folder)
            .stderr(output.try_clone()?)
            .stdout(output)
            .spawn()
            .context("cannot start it")?;
        let (status, is_late) = wait(&mut child, started + limit)?;
        let time = started.elapsed();
        let mut output = String::from_utf8_lossy(&fs::read(&file)?).into_owned();
        if is_late {
            output += &format!("\nsamovar: killed, because it ran longer than {limit:?}\n");
        }
        println!(
            "     Running {} {test}: {status}, {:.1} s\n{output}",
            self.name,
            time.as_secs_f64()
        );
        Ok(Ended {
            status,
            time,
            summary: Summary::of(&output),
            output,
        })
    }
}

/// Waits until `child` ends. Kills it at `deadline`, with its descendants; returns its status, and
/// whether it was killed.
fn wait(child: &mut Child, deadline: Instant) -> Result<(ExitStatus, bool)> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, false));
        }
        if Instant::now() >= deadline {
            testkit::process::signal_if_alive(&procfs::family(child.id()), "KILL");
            return Ok((child.wait()?, true));
        }
        std::thread::sleep(STEP);
    }
}
