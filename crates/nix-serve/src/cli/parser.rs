//! Parses arguments into a configuration.

use std::ffi::OsString;

use samovar_server::config::Configuration;

use super::draft::Draft;
use super::error::CliError;
use super::scanner::{Item, Value, scan};

/// The action that the command line requests.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one in the life of the process"
)]
pub enum Invocation {
    /// Print [`help`](super::help()) and exit.
    Help,
    /// Print [`version`](super::version()) and exit.
    Version,
    /// Start the server.
    Serve {
        /// The configuration of the server, with all warnings.
        config: Configuration,
        /// Whether `--daemonize` was given, so that the server must go to the background.
        daemonize: bool,
    },
}

/// Parses a command line, without the program's name. `environment` is the configuration from
/// [`environment`](crate::environment) that the options override.
///
/// `--help` and `--version` take precedence over everything, including errors.
///
/// # Errors
///
/// The first [`CliError`]. Exit with [`CliError::EXIT_CODE`].
///
/// # Examples
///
/// ```
/// # use nix_serve::{cli::{Invocation, parse}, environment};
/// let words = ["--listen", "127.0.0.1:5000", "-workers", "8", "--frobnicate"];
/// let environment = environment::read(|_| None);
/// let Invocation::Serve { config, .. } = parse(words.map(Into::into), environment)? else {
///     panic!()
/// };
/// assert_eq!(config.workers.map(|count| count.get()), Some(8));
/// assert_eq!(config.remarks, ["unknown option --frobnicate is ignored"]);
/// # Ok::<(), nix_serve::cli::CliError>(())
/// ```
pub fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    environment: Configuration,
) -> Result<Invocation, CliError> {
    let items = scan(arguments);
    if is_given(&items, "help") {
        return Ok(Invocation::Help);
    }
    if is_given(&items, "version") {
        return Ok(Invocation::Version);
    }
    let mut draft = Draft::new(environment);
    items.into_iter().try_for_each(|item| draft.take(item))?;
    let daemonize = draft.daemonize;
    let config = draft.finish()?;
    Ok(Invocation::Serve { config, daemonize })
}

fn is_given(items: &[Item], name: &str) -> bool {
    items.iter().any(|item| match item {
        Item::Known { option, value, .. } => {
            option.names.contains(&name) && *value == Value::Switch(true)
        }
        _ => false,
    })
}
