//! Log lines on standard error.

use std::error::Error;
use std::io::{self, Write as _};

/// Logs an error with its causes.
pub fn error(what: &str, error: &dyn Error) {
    let mut line = format!("kettles: {what}: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        line += &format!(": {error}");
        cause = error.source();
    }
    say(&line);
}

/// Logs one line.
pub fn say(line: &str) {
    // Standard error is closed: there is nowhere left to log.
    drop(writeln!(io::stderr().lock(), "{line}"));
}
