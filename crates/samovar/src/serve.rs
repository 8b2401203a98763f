//! `samovar serve`: runs the server with a configuration file.

use std::env;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use samovar_server::config::{
    ConfigError, Configuration, Kind, OptionSpec, Origin, Settings, VARIABLE_PREFIX, read, show,
};
use samovar_server::server::{self, Predecessor};

use crate::credential::TOKEN_VARIABLE;

/// Environment variable with the path of the configuration file.
const CONFIG_VARIABLE: &str = "SAMOVAR_CONFIG";

/// Environment variables of other commands. They are not options, and may be set for a whole login.
const CLIENT_VARIABLES: [&str; 4] = [
    TOKEN_VARIABLE,
    "SAMOVAR_CACHE",
    "SAMOVAR_CACHE_DIR",
    "SAMOVAR_STATE_DIR",
];

/// Defines the command `samovar serve`, with all options of the configuration.
pub(crate) fn command() -> Command {
    let command = Command::new("serve")
        .about("Serves a store as a binary cache")
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
    with_options(command, "")
}

/// Adds all options of the configuration to a command, except `other`, which the command defines
/// itself.
pub(crate) fn with_options(command: Command, other: &str) -> Command {
    let command = command
        // If an option is repeated on the command line, its last value is used.
        .args_override_self(true)
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Configuration file in TOML [default: $SAMOVAR_CONFIG]"),
        )
        .arg(
            Arg::new("set")
                .long("set")
                .value_name("NAME=VALUE")
                .action(ArgAction::Append)
                .help("Set any option by its name in the file, such as caches.team-a.priority=20"),
        );
    OptionSpec::all()
        .filter(|spec| spec.name != other)
        .fold(command, |command, spec| command.arg(option(spec)))
}

fn option(spec: &OptionSpec) -> Arg {
    let arg = Arg::new(spec.name).long(spec.option()).help(format!(
        "{} [default: {}]",
        spec.help,
        spec.default()
    ));
    match spec.kind {
        Kind::Switch => arg
            .value_name("true|false")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
        Kind::List => arg.value_name("TEXT").action(ArgAction::Append),
        Kind::Word(words) => arg.value_name(words.join("|")),
        Kind::Text => arg.value_name("TEXT"),
        Kind::Path => arg.value_name("PATH"),
        Kind::Count(..) => arg.value_name("NUMBER"),
        Kind::Size(..) => arg.value_name("BYTES"),
        Kind::Time => arg.value_name("TIME"),
        Kind::Tables => arg.value_name("TOML"),
    }
}

/// Runs the server until a signal ends it, or prints the effective configuration.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let settings = settings(matches)?;
    let config = configuration(&settings)?;
    if matches.get_flag("check-config") {
        server::check(&config)?;
        return Ok(out.write_all(show(&settings).as_bytes())?);
    }
    let again = || {
        let fresh = self::settings(matches)?;
        let mut config = configuration(&fresh)?;
        let changed = fresh.changed_at_start_only(&settings);
        if !changed.is_empty() {
            config.remarks.push(format!(
                "these changes take effect after a restart (USR2 restarts without losing a \
                 request): {}",
                changed.join(", ")
            ));
        }
        Ok(config)
    };
    server::run(&config, &again, None, Predecessor::of_process()?)
}

pub(crate) fn settings(matches: &ArgMatches) -> anyhow::Result<Settings> {
    let mut settings = Settings::default();
    let named = matches.get_one("config").cloned();
    let file = named.or_else(|| env::var_os(CONFIG_VARIABLE).map(PathBuf::from));
    if let Some(file) = file {
        settings.add_file(&file)?;
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
        let value = value.with_context(|| format!("${name} is not UTF-8"))?;
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
            Kind::List => settings.set_list(spec.name, texts.cloned(), origin)?,
            _ => {
                for text in texts {
                    settings.set(spec.name, text, origin.clone())?;
                }
            }
        }
    }
    for text in matches.get_many::<String>("set").into_iter().flatten() {
        let pair = text.split_once('=');
        let (name, value) = pair.with_context(|| format!("--set {text} is not NAME=VALUE"))?;
        settings.set(name.trim(), value, Origin::Option("set".to_owned()))?;
    }
    Ok(settings)
}

/// Returns whether the command line or the environment names a configuration file.
pub(crate) fn has_file(matches: &ArgMatches) -> bool {
    matches.contains_id("config") || env::var_os(CONFIG_VARIABLE).is_some()
}

pub(crate) fn configuration(settings: &Settings) -> Result<Configuration, ConfigError> {
    read(settings, |name| env::var(name).ok())
}
