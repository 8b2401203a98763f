//! The binary cache server with the command line of `nix-serve`.
//!
//! Exit codes: 0, the server was stopped, or it runs in the background; 1, it could not start; 2,
//! the command line is invalid.

#![forbid(unsafe_code)]

use std::io::{self, Write as _};
use std::process::ExitCode;

use nix_serve::cli::{CliError, Invocation, help, parse, refuse_variables, version};
use nix_serve::environment;
use samovar_server::config::Configuration;
use samovar_server::daemon::{Role, launch};
use samovar_server::server::{self, Applied, Predecessor};
use samovar_server::without_logins;

fn main() -> ExitCode {
    match parse(std::env::args_os().skip(1), environment::of_process()) {
        Ok(Invocation::Help) => print(help()),
        Ok(Invocation::Version) => print(&format!("{}\n", version())),
        Ok(Invocation::Serve { config, daemonize }) => {
            if let Err(error) = refuse_variables(std::env::vars_os().map(|(name, _)| name)) {
                return refuse(&error);
            }
            match start(&config, daemonize) {
                Ok(code) => code,
                Err(error) => {
                    complain("error", &format!("{error:#}"));
                    ExitCode::FAILURE
                }
            }
        }
        Err(error) => refuse(&error),
    }
}

fn refuse(error: &CliError) -> ExitCode {
    complain("error", &error.to_string());
    ExitCode::from(CliError::EXIT_CODE)
}

fn start(config: &Configuration, daemonize: bool) -> anyhow::Result<ExitCode> {
    let predecessor = Predecessor::of_process()?;
    let role = match &predecessor {
        // The predecessor already runs in the background.
        Some(_) => Role::of_successor(daemonize)?,
        None => Role::of_process(daemonize)?,
    };
    if let Role::Launcher = role {
        // Do not print warnings here: the background process logs them.
        return Ok(ExitCode::from(launch(std::env::args_os().skip(1))?));
    }
    let background = match role {
        Role::Background(background) => Some(background),
        Role::Foreground | Role::Launcher => None,
    };
    // The command line stays the same, but the files that it names may have changed.
    let again = || {
        let config = Configuration {
            remarks: Vec::new(),
            ..config.clone()
        };
        let applied: Applied<'_> = Box::new(|| None);
        Ok((config, applied))
    };
    server::run(config, &again, background, predecessor)?;
    Ok(ExitCode::SUCCESS)
}

fn print(text: &str) -> ExitCode {
    // `nix-serve --help | head -1` closes the pipe early: do not print an error.
    match io::stdout()
        .write_all(text.as_bytes())
        .and_then(|()| io::stdout().flush())
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Prints a message before the error log is open. A failure to print is ignored, because standard
/// error may be closed.
fn complain(level: &str, message: &str) {
    let message = without_logins(message);
    writeln!(io::stderr(), "nix-serve: {level}: {message}").ok();
}
