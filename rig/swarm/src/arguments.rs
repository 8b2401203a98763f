//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{IntoResettable, StyledStr, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use swarm::{Turn, connections_both, connections_max};

use crate::goal::{Bounds, GOALS, Goal};

/// Name of the goal that first searches for the server's capacity, in several runs.
const OVERLOAD: &str = "overload";
/// Name of the goal that opens more connections than the server allows.
const FULL: &str = "full";

/// Kind of server under load.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Target {
    Kettles,
    /// Binary cache: the file with its store paths, and what a client does in each period.
    Cache(PathBuf, Turn),
}

/// Parsed command line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Arguments {
    pub(crate) target: Target,
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
    pub(crate) threads: usize,
    pub(crate) sources: u8,
    pub(crate) seed: u64,
    pub(crate) pid: Option<u32>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) quiet: bool,
    /// Whether kettles log in before their first other request.
    pub(crate) login: bool,
    /// Whether each kettle uses a WebSocket.
    pub(crate) websocket: bool,
    /// Whether to find the server's capacity and then send three times as much.
    pub(crate) is_overload: bool,
    /// Whether to open more connections than the server allows.
    pub(crate) is_full: bool,
    pub(crate) bounds: Bounds,
}

impl Arguments {
    /// Parses the command line. The error for `--help` carries its text.
    pub(crate) fn parse(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, clap::Error> {
        let matches = command().try_get_matches_from(arguments)?;
        match matches.subcommand() {
            Some(("kettles", matches)) => Ok(Self::kettles(matches)),
            Some(("cache", matches)) => Ok(Self::cache(matches)),
            _ => Err(command().error(
                clap::error::ErrorKind::MissingSubcommand,
                "no subcommand given",
            )),
        }
    }

    /// Returns the number of connections, capped by the limit of open files.
    pub(crate) fn connections(&self) -> usize {
        // The user may ask for more connections than the server allows.
        self.connections.min(if self.is_connections_given {
            connections_max()
        } else {
            connections_both()
        })
    }

    fn kettles(matches: &ArgMatches) -> Self {
        let name = matches.get_one::<String>("goal");
        let goal = name.and_then(|name| GOALS.iter().find(|goal| goal.name == name));
        let of_goal = |value: fn(&Goal) -> f64| goal.map(value);
        let count = one(matches, "count")
            .or(goal.map(|it| it.count))
            .unwrap_or(1_000);
        let period = seconds(matches, "every", 30.0);
        let within = of_goal(|it| it.within_s).unwrap_or(period.as_secs_f64());
        let bounds = goal.map(|it| it.bounds).unwrap_or_default();
        Self {
            target: Target::Kettles,
            count,
            connections: one(matches, "connections")
                .or(goal.map(|it| it.connections))
                .unwrap_or(count),
            period,
            within: seconds(matches, "within", within).min(period),
            login: matches.get_flag("login"),
            websocket: matches.get_flag("websocket"),
            is_overload: name.is_some_and(|name| name == OVERLOAD),
            is_full: name.is_some_and(|name| name == FULL),
            duration: seconds(matches, "for", of_goal(|it| it.duration_s).unwrap_or(60.0)),
            ..Self::common(matches, bounds)
        }
    }

    fn cache(matches: &ArgMatches) -> Self {
        let otherwise = Turn::default();
        let turn = Turn {
            queries: one(matches, "queries").unwrap_or(otherwise.queries),
            misses_of_100: one(matches, "misses").unwrap_or(otherwise.misses_of_100),
            downloads: !matches.get_flag("no-downloads"),
        };
        let paths = one(matches, "paths").unwrap_or_default();
        let period = seconds(matches, "every", 10.0);
        Self {
            target: Target::Cache(paths, turn),
            count: one(matches, "count").unwrap_or(100),
            connections: one(matches, "connections").unwrap_or(200),
            period,
            within: period,
            duration: seconds(matches, "for", 60.0),
            ..Self::common(matches, Bounds::default())
        }
    }

    fn common(matches: &ArgMatches, bounds: Bounds) -> Self {
        let command = matches.get_many::<String>("command").unwrap_or_default();
        Self {
            target: Target::Kettles,
            address: one(matches, "address"),
            command: command.cloned().collect(),
            count: 0,
            connections: 0,
            is_connections_given: matches.contains_id("connections"),
            period: Duration::ZERO,
            within: Duration::ZERO,
            duration: Duration::ZERO,
            timeout: seconds(matches, "timeout", 10.0),
            threads: one(matches, "threads").unwrap_or(1),
            sources: one(matches, "sources").unwrap_or(9),
            seed: one(matches, "seed").unwrap_or(1),
            pid: one(matches, "pid"),
            json: one(matches, "json"),
            quiet: matches.get_flag("quiet"),
            login: false,
            websocket: false,
            is_overload: false,
            is_full: false,
            bounds: Bounds {
                failures: one(matches, "failures-max").unwrap_or(bounds.failures),
                p99_ms: one(matches, "p99-max").or(bounds.p99_ms),
                server_us: one(matches, "server-us-max").or(bounds.server_us),
                server_cores: one(matches, "server-cores-max").or(bounds.server_cores),
            },
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
            option(
                "within",
                "SECONDS",
                positive,
                "time in which all kettles send once [the period]",
            ),
            flag("login", "log in first and use the assigned name"),
            websocket.conflicts_with_all(["login", "threads", "connections"]),
        ]);
    common(command)
}

fn cache() -> Command {
    let (path, count) = (value_parser!(PathBuf), value_parser!(u32));
    let percent = value_parser!(u32).range(0..=100);
    let paths = "store paths in the cache: output of `nix path-info --all`";
    let command = Command::new("cache")
        .about("Simulates Nix clients: each queries many narinfos, then downloads one closure")
        .args([
            option("paths", "FILE", path, paths).required(true),
            option("count", "N", whole(), "number of clients [100]"),
            option("every", "SECONDS", positive, "period of a client [10]"),
            option("queries", "N", count, "narinfos per period [50]"),
            option(
                "misses",
                "PERCENT",
                percent,
                "share of queries for absent paths [80]",
            ),
            flag("no-downloads", "query only; download nothing"),
        ]);
    common(command)
}

fn common(command: Command) -> Command {
    let address = "address of a running server, such as 127.0.0.1:8080";
    let connections =
        "connections shared by all clients [one each, as the descriptor limit allows]";
    let sources = value_parser!(u8).range(1..=254);
    let pid = "PID of the server, to report its CPU time and memory";
    let server_us = "bound: CPU time of the server per response, microseconds";
    command.args([
        option("address", "ADDRESS", value_parser!(SocketAddr), address),
        Arg::new("command")
            .value_name("COMMAND")
            .help("after --: a server to start, which prints its URL, and to stop afterwards")
            .num_args(1..)
            .last(true)
            .conflicts_with("address")
            .required_unless_present("address"),
        option("connections", "N", whole(), connections),
        option("for", "SECONDS", positive, "duration of the run [60]"),
        option(
            "timeout",
            "SECONDS",
            positive,
            "time after which a request has failed [10]",
        ),
        option("threads", "N", whole(), "threads of the generator [1]"),
        option(
            "sources",
            "N",
            sources,
            "number of loopback source addresses [9]",
        ),
        option("seed", "N", value_parser!(u64), "seed of the schedule [1]"),
        option("pid", "PID", value_parser!(u32), pid).conflicts_with("command"),
        option(
            "json",
            "FILE",
            value_parser!(PathBuf),
            "also write the report as JSON",
        ),
        flag("quiet", "do not print a line per second"),
        option(
            "failures-max",
            "N",
            value_parser!(u64),
            "bound: failed requests [0]",
        ),
        option(
            "p99-max",
            "N",
            positive,
            "bound: 99th percentile of the latency, milliseconds",
        ),
        option("server-us-max", "N", positive, server_us),
        option(
            "server-cores-max",
            "N",
            positive,
            "bound: CPU cores that the server keeps busy",
        ),
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
