//! The program `samovar`.
//!
//! | exit code | meaning |
//! | --- | --- |
//! | 0 | all paths are available or intact, or the server was stopped |
//! | 1 | a path is missing or damaged, or the server could not start |
//! | 2 | the command line or configuration is invalid, or a path cannot be verified |
//! | 3 | a cache or a store is unavailable |

#![forbid(unsafe_code)]

use std::io::{self, BufWriter, Write as _};
use std::process::ExitCode;

use samovar::run;

fn main() -> ExitCode {
    // Not locked: the access log of the server may go to standard output, too.
    let mut out = BufWriter::new(io::stdout());
    let ended = run(std::env::args_os(), &mut out);
    let flushed = out.flush();
    match ended {
        // `samovar closure … | head -1` closes the pipe early: do not print an error.
        Ok(_) if flushed.is_err() => ExitCode::from(3),
        Ok(code) => code,
        Err(failure) => {
            if !is_closed_pipe(&failure.error) {
                complain(&samovar::without_logins(&format!("{:#}", failure.error)));
            }
            failure.code
        }
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Prints an error message on standard error. Ignores errors, because standard error may be closed.
fn complain(message: &str) {
    writeln!(io::stderr(), "samovar: error: {message}").ok();
}
