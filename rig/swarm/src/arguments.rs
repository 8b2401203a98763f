//! The command line of `swarm`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{IntoResettable, StyledStr, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use swarm::{connections_both, connections_max};

use crate::goal::{Bounds, CACHE, GOALS, Goal, KETTLES};

/// Name of the goal that first searches for the server's capacity, in several runs.
const OVERLOAD: &str = "overload";
/// Name of the goal that opens more connections than the server allows.
const FULL: &str = "full";

/// Error if the command line names no server.
const NO_SERVER: &str = "no server to send requests to: give --address ADDRESS of a running \
     server, such as --address 127.0.0.1:8080, or after -- a command that starts one, such as \
     -- kettles serve --port 0";

/// The load that the command line selects.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Load {
    Kettles {
        /// Whether each kettle logs in before it sends other requests.
        log_in: bool,
    },
    /// Kettles that send their measurements over a WebSocket each.
    WebSockets,
    /// Kettles that send three times as many requests as the server can answer.
    Overload,
    /// More connections of kettles than the server allows.
    Full,
    /// Nix clients. The value is the file that lists the store paths of the cache.
    Cache(PathBuf),
}

/// Parsed command line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Arguments {
    pub(crate) load: Load,
    /// Address of a running server.
    pub(crate) address: Option<SocketAddr>,
    /// Command that starts the server; empty if `address` is given.
    pub(crate) command: Vec<String>,
    pub(crate) count: usize,
    pub(crate) connections: usize,
    pub(crate) is_connections_given: bool,
    pub(crate) period: Duration,
    pub(crate) within: Duration,
    pub(crate) duration: Duration,
    pub(crate) timeout: Duration,
    pub(crate) seed: u64,
    pub(crate) pid: Option<u32>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) quiet: bool,
    pub(crate) bounds: Bounds,
}

impl Arguments {
    /// Parses the command line. For `--help`, returns an error that contains the help text.
    pub(crate) fn parse(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, clap::Error> {
        let matches = command().try_get_matches_from(arguments)?;
        if let Some((_, load)) = matches.subcommand()
            && !load.contains_id("address")
            && !load.contains_id("command")
        {
            let kind = clap::error::ErrorKind::MissingRequiredArgument;
            return Err(command().error(kind, NO_SERVER));
        }
        match matches.subcommand() {
            Some(("kettles", matches)) => Ok(Self::kettles(matches)),
            Some(("cache", matches)) => {
                let load = Load::Cache(one(matches, "paths").unwrap_or_default());
                Ok(Self::new(matches, load, CACHE))
            }
            _ => Err(command().error(
                clap::error::ErrorKind::MissingSubcommand,
                "no subcommand given",
            )),
        }
    }

    /// Returns the number of connections, at most as many as the limit of open files allows.
    pub(crate) fn connections(&self) -> usize {
        // The user may ask for more connections than the server allows.
        self.connections.min(if self.is_connections_given {
            connections_max()
        } else {
            connections_both()
        })
    }

    fn kettles(matches: &ArgMatches) -> Self {
        let name = matches.get_one::<String>("goal").map(String::as_str);
        let load = match name {
            Some(OVERLOAD) => Load::Overload,
            Some(FULL) => Load::Full,
            _ if matches.get_flag("websocket") => Load::WebSockets,
            _ => Load::Kettles {
                log_in: matches.get_flag("login"),
            },
        };
        let goal = GOALS.iter().find(|goal| Some(goal.name) == name);
        Self::new(matches, load, *goal.unwrap_or(&KETTLES))
    }

    /// Combines the given options with the values of `goal` for all other options.
    fn new(matches: &ArgMatches, load: Load, goal: Goal) -> Self {
        let count = one(matches, "count").unwrap_or(goal.count);
        let period = seconds(matches, "every", goal.period_s);
        let command = matches.get_many::<String>("command").unwrap_or_default();
        Self {
            load,
            address: one(matches, "address"),
            command: command.cloned().collect(),
            count,
            connections: one(matches, "connections")
                .or(goal.connections)
                .unwrap_or(count),
            is_connections_given: matches.contains_id("connections"),
            period,
            within: goal.within.unwrap_or(period).min(period),
            duration: seconds(matches, "for", goal.duration_s),
            timeout: seconds(matches, "timeout", 10.0),
            seed: one(matches, "seed").unwrap_or(1),
            pid: one(matches, "pid"),
            json: one(matches, "json"),
            quiet: matches.get_flag("quiet"),
            bounds: goal.bounds,
        }
    }
}

fn one<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, name: &str) -> Option<T> {
    matches.get_one(name).cloned()
}

