//! `samovar mount --background`: a process of its own that outlives the command.

use std::fs::OpenOptions;
use std::io::{Read as _, Write};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use samovar_mount::fuse::CacheDir;

/// Option that replaces the first one in the arguments of the process in the background.
const BACKGROUND: &str = "--background";
const DETACHED: &str = "--detached";

/// Runs the same command in the background. Returns once the snapshot is mounted.
///
/// # Errors
///
/// The process cannot be started. If the mount fails, this process exits with its exit code.
pub(super) fn run(out: &mut dyn Write) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let arguments = std::env::args_os()
        .skip(1)
        .map(|argument| match argument == BACKGROUND {
            true => DETACHED.into(),
            false => argument,
        });
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .context("cannot start a process in the background")?;
    let mut line = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        // Ends when the snapshot is mounted, or when the process ends.
        stdout.read_to_string(&mut line)?;
    }
    out.write_all(line.as_bytes())?;
    out.flush()?;
    if line.is_empty() {
        let code = child.wait()?.code().unwrap_or(3);
        std::process::exit(code);
    }
    Ok(())
}

/// Separates this process from the terminal.
pub(super) fn detach() {
    // Fails only if the process leads a group already.
    rustix::process::setsid().ok();
}

/// Closes the streams of the command that has started this process. Messages go to a file from now
/// on.
///
/// # Errors
///
/// The file cannot be opened.
pub(super) fn leave(cache: &CacheDir) -> anyhow::Result<()> {
    let path = cache.file("log");
    let log = OpenOptions::new().create(true).append(true).open(&path);
    let log = log.with_context(|| format!("cannot write {path:?}"))?;
    rustix::stdio::dup2_stderr(&log)?;
    rustix::stdio::dup2_stdout(&log)?;
    Ok(())
}
