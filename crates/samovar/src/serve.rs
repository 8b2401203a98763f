//! `samovar serve`: runs the server with a configuration file.

use std::cell::RefCell;
use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use samovar_server::config::{
    ConfigError, Configuration, Kind, OptionSpec, Origin, Settings, VARIABLE_PREFIX, read, show,
};
use samovar_server::server::{self, Applied, Predecessor};
use samovar_text::without_logins;

use crate::credential::{ID_TOKEN_VARIABLE, PIPE_VARIABLE, TOKEN_VARIABLE};
use crate::credentials::PLAIN_VARIABLE;
use crate::outcome::Failed;
use crate::remote::URL_VARIABLE;

/// Environment variable with the path of the configuration file.
const CONFIG_VARIABLE: &str = "SAMOVAR_CONFIG";

/// Configuration file of the service that the Debian package and the NixOS module install.
pub(crate) const SERVICE_FILE: &str = "/etc/samovar/samovar.toml";

/// Credentials of that service, which root may read while it runs.
const SERVICE_CREDENTIALS: &str = "/run/credentials/samovar.service";

/// Environment variables of other commands. They are not options, and may be set for a whole login,
/// or for the command that a client runs.
const CLIENT_VARIABLES: [&str; 8] = [
    TOKEN_VARIABLE,
    ID_TOKEN_VARIABLE,
    PIPE_VARIABLE,
    PLAIN_VARIABLE,
    URL_VARIABLE,
    "SAMOVAR_CACHE_DIR",
    "SAMOVAR_RUN_PARENT",
    "SAMOVAR_STATE_DIR",
];

/// Defines the command `samovar serve`, with all options of the configuration.
pub(crate) fn command() -> Command {
    let command = Command::new("serve")
        .about("Serves a store as a binary cache")
        // Without it, the synopsis of the man page lists all options.
        .override_usage("samovar serve [OPTIONS]")
        .arg(
            Arg::new("check-config")
                .long("check-config")
                .action(ArgAction::SetTrue)
                .help("Print the effective configuration and the origin of each value, and exit"),
        )
        .after_help(
            "Each option can also be set in the configuration file and in the environment: the \
             option --nar-cache-size is nar-cache.size in the file and SAMOVAR_NAR_CACHE_SIZE \
             in the environment. The command line takes precedence over the environment, and \
             the environment over the file.",
        );
    with_options(command, |_| true)
}

/// Adds all options of the configuration to a command, except those whose name the command uses
/// itself. Its help shows the options for which `is_shown` is true.
pub(crate) fn with_options(command: Command, is_shown: impl Fn(&str) -> bool) -> Command {
    let is_complete = OptionSpec::all().all(|spec| is_shown(spec.name));
    // A repeated option with one value is refused: whoever keeps `access` in a second file would
    // otherwise start an open cache.
    let command = command.arg(config()).arg(set(is_complete));
    let own: Vec<String> = command
        .get_arguments()
        .map(|arg| arg.get_id().to_string())
        .collect();
    OptionSpec::by_heading()
        .filter(|(_, spec)| own.iter().all(|name| name != spec.name))
        .fold(command, |command, (heading, spec)| {
            let option = option(spec).help_heading(heading);
            let option = match (spec.name, command.get_name()) {
                // Other commands do not create it.
                ("storage", name) if !["serve", "import", "doctor"].contains(&name) => {
                    option.help("Directory of the storage [default: none]")
                }
                _ => option,
            };
            command.arg(option.hide(!is_shown(spec.name)))
        })
}

/// Defines `--set`. `is_complete`: whether the help lists all options.
pub(crate) fn set(is_complete: bool) -> Arg {
    let help = "Set any option by its name in the file, such as caches.team-a.priority=20";
    Arg::new("set")
        .long("set")
        .value_name("NAME=VALUE")
        .action(ArgAction::Append)
        .help(match is_complete {
            true => help.to_owned(),
            false => format!("{help}; every option of samovar serve is accepted"),
        })
}

/// Defines `--config`.
pub(crate) fn config() -> Arg {
    Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help(
            "Configuration file in TOML [default: $SAMOVAR_CONFIG, /etc/samovar/samovar.toml if \
             it exists]",
        )
}

fn option(spec: &OptionSpec) -> Arg {
    let help = format!("{} [default: {}]", spec.help, spec.default());
    let arg = Arg::new(spec.name)
        .long(spec.option())
        .aliases(spec.aliases)
        .value_name(spec.kind.value_name())
        .help(help);
    match spec.kind {
        Kind::Switch => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
        Kind::List | Kind::Urls => arg.action(ArgAction::Append),
        // So that the message about a negative number names the bounds.
        Kind::Count(..) => arg.allow_negative_numbers(true),
        _ => arg,
    }
}

