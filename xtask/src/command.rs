//! Runs other programs; errors contain the program's output.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};

/// Prints one line of progress, so that no step is a silent wait.
pub(crate) fn progress(line: &str) {
    eprintln!("samovar: {line}");
}

/// Runs `command` with its output on the terminal. Fails if it cannot be started or does not exit
/// with 0.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {}", describe(command)))?;
    if !status.success() {
        bail!("{}: {status}", describe(command));
    }
    Ok(())
}

/// Runs `command` without its output; returns whether it exits with 0.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs `command` and returns its standard output without the final newline. Fails if it cannot be
/// started or does not exit with 0; the error contains its standard error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    feed(command, |_| Ok(()))
}

/// Like [`output`], but also calls `write` with the command's standard input. If the command fails
/// and has closed its input, the error is that of the command.
pub(crate) fn feed(
    command: &mut Command,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()> + Send,
) -> Result<String> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", describe(command)))?;
    let stdin = child.stdin.take().context("stdin is piped")?;
    // A separate thread writes, because the command may meanwhile fill the pipe of its output.
    let (written, done) = std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let mut stdin = std::io::BufWriter::with_capacity(1 << 16, stdin);
            write(&mut stdin).and_then(|()| stdin.flush())
        });
        let done = child.wait_with_output();
        (writer.join(), done)
    });
    let done = done.with_context(|| format!("cannot wait for {}", describe(command)))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!(
            "{}: {}\n{}",
            describe(command),
            done.status,
            said.trim_end()
        );
    }
    match written {
        Ok(written) => written.with_context(|| format!("cannot write to {}", describe(command)))?,
        Err(_) => bail!("the writer for {} panicked", describe(command)),
    }
    Ok(String::from_utf8_lossy(&done.stdout).trim_end().to_owned())
}

/// Builds targets with the flags of `cargo test --workspace`, so that artifacts are shared. Returns
/// the folder of programs. Fails if they do not build.
pub(crate) fn build_as_tested(targets: &[&str]) -> Result<PathBuf> {
    progress("building (the first time: some minutes)");
    run(Command::new("cargo")
        .args(["build", "--workspace"])
        .args(targets)
        .current_dir(repository()))?;
    programs("debug")
}

/// Builds packages with the release profile; returns the folder of programs.
pub(crate) fn build_release(packages: &[&str]) -> Result<PathBuf> {
    progress("building (the first time: some minutes)");
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    run(Command::new("cargo")
        .args(["build", "--release"])
        .args(packages)
        .current_dir(repository()))?;
    programs("release")
}

fn programs(profile: &str) -> Result<PathBuf> {
    let mut metadata = cargo_metadata::MetadataCommand::new();
    let metadata = metadata.current_dir(repository()).no_deps().exec()?;
    Ok(metadata.target_directory.join(profile).into())
}

/// Applies `work` to all items, two at a time; returns the results in the order of the items.
pub(crate) fn in_pairs<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else {
                return done;
            };
            done.push((index, work(item)));
        }
    };
    let mut done = std::thread::scope(|scope| {
        let other = scope.spawn(worker);
        let mut done = worker();
        match other.join() {
            Ok(others) => done.extend(others),
            Err(panic) => std::panic::resume_unwind(panic),
        }
        done
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Returns the program and arguments of a command for error messages, shortened to about two lines.
fn describe(command: &Command) -> String {
    const LEN_MAX: usize = 200;
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    let mut line = words.join(" ");
    if line.len() > LEN_MAX {
        line.truncate(line.floor_char_boundary(LEN_MAX));
        line.push('…');
    }
    line
}

/// Finds `program` as a shell does.
///
/// Also searches folders outside `PATH`: nginx is in `/usr/sbin`, which a user's `PATH` may lack,
/// and Nix in a profile that only a login shell adds.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beyond = ["/usr/sbin", "/sbin", "/nix/var/nix/profiles/default/bin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(beyond)
        .map(|folder| folder.join(program))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Returns the top directory of the repository, from any working directory.
pub(crate) fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_trimmed_and_errors_contain_stderr() {
        assert_eq!(output(Command::new("echo").arg("hi")).unwrap(), "hi");
        let error = output(Command::new("sh").args(["-c", "echo oh >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("oh"), "{error}");
    }

    #[test]
    fn input_and_output_may_exceed_the_pipe_buffers() {
        let block = vec![b'x'; 1 << 20];
        let back = feed(&mut Command::new("cat"), |out| out.write_all(&block)).unwrap();
        assert_eq!(back.len(), 1 << 20);
    }

    /// The first item ends only after the second has started, so this ends only if both run at
    /// once.
    #[test]
    fn two_items_run_at_a_time_and_results_keep_their_order() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let receiver = std::sync::Mutex::new(receiver);
        let results = in_pairs(&[1, 2, 3], |item| {
            match item {
                1 => receiver.lock().unwrap().recv().unwrap(),
                2 => sender.send(()).unwrap(),
                _ => {}
            }
            item * 10
        });
        assert_eq!(results, [10, 20, 30]);
    }

    #[test]
    fn programs_are_found_in_path() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-at-all").is_none());
    }
}
