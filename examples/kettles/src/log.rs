//! Lines for an operator, on standard error.

use std::error::Error;
use std::io::{self, Write as _};

/// Says what went wrong and why.
pub fn error(what: &str, error: &dyn Error) {
    let mut line = format!("kettles: {what}: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        line += &format!(": {error}");
        cause = error.source();
    }
    say(&line);
}

/// Says one line.
pub fn say(line: &str) {
    // There is nobody to tell that standard error is closed.
    drop(writeln!(io::stderr().lock(), "{line}"));
}