/// Makes the words that options of `samovar serve` take known to completions. When an option is
/// parsed, the configuration checks its words, not clap.
pub(crate) fn with_words(command: Command) -> Command {
    command.mut_subcommand("serve", |serve| {
        OptionSpec::all().fold(serve, |serve, spec| match spec.kind {
            Kind::Word(words) => serve.mut_arg(spec.name, |arg| {
                arg.value_parser(PossibleValuesParser::new(words.iter().copied()))
            }),
            _ => serve,
        })
    })
}

/// Runs the server until a signal ends it, or prints the effective configuration.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    // A reload or an upgrade must not lose the file: without it, everybody could read what the file
    // restricts.
    let file = file(matches);
    let settings = settings_in(matches, file.as_deref())?;
    let mut config = configuration(&settings)?;
    config.successor_environment = file.clone().map(|file| (CONFIG_VARIABLE, file));
    if matches.get_flag("check-config") {
        server::check(&config)?;
        return Ok(out.write_all(without_logins(&show(&settings, &config)).as_bytes())?);
    }
    let current = &RefCell::new(settings.clone());
    let again = || {
        let file = file.clone().or_else(|| self::file(matches));
        let fresh = settings_in(matches, file.as_deref())?;
        let mut config = configuration(&fresh)?;
        let changed = fresh.changed_at_start(&settings);
        if !changed.is_empty() {
            config.remarks.push(format!(
                "these changes take effect after a restart (USR2 restarts without losing a \
                 request): {}",
                changed.join(", ")
            ));
        }
        let applied: Applied<'_> = Box::new(move || {
            let changed = fresh.changed_at_reload(&current.borrow());
            current.replace(fresh);
            Some(changed)
        });
        Ok((config, applied))
    };
    server::run(&config, &again, None, Predecessor::of_process()?)
}

pub(crate) fn settings(matches: &ArgMatches) -> anyhow::Result<Settings> {
    settings_in(matches, file(matches).as_deref())
}

/// Returns the settings of the command line, the environment, and this file.
fn settings_in(matches: &ArgMatches, file: Option<&Path>) -> anyhow::Result<Settings> {
    let mut settings = Settings::default();
    if let Some(file) = file {
        settings.add_file(file)?;
    }
    let mut variables = Vec::new();
    for (name, value) in env::vars_os() {
        let Some(name) = name
            .to_str()
            .filter(|name| name.starts_with(VARIABLE_PREFIX))
        else {
            continue;
        };
        let value = value.into_string().ok();
        let value = value.ok_or_else(|| Failed::Usage.because(anyhow!("${name} is not UTF-8")))?;
        variables.push((name.to_owned(), value));
    }
    let others = [&[CONFIG_VARIABLE], &CLIENT_VARIABLES[..]].concat();
    settings.add_variables(variables, &others)?;
    for spec in OptionSpec::all() {
        let origin = Origin::Option(spec.option());
        let Ok(Some(texts)) = matches.try_get_many::<String>(spec.name) else {
            continue;
        };
        match spec.kind {
            Kind::List | Kind::Urls => settings.set_list(spec.name, texts.cloned(), origin)?,
            _ => {
                for text in texts {
                    settings.set(spec.name, text, origin.clone())?;
                }
            }
        }
    }
    // Commands that work on a storage alone lack the option.
    let set = matches.try_get_many::<String>("set").unwrap_or_default();
    for text in set.into_iter().flatten() {
        let pair = text.split_once('=');
        let (name, value) =
            pair.ok_or_else(|| Failed::Usage.because(anyhow!("--set {text} is not NAME=VALUE")))?;
        settings.set(name.trim(), value, Origin::Option("set".to_owned()))?;
    }
    Ok(settings)
}

/// Returns the configuration file: the given one, or that of the service if it is installed. If a
/// directory cannot be searched, so that it is unknown whether the file exists, returns its path:
/// reading the file will then fail.
pub(crate) fn file(matches: &ArgMatches) -> Option<PathBuf> {
    let named = matches.get_one("config").cloned();
    let given = named.or_else(|| env::var_os(CONFIG_VARIABLE).map(PathBuf::from));
    let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    given.or_else(|| match fs::symlink_metadata(SERVICE_FILE) {
        Err(error) if is_missing(&error) => None,
        _ => Some(PathBuf::from(SERVICE_FILE)),
    })
}

pub(crate) fn configuration(settings: &Settings) -> Result<Configuration, ConfigError> {
    // A command that an operator runs gets no credentials: it uses those of the running service.
    let credentials = || Path::new(SERVICE_CREDENTIALS).exists();
    read(settings, |name| match (name, env::var(name)) {
        (_, Ok(value)) => Some(value),
        ("CREDENTIALS_DIRECTORY", Err(_)) => credentials().then(|| SERVICE_CREDENTIALS.to_owned()),
        (_, Err(_)) => None,
    })
}
