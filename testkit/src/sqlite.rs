//! The `sqlite3` shell, which plays another process that uses a database.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::process::output;

/// Pragmas that a Nix process sets.
pub const SETTINGS: &str = "pragma foreign_keys = 1; pragma synchronous = off; \
                            pragma wal_autocheckpoint = 40000;";

/// Runs statements on a database in a process of their own; returns the rows.
///
/// Waits for locks of other processes for up to half a minute: a server may read or write at any
/// moment.
#[track_caller]
pub fn run(database: &Path, sql: &str) -> String {
    let mut sqlite = Command::new("sqlite3");
    sqlite.args(["-cmd", ".timeout 30000"]).arg(database);
    output(sqlite.arg(sql)).trim().to_owned()
}

/// A process that has a database open and keeps its locks until it is dropped.
#[derive(Debug)]
pub struct Shell {
    process: Child,
    /// The shell's standard input. The shell exits at its end, so it is dropped first.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Shell {
    /// Opens a database and runs the first statements.
    #[track_caller]
    pub fn open(database: &Path, sql: &str) -> Self {
        let mut process = Command::new("sqlite3")
            .args(["-batch", "-bail"])
            .arg(database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sqlite3 is installed: see `xtask setup --test`");
        let mut shell = Self {
            input: process.stdin.take(),
            output: BufReader::new(process.stdout.take().unwrap()),
            process,
        };
        // Another process may hold a lock at this moment, so wait for up to ten seconds.
        shell.run(&format!(".timeout 10000\n{sql}"));
        shell
    }

    /// Runs statements and waits for them.
    #[track_caller]
    pub fn run(&mut self, sql: &str) {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{sql}\n.print done").unwrap();
        let mut line = String::new();
        while line != "done\n" {
            line.clear();
            // The shell writes errors to its standard error, which the test's output includes.
            assert!(self.output.read_line(&mut line).unwrap() > 0, "{sql}");
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // Ends the shell properly, so that SQLite may remove the `-wal` and `-shm` files.
        self.input = None;
        self.process.wait().ok();
    }
}
