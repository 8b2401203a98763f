//! `samovar workspace`: local directories with the files of a ref.
//!
//! # Exit codes
//!
//! | exit code | meaning |
//! | --- | --- |
//! | 0 | done; `status` and `diff`: no unpushed changes |
//! | 1 | refused, or conflicts are left; `status` and `diff`: unpushed changes |
//! | 2 | the command line is invalid, or the directory is not in a workspace |
//! | 3 | the cache or the directory is unavailable |
//!
//! # Theory of operation
//!
//! The state of a workspace is in `.samovar` in its root ([`state`]). It names the *base*: the
//! generation of the last push or pull. A push uploads the difference to the base, and sets the ref
//! only if the base is still its newest generation. A pull merges the newest generation with the
//! local changes since the base.

mod disk;
mod local;
mod open;
mod pull;
mod push;
mod registry;
mod state;
mod status;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{ArgMatches, Command, value_parser};
use samovar_storage::token::now;

use crate::arguments::{json, option, required, switch};
use crate::credentials::{self, Sources};
use crate::outcome::Failed;
use crate::push::KEEP;
use crate::refs::RefName;
use state::Workspace;

/// Defines the command `samovar workspace`.
pub(crate) fn command() -> Command {
    Command::new("workspace")
        .visible_alias("ws")
        .about("Manages workspaces: local directories that are pushed to a ref and pulled from it")
        .after_help(
            "A workspace is an ordinary directory on a local disk. Its state is in .samovar in its \
             root. Push makes the whole tree durable on the server as the next generation of the \
             ref; pull merges the newest generation. Exit code 0: done; 1: the request was \
             refused, or conflicts are left; 2: the command line is invalid, or the directory is \
             not in a workspace; 3: the cache or the directory is unavailable.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(open())
        .subcommand(
            in_workspace(
                "status",
                "Shows the unpushed changes, and whether the server has newer files",
            )
            .after_help(
                "Never fails because the server is unreachable. Exit code 0: no unpushed \
                     changes; 1: unpushed changes.",
            )
            .arg(switch("offline").help("Send no request to the server"))
            .arg(json()),
        )
        .subcommand(
            in_workspace(
                "diff",
                "Lists the paths that differ from the last push or pull",
            )
            .after_help("Exit code 0: none; 1: some."),
        )
        .subcommand(push_command())
        .subcommand(in_workspace(
            "log",
            "Lists the generations of the ref, with * at that of the last push or pull",
        ))
        .subcommand(
            in_workspace("close", "Makes a workspace an ordinary directory")
                .after_help("Refuses while there are unpushed changes. The files stay.")
                .arg(switch("discard").help("Close even if there are unpushed changes"))
                .arg(switch("delete").help("Delete the files")),
        )
        .subcommand(
            Command::new("list")
                .about("Lists the workspaces of this user on this machine")
                .arg(json()),
        )
}

fn open() -> Command {
    Command::new("open")
        .about("Makes a directory a workspace of a ref")
        .after_help(
            "A REF is [URL#]NAME[@GENERATION]; without URL#, the cache is that of the variable \
             SAMOVAR_CACHE. If the ref exists, its newest or the given generation is downloaded \
             into the directory, which must not exist or be empty. If it does not exist, the \
             first push creates it from the files of the directory. Opening a workspace again \
             has no effect.",
        )
        .args(credentials::options())
        .arg(
            switch("adopt")
                .help("Accept a directory with files, which stay as they are and count as changes"),
        )
        .arg(
            switch("on-network-disk")
                .help("Accept a directory on a network file system, which is slow"),
        )
        .arg(
            switch("public")
                .help("Accept a cache that everybody can read; the files will be public"),
        )
        .arg(required("ref", "REF"))
        .arg(required("directory", "DIR").value_parser(value_parser!(PathBuf)))
}

fn push_command() -> Command {
    in_workspace(
        "push",
        "Uploads the files as the next generation of the ref",
    )
    .after_help(
        "Returns when the server has written the tree to stable storage. If another machine \
             has pushed meanwhile, nothing is published: pull first.",
    )
    .arg(option("message", "TEXT").help("Message for the log of the ref"))
    .arg(switch("force").help("Set the ref even if it has newer generations, without merging them"))
    .arg(
        option("keep", "NUMBER")
            .value_parser(value_parser!(u32).range(1..))
            .help(format!(
                "Keep the newest generations only, including the new one [default: {KEEP}]"
            )),
    )
    .arg(json())
}

/// Defines a subcommand for the workspace that contains the current directory.
fn in_workspace(name: &'static str, about: &'static str) -> Command {
    let directory = option("dir", "DIR")
        .value_parser(value_parser!(PathBuf))
        .help("Use the workspace that contains DIR [default: the current directory]");
    let command = Command::new(name).about(about).arg(directory);
    match name {
        "diff" | "close" => command,
        _ => command.args(credentials::options()),
    }
}

/// Runs one subcommand of `samovar workspace`.
///
/// # Errors
///
/// The reason, with its exit code.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let (command, matches) = matches.subcommand().context("a command is missing")?;
    match command {
        "open" => {
            let text: &String = matches.get_one("ref").context("a ref is missing")?;
            let directory: &PathBuf = matches.get_one("directory").context("DIR is missing")?;
            let opening = open::Opening {
                name: RefName::parse(text).map_err(|error| Failed::Usage.because(error))?,
                directory,
                adopts: matches.get_flag("adopt"),
                may_be_on_network: matches.get_flag("on-network-disk"),
                is_public: matches.get_flag("public"),
            };
            open::open(&opening, &Sources::of(matches), out)?;
        }
        "list" => open::list(matches.get_flag("json"), out)?,
        _ => {
            let directory = matches.get_one::<PathBuf>("dir").map(PathBuf::as_path);
            let mut workspace = Workspace::find(directory.unwrap_or(Path::new(".")))?;
            return run_in(command, matches, &mut workspace, out);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run_in(
    command: &str,
    matches: &ArgMatches,
    workspace: &mut Workspace,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    match command {
        "status" => {
            let is_offline = matches.get_flag("offline");
            let is_json = matches.get_flag("json");
            return status::status(workspace, &Sources::of(matches), is_offline, is_json, out);
        }
        "diff" => return status::diff(workspace, out),
        "push" => {
            let options = push::Options {
                message: matches.get_one::<String>("message").map(String::as_str),
                keep: matches.get_one("keep").copied().unwrap_or(KEEP),
                is_forced: matches.get_flag("force"),
                is_json: matches.get_flag("json"),
            };
            push::run(workspace, options, &Sources::of(matches), out)?;
        }
        "log" => status::log(workspace, &Sources::of(matches), out)?,
        _ => {
            let discards = matches.get_flag("discard");
            open::close(workspace, discards, matches.get_flag("delete"), out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats the time since `seconds` after 1970, as `5 min ago`.
fn age(seconds: i64) -> String {
    let age = now().saturating_sub(seconds);
    match age {
        ..0 => "in the future, by the clock of this machine".to_owned(),
        0..60 => format!("{age} s ago"),
        60..3600 => format!("{} min ago", age / 60),
        3600..172_800 => format!("{} h ago", age / 3600),
        _ => format!("{} days ago", age / 86_400),
    }
}