fn seconds(matches: &ArgMatches, name: &str, otherwise: f64) -> Duration {
    let value = one(matches, name).unwrap_or(otherwise);
    // `positive` has rejected values that no `Duration` can represent.
    Duration::try_from_secs_f64(value).unwrap_or_default()
}

fn command() -> Command {
    Command::new("swarm")
        .about("Open-loop load generator: sends requests when they are due, not after answers")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(kettles())
        .subcommand(cache())
}

fn kettles() -> Command {
    let goals = GOALS
        .iter()
        .map(|goal| format!("{}: {}", goal.name, goal.about));
    let goals = goals.collect::<Vec<_>>().join("; ");
    let goals = format!(
        "preset of counts, times and bounds: {goals}; {FULL}: more connections than the server \
         allows; {OVERLOAD}: three times the highest load that the server sustains"
    );
    let names = GOALS.iter().map(|goal| goal.name).chain([FULL, OVERLOAD]);
    let names = names.collect::<Vec<_>>();
    let websocket = flag(
        "websocket",
        "send measurements over one WebSocket per kettle; no polling",
    );
    let command = Command::new("kettles")
        .about(
            "Simulates kettles: each polls for a command and sends a measurement once per period",
        )
        .args([
            option("goal", "NAME", names, goals),
            option("count", "N", whole(), "number of kettles [1000]"),
            option("every", "SECONDS", positive, "period of a kettle [30]"),
            flag("login", "log in first and use the assigned name"),
            websocket.conflicts_with_all(["login", "connections"]),
        ]);
    common(command)
}

fn cache() -> Command {
    let path = value_parser!(PathBuf);
    let paths = "store paths in the cache: output of `nix path-info --all`";
    let command = Command::new("cache")
        .about("Simulates Nix clients: each queries many narinfos, then downloads one closure")
        .args([
            option("paths", "FILE", path, paths).required(true),
            option("count", "N", whole(), "number of clients [100]"),
            option("every", "SECONDS", positive, "period of a client [10]"),
        ]);
    common(command)
}

fn common(command: Command) -> Command {
    let address = "address of a running server, such as 127.0.0.1:8080";
    let connections =
        "connections shared by all clients [one each, as the descriptor limit allows]";
    let timeout = "time after which a request has failed [10]";
    let pid = "PID of the server, to report its CPU time and memory";
    let (number, path) = (value_parser!(u32), value_parser!(PathBuf));
    command.args([
        option("address", "ADDRESS", value_parser!(SocketAddr), address),
        Arg::new("command")
            .value_name("COMMAND")
            .help("after --: a server to start, which prints its URL, and to stop afterwards")
            .num_args(1..)
            .last(true)
            .conflicts_with("address"),
        option("connections", "N", whole(), connections),
        option("for", "SECONDS", positive, "duration of the run [60]"),
        option("timeout", "SECONDS", positive, timeout),
        option("seed", "N", value_parser!(u64), "seed of the schedule [1]"),
        option("pid", "PID", number, pid).conflicts_with("command"),
        option("json", "FILE", path, "also write the report as JSON"),
        flag("quiet", "do not print a line per second"),
    ])
}

fn option(
    name: &'static str,
    of: &'static str,
    parser: impl IntoResettable<ValueParser>,
    about: impl IntoResettable<StyledStr>,
) -> Arg {
    let arg = Arg::new(name).long(name).value_name(of);
    arg.help(about).value_parser(parser)
}

fn flag(name: &'static str, about: &'static str) -> Arg {
    let arg = Arg::new(name).long(name).help(about);
    arg.action(ArgAction::SetTrue)
}

fn whole() -> ValueParser {
    ValueParser::from(|text: &str| match text.parse::<usize>() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(error.to_string()),
    })
}

/// Parses a number of seconds above zero.
fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number < 1e9 => Ok(number),
        Ok(_) => Err("must be above 0".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
