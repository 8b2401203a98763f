//! Child processes whose output is collected line by line.

use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::holds_within;
use crate::{PATIENCE, eventually};

/// Maximum number of a process's lines that a failing test prints.
const PRINTED_COUNT_MAX: usize = 40;

#[derive(Debug, Default)]
struct Lines {
    all: Vec<String>,
    /// Number of lines that earlier calls of [`Process::wait_for`] have searched.
    seen: usize,
    is_over: bool,
}

#[derive(Debug, Default)]
struct Log {
    lines: Mutex<Lines>,
    changed: Condvar,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap()
    }
}

/// A child process of which one output stream is collected. Killed on drop.
#[derive(Debug)]
pub struct Process {
    /// Handle of the child process.
    pub child: Child,
    log: Arc<Log>,
    reader: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts `command` and collects its standard error.
    #[track_caller]
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = child.stderr.take().unwrap();
        Self::reading(child, stderr)
    }

    /// Starts `command` and collects its standard output.
    #[track_caller]
    pub fn spawn_for_stdout(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        Self::reading(child, stdout)
    }

    /// Starts `command` and collects both of its outputs.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn try_spawn(command: &mut Command) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        command.stdout(writer.try_clone()?).stderr(writer);
        let child = command.spawn();
        // The command owns the write end, which would keep the pipe open after the process ends.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self::reading(child?, reader))
    }

    fn reading(child: Child, output: impl Read + Send + 'static) -> Self {
        let log = Arc::new(Log::default());
        let sink = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                sink.lock().all.push(line);
                sink.changed.notify_all();
            }
            sink.lock().is_over = true;
            sink.changed.notify_all();
        });
        Self {
            child,
            log,
            reader: Some(reader),
        }
    }

    /// Starts a server that chooses a free port, and waits until it logs its address.
    #[track_caller]
    pub fn serving(command: &mut Command) -> (Self, SocketAddr) {
        let process = Self::spawn(command);
        let address = process.wait_for_address();
        (process, address)
    }

    /// Returns the PID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the next line with `on http://ADDRESS` and returns the address.
    #[track_caller]
    pub fn wait_for_address(&self) -> SocketAddr {
        address_in(&self.wait_for("on http://"))
    }

    /// Waits for the next line that contains `part`.
    #[track_caller]
    pub fn wait_for(&self, part: &str) -> String {
        self.lines_to(part).pop().unwrap()
    }

    /// Waits for the next line that contains `part`; returns all lines since the last wait.
    #[track_caller]
    pub fn lines_to(&self, part: &str) -> Vec<String> {
        match self.try_lines_to(part) {
            Ok(lines) => lines,
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits for the next line that contains `part`; returns all lines since the last wait.
    ///
    /// # Errors
    ///
    /// If the process ends, or writes no such line within [`PATIENCE`].
    pub fn try_lines_to(&self, part: &str) -> io::Result<Vec<String>> {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.log.lock();
        let from = lines.seen;
        loop {
            while let Some(line) = lines.all.get(lines.seen) {
                let is_found = line.contains(part);
                lines.seen += 1;
                if is_found {
                    return Ok(lines.all[from..lines.seen].to_vec());
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if lines.is_over || left.is_zero() {
                let how = if lines.is_over { "ended" } else { "runs" };
                let error = format!("it {how} without a line with {part:?}: {:#?}", lines.all);
                return Err(io::Error::other(error));
            }
            lines = self.log.changed.wait_timeout(lines, left).unwrap().0;
        }
    }

    /// Returns all lines that the process has written so far.
    pub fn lines(&self) -> Vec<String> {
        self.log.lock().all.clone()
    }

    /// Returns the number of lines so far that contain `part`.
    pub fn count(&self, part: &str) -> usize {
        let lines = self.log.lock();
        lines.all.iter().filter(|line| line.contains(part)).count()
    }

    /// Sends the signal `name`, such as `TERM`.
    #[track_caller]
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits for the end; returns the exit code, or `None` if a signal ended the process.
    #[track_caller]
    pub fn wait(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("the process ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    /// Sends TERM, waits for the end, and returns all lines.
    #[track_caller]
    pub fn terminate(mut self) -> Vec<String> {
        self.signal("TERM");
        self.wait();
        self.reader.take().unwrap().join().unwrap();
        self.lines()
    }

    #[expect(
        clippy::print_stderr,
        reason = "a failing test shows what its server logged"
    )]
    fn print_last_lines(&self) {
        // The test may have panicked while it held the lock.
        let lines = self
            .log
            .lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        eprintln!("the last lines of process {}:", self.pid());
        let skipped = lines.all.len().saturating_sub(PRINTED_COUNT_MAX);
        for line in lines.all.iter().skip(skipped) {
            eprintln!("  {line}");
        }
    }

    /// Returns whether the process is still running.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Process {
    /// Kills the process. Prints its last lines if the test is failing.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_last_lines();
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Sends the signal `name`, such as `TERM`, to a process.
#[track_caller]
pub fn signal(pid: u32, name: &str) {
    try_signal(pid, name).unwrap();
}

/// Sends the signal `name` to those of the processes that are still running.
#[track_caller]
pub fn signal_if_alive(pids: &[u32], name: &str) {
    for pid in pids {
        try_signal(*pid, name).ok();
    }
}

fn try_signal(pid: u32, name: &str) -> rustix::io::Result<()> {
    let signal = match name {
        "ABRT" => Signal::ABORT,
        "CONT" => Signal::CONT,
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "KILL" => Signal::KILL,
        "QUIT" => Signal::QUIT,
        "SEGV" => Signal::SEGV,
        "STOP" => Signal::STOP,
        "TERM" => Signal::TERM,
        "TTIN" => Signal::TTIN,
        "TTOU" => Signal::TTOU,
        "USR1" => Signal::USR1,
        "USR2" => Signal::USR2,
        "WINCH" => Signal::WINCH,
        _ => panic!("unknown signal {name:?}"),
    };
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal)
}

/// Returns the address in a line with `http://ADDRESS`.
#[track_caller]
pub fn address_in(line: &str) -> SocketAddr {
    let (_, address) = line.split_once("http://").unwrap();
    let address = address.split(['/', ',']).next().unwrap_or(address);
    address
        .parse()
        .unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

/// Returns a command with empty standard input, from whose environment all variables that start
/// with one of `prefixes` are removed.
pub fn without_variables(program: &str, prefixes: &[&str]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if prefixes.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// Runs a command, at most for [`PATIENCE`], and collects both outputs.
#[track_caller]
pub fn finish(command: &mut Command) -> Output {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    wait(child.unwrap(), command)
}

/// Waits for a child whose outputs are pipes; kills it after [`PATIENCE`].
#[track_caller]
pub fn wait(mut child: Child, command: &Command) -> Output {
    fn drain(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).ok();
            bytes
        })
    }
    let stdout = drain(child.stdout.take().unwrap());
    let stderr = drain(child.stderr.take().unwrap());
    let mut status = None;
    let is_over = holds_within(PATIENCE, || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    if !is_over {
        child.kill().unwrap();
        child.wait().unwrap();
        let stderr = stderr.join().unwrap();
        panic!(
            "not in time: {command:?}\n{}",
            String::from_utf8_lossy(&stderr)
        );
    }
    Output {
        status: status.unwrap(),
        stdout: stdout.join().unwrap(),
        stderr: stderr.join().unwrap(),
    }
}

/// Runs a command that must succeed; returns its standard output.
#[track_caller]
pub fn output(command: &mut Command) -> String {
    let output = finish(command);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}\n{stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    stdout
}

/// Runs a command that must exit with an error code; returns its standard error.
#[track_caller]
pub fn fails(command: &mut Command) -> String {
    let output = finish(command);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code().is_some_and(|code| code != 0),
        "{:?} of {command:?}\n{stderr}",
        output.status
    );
    stderr
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_waited_for_in_order() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "echo a 1 >&2; echo b >&2; echo a 2 >&2; exec sleep 100",
        ]);
        let mut process = Process::spawn(&mut command);
        assert_eq!(process.wait_for("a"), "a 1");
        assert_eq!(process.lines_to("a"), ["b", "a 2"]);
        assert_eq!(process.count("a"), 2);
        assert!(process.is_alive());
        assert_eq!(process.terminate().len(), 3);
    }

    #[test]
    fn output_returns_stdout_and_fails_returns_stderr() {
        let sh = |script: &str| {
            let mut command = without_variables("sh", &["NIX_"]);
            command.args(["-c", script]);
            command
        };
        assert_eq!(output(&mut sh("echo out")), "out\n");
        assert_eq!(fails(&mut sh("echo no >&2; exit 3")), "no\n");
        assert_eq!(
            address_in("x: listening on http://127.0.0.1:80/"),
            SocketAddr::from(([127, 0, 0, 1], 80))
        );
    }
}
