//! The binary cache server with the command line of `nix-serve`.
//!
//! Exit codes: 0, the server was told to end, or the one in the background is ready; 1, it could
//! not start; 2, the command line cannot be honoured.

#![forbid(unsafe_code)]

use std::io::{self, Write as _};
use std::process::ExitCode;

use nix_serve::cli::{CliError, Invocation, Options, Warning, help, parse, version};
use nix_serve::configuration;
use nix_serve::environment::Environment;
use samovar_server::config::Configuration;
use samovar_server::daemon::{Role, launch};
use samovar_server::server::{self, Predecessor};

fn main() -> ExitCode {
    match parse(std::env::args_os().skip(1)) {
        Ok(Invocation::Help) => print(help()),
        Ok(Invocation::Version) => print(&format!("{}\n", version())),
        Ok(Invocation::Serve { options, warnings }) => match start(options, &warnings) {
            Ok(code) => code,
            Err(error) => {
                complain("error", &format!("{error:#}"));
                ExitCode::FAILURE
            }
        },
        Err(error) => {
            complain("error", &error.to_string());
            ExitCode::from(CliError::EXIT_CODE)
        }
    }
}

fn start(options: Options, warnings: &[Warning]) -> anyhow::Result<ExitCode> {
    let environment = Environment::of_process();
    let predecessor = Predecessor::of_process()?;
    let role = match &predecessor {
        // Whoever hands over is there already.
        Some(_) => Role::of_successor(options.daemonize)?,
        None => Role::of_process(options.daemonize)?,
    };
    if let Role::Launcher = role {
        // The process in the background says what there is to say.
        return Ok(ExitCode::from(launch(std::env::args_os().skip(1))?));
    }
    let background = match role {
        Role::Background(background) => Some(background),
        Role::Foreground | Role::Launcher => None,
    };
    let config = configuration(options, environment, warnings);
    // What is on the command line stays; what it names, such as keys, may have changed.
    let again = || {
        Ok(Configuration {
            remarks: Vec::new(),
            ..config.clone()
        })
    };
    server::run(&config, &again, background, predecessor)?;
    Ok(ExitCode::SUCCESS)
}

fn print(text: &str) -> ExitCode {
    // `nix-serve --help | head -1` closes the pipe early; that is no failure worth a message.
    match io::stdout()
        .write_all(text.as_bytes())
        .and_then(|()| io::stdout().flush())
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// For what comes before there is an error log. Standard error may be closed: then nobody is told.
fn complain(level: &str, message: &str) {
    writeln!(io::stderr(), "nix-serve: {level}: {message}").ok();
}
