//! The command line of everything but the server that is called `nix-serve`.
//!
//! Exit codes: 0, all that was asked about is there, or right, or the server was told to end; 1,
//! something is not, or the server could not start; 2, the command line or the configuration cannot
//! be understood, or something cannot be verified; 3, a cache or store cannot be asked.

#![forbid(unsafe_code)]

use std::io::{self, BufWriter, Write as _};
use std::process::ExitCode;

use samovar::run;

fn main() -> ExitCode {
    let mut out = BufWriter::new(io::stdout().lock());
    let ended = run(std::env::args_os(), &mut out);
    let flushed = out.flush();
    match ended {
        // `samovar closure … | head -1` closes the pipe early; that is no failure worth a message.
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

/// Standard error may be closed: then nobody is told.
fn complain(message: &str) {
    writeln!(io::stderr(), "samovar: error: {message}").ok();
}
