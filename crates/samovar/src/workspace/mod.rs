//! `samovar workspace`: local directories with the files of a ref.
//!
//! # Exit codes
//!
//! | exit code | meaning |
//! | --- | --- |
//! | 0 | done; `status` and `diff`: no unpushed changes |
//! | 1 | refused, or conflicts are left; `status` and `diff`: unpushed changes |
//! | 2 | the command line is invalid, or the directory is not in a workspace |
//! | 3 | the cache or the directory is unavailable; `status` and `diff`: any other error |
//!
//! # Theory of operation
//!
//! The state of a workspace (`samovar-client`, `workspace/`) is in a directory of the user, found
//! by the identity of the workspace's directory (`registry.rs`). The state names the *base*
//! (`state.rs`): the generation of the last push or pull. A push uploads the difference to the
//! base, and sets the ref only if the base is still the newest generation of the ref. A pull merges
//! the newest generation with the local changes since the base.

mod adopt;
mod apply;
mod auto;
mod command;
mod conflicts;
mod delete;
mod fetch;
mod held;
mod list;
mod local;
mod on_server;
mod open;
mod overlay;
mod pull;
mod push;
mod repair;
mod repositories;
mod restore;
mod status;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use clap::ArgMatches;
use samovar_client::workspace::Workspace;
use samovar_storage::token::now;

use command::OVERLAY;
pub(crate) use command::command;

use crate::arguments::{keys_of, sources};
use crate::outcome::{Failed, reason};
use crate::push::KEEP;
use crate::refs::RefName;
use crate::remote::Remote;

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
                name: RefName::parse_new(text).map_err(|error| Failed::Usage.because(error))?,
                directory,
                adopts: matches.get_flag("adopt"),
                may_be_on_network: matches.get_flag("on-network-disk"),
                is_public: matches.get_flag("public"),
                keys: keys_of(matches),
                is_overlay: matches
                    .get_one::<String>("mode")
                    .is_some_and(|mode| mode == OVERLAY),
            };
            return open::open(&opening, &sources(matches), out);
        }
        "run" => return Ok(overlay::run(matches)),
        "run-guard" => {
            let namespace: &String = matches.get_one("namespace").context("no namespace")?;
            overlay::run_guard(namespace)?;
        }
        "list" => list::list(matches.get_flag("json"), out)?,
        _ => {
            let directory = matches.get_one::<PathBuf>("dir").map(PathBuf::as_path);
            let directory = directory.unwrap_or(Path::new("."));
            if command == "close" && open::close_deleted(directory, out)? {
                return Ok(ExitCode::SUCCESS);
            }
            let found = Workspace::find(directory);
            let done = found.and_then(|mut found| run_in(command, matches, &mut found, out));
            return match command {
                "status" | "diff" => done.map_err(not_refused),
                _ => done,
            };
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Changes the reason of a refusal, because exit code 1 of `status` and `diff` means that there are
/// unpushed changes.
fn not_refused(error: anyhow::Error) -> anyhow::Error {
    match reason(&error) {
        Some(Failed::Refused) => Failed::Unavailable.because(anyhow!("{error:#}")),
        _ => error,
    }
}

fn run_in(
    command: &str,
    matches: &ArgMatches,
    workspace: &mut Workspace,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    if command != "repair" {
        workspace.check_based()?;
    }
    workspace.register_moved();
    if command == "diff" {
        return status::diff(workspace, out);
    }
    let sources = sources(matches).recorded();
    match command {
        "status" => {
            let is_offline = matches.get_flag("offline");
            let is_json = matches.get_flag("json");
            return status::status(workspace, &sources, is_offline, is_json, out);
        }
        "push" => {
            let options = push::Options {
                message: matches.get_one::<String>("message").map(String::as_str),
                keep: matches.get_one("keep").copied().unwrap_or(KEEP),
                is_forced: matches.get_flag("force"),
                is_json: matches.get_flag("json"),
                skips_unreadable: matches.get_flag("skip-unreadable"),
                max_delete: None,
            };
            push::run(workspace, options, &sources, out)?;
        }
        "pull" => {
            trust(matches, workspace)?;
            return pull::run(workspace, &sources, out);
        }
        "restore" => {
            let generation = matches.get_one("generation").copied().unwrap_or_default();
            let path = matches.get_one::<PathBuf>("path").map(PathBuf::as_path);
            let is_forced = matches.get_flag("force");
            restore::restore(workspace, generation, path, is_forced, &sources, out)?;
        }
        "discard" => {
            let paths: Vec<&PathBuf> = matches.get_many("paths").into_iter().flatten().collect();
            let is_confirmed = matches.get_flag("yes");
            restore::discard(workspace, &paths, is_confirmed, &sources, out)?;
        }
        "repair" => repair::repair(workspace, &sources, out)?,
        "auto" => {
            trust(matches, workspace)?;
            let options = push::Options {
                message: None,
                keep: matches.get_one("keep").copied().unwrap_or(KEEP),
                is_forced: false,
                is_json: true,
                skips_unreadable: matches.get_flag("skip-unreadable"),
                max_delete: matches.get_one("max-delete").copied(),
            };
            let idle = matches.get_one("idle").copied().unwrap_or_default();
            auto::auto(workspace, idle, options, &sources, out)?;
        }
        "log" => status::log(workspace, &sources, out)?,
        _ => {
            let discards = matches.get_flag("discard");
            let deletes = matches.get_flag("delete");
            open::close(workspace, discards, deletes, &sources, out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Stores the keys of the command line, if there are any, in the workspace.
fn trust(matches: &ArgMatches, workspace: &mut Workspace) -> anyhow::Result<()> {
    let remote = Remote::of_cache(&workspace.state.url)?;
    let sources = sources(matches).recorded();
    open::trust(workspace, remote, &keys_of(matches), &sources)
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
