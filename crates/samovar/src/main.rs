//! The command line of everything that is not the server.
//!
//! Exit codes: 0, all that was asked about is there, or right; 1, something is not; 2, the command
//! line cannot be understood, or something cannot be verified; 3, a cache or store cannot be asked.

#![forbid(unsafe_code)]

use std::io::{self, BufWriter, Write as _};
use std::process::ExitCode;

use samovar::command::{Outcome, Request};

fn main() -> ExitCode {
    let request = match Request::parse(std::env::args_os().skip(1)) {
        Ok(request) => request,
        Err(error) => {
            complain(&format!("{error}; see samovar --help"));
            return ExitCode::from(2);
        }
    };
    let mut out = BufWriter::new(io::stdout().lock());
    match request.run(&mut out).and_then(|outcome| {
        out.flush()?;
        Ok(outcome)
    }) {
        Ok(Outcome::Complete) => ExitCode::SUCCESS,
        Ok(Outcome::Incomplete) => ExitCode::FAILURE,
        Ok(Outcome::Unchecked) => ExitCode::from(2),
        // `samovar closure … | head -1` closes the pipe early; that is no failure worth a message.
        Err(error) if is_closed_pipe(&error) => ExitCode::from(3),
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::from(request.error_code())
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
