//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use swarm::{Turn, connections_both, connections_max};

use crate::goal::{Bounds, GOALS, Goal};

/// The goal that is more than one run.
const OVERLOAD: &str = "overload";
/// The same.
const FULL: &str = "full";

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Target {
    Kettles,
    /// A binary cache that has the paths in this file.
    Cache(PathBuf, Turn),
}

/// A command line that was understood.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Arguments {
    pub(crate) target: Target,
    /// The server, if it runs already.
    pub(crate) address: Option<SocketAddr>,
    /// The server, if it is to be started.
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
    /// Kettles ask for their names first.
    pub(crate) login: bool,
    /// Each kettle has a WebSocket.
    pub(crate) websocket: bool,
    /// It is looked for what the server can, and then three times of it are asked.
    pub(crate) is_overload: bool,
    /// It is looked what becomes of those who come when it is full.
    pub(crate) is_full: bool,
    pub(crate) bounds: Bounds,
}

impl Arguments {
    /// # Errors
    ///
    /// What is wrong with them, or the help that was asked for.
    pub(crate) fn parse(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, clap::Error> {
        let matches = command().try_get_matches_from(arguments)?;
        match matches.subcommand() {
            Some(("kettles", matches)) => Ok(Self::kettles(matches)),
            Some(("cache", matches)) => Ok(Self::cache(matches)),
            _ => Err(command().error(clap::error::ErrorKind::MissingSubcommand, "what is asked?")),
        }
    }

    /// As many as asked for, or as there may be.
    pub(crate) fn connections(&self) -> usize {
        // Who asks for more than a server takes sees what it does with them.
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
    // What is no time at all is refused before.
    Duration::try_from_secs_f64(value).unwrap_or_default()
}

fn command() -> Command {
    Command::new("swarm")
        .about("Loads a server at a rate of its own: requests leave when they are due")
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
    let goals = format!("{goals}; {FULL}: more connections than it may have");
    let goals = format!("{goals}; {OVERLOAD}: three times what the server can, and what then");
    let names = GOALS.iter().map(|goal| goal.name).chain([FULL, OVERLOAD]);
    let names = names.collect::<Vec<_>>();
    let command = Command::new("kettles")
        .about("Kettles, which ask for a command and send a measurement once in a period")
        .arg(
            value(
                "goal",
                "NAME",
                format!("counts, times and bounds by name: {goals}"),
            )
            .value_parser(names),
        )
        .arg(value("count", "N", "kettles [1000]").value_parser(whole()))
        .arg(value("every", "SECONDS", "their period [30]").value_parser(positive))
        .arg(
            value("within", "SECONDS", "all of them come within [the period]")
                .value_parser(positive),
        )
        .arg(
            Arg::new("login")
                .long("login")
                .help("each logs in first, and has the name that it gets")
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new("websocket")
                .long("websocket")
                .help("each sends its measurements over a WebSocket, and asks for nothing")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["login", "threads", "connections"]),
        );
    common(command)
}

fn cache() -> Command {
    let command = Command::new("cache")
        .about("Nix clients, which ask for many paths and then download one with all it needs")
        .arg(
            value(
                "paths",
                "FILE",
                "what the cache has, as `nix path-info --all` says it",
            )
            .value_parser(value_parser!(PathBuf))
            .required(true),
        )
        .arg(value("count", "N", "clients [100]").value_parser(whole()))
        .arg(value("every", "SECONDS", "their period [10]").value_parser(positive))
        .arg(value("queries", "N", "paths that one asks for [50]").value_parser(value_parser!(u32)))
        .arg(
            value(
                "misses",
                "PERCENT",
                "of these, paths that are not there [80]",
            )
            .value_parser(value_parser!(u32).range(0..=100)),
        )
        .arg(
            Arg::new("no-downloads")
                .long("no-downloads")
                .help("asks, and downloads nothing")
                .action(ArgAction::SetTrue),
        );
    common(command)
}

fn common(command: Command) -> Command {
    let bound = |name, about| value(name, "N", about).value_parser(positive);
    command
        .arg(
            value("address", "ADDRESS", "the server, such as 127.0.0.1:8080")
                .value_parser(value_parser!(SocketAddr)),
        )
        .arg(
            Arg::new("command")
                .value_name("COMMAND")
                .help("after --: a server to start, which says its URL, and to end afterwards")
                .num_args(1..)
                .last(true)
                .conflicts_with("address")
                .required_unless_present("address"),
        )
        .arg(
            value(
                "connections",
                "N",
                "shared by all [one each, as far as descriptors go]",
            )
            .value_parser(whole()),
        )
        .arg(value("for", "SECONDS", "how long [60]").value_parser(positive))
        .arg(
            value(
                "timeout",
                "SECONDS",
                "an answer that takes longer is none [10]",
            )
            .value_parser(positive),
        )
        .arg(value("threads", "N", "of the generator [1]").value_parser(whole()))
        .arg(
            value(
                "sources",
                "N",
                "addresses to come from, on the loopback [9]",
            )
            .value_parser(value_parser!(u8).range(1..=254)),
        )
        .arg(value("seed", "N", "who asks when [1]").value_parser(value_parser!(u64)))
        .arg(
            value(
                "pid",
                "PID",
                "the server's process: what it takes is reported",
            )
            .value_parser(value_parser!(u32))
            .conflicts_with("command"),
        )
        .arg(
            value("json", "FILE", "writes the report for programs, too")
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            Arg::new("quiet")
                .long("quiet")
                .help("no line each second")
                .action(ArgAction::SetTrue),
        )
        .arg(
            value(
                "failures-max",
                "N",
                "bound: requests without a good answer [0]",
            )
            .value_parser(value_parser!(u64)),
        )
        .arg(bound(
            "p99-max",
            "bound: milliseconds that 99 of 100 answers take",
        ))
        .arg(bound(
            "server-us-max",
            "bound: microseconds of the server's processors an answer",
        ))
        .arg(bound(
            "server-cores-max",
            "bound: processors that the server keeps busy",
        ))
}

fn value(name: &'static str, of: &'static str, about: impl Into<clap::builder::StyledStr>) -> Arg {
    Arg::new(name).long(name).value_name(of).help(about)
}

fn whole() -> impl clap::builder::IntoResettable<clap::builder::ValueParser> {
    clap::builder::ValueParser::from(|text: &str| match text.parse::<usize>() {
        Ok(0) => Err("there must be one at least".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(error.to_string()),
    })
}

/// A number above zero that a time can have.
fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number < 1e9 => Ok(number),
        Ok(_) => Err("must be above 0".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
