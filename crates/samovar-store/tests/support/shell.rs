//! The `sqlite3` shell as a writer in another process.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A process with the database open, until dropped.
#[derive(Debug)]
pub(crate) struct Shell {
    process: Child,
    /// Closed first, which ends the process.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Shell {
    pub(crate) fn open(database: &Path) -> Self {
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
        shell.run(
            ".timeout 10000\npragma foreign_keys = 1; pragma synchronous = off; \
             pragma wal_autocheckpoint = 40000;",
        );
        shell
    }

    /// Runs a statement and waits for it.
    pub(crate) fn run(&mut self, sql: &str) {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{sql}\n.print done").unwrap();
        let mut line = String::new();
        while line != "done\n" {
            line.clear();
            // Errors are on its standard error.
            assert!(self.output.read_line(&mut line).unwrap() > 0, "{sql}");
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.input = None;
        self.process.wait().ok();
    }
}
