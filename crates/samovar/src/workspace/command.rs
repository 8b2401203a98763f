//! The command line of `samovar workspace`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Command, value_parser};

use super::overlay;
use crate::arguments::{credentials, json, option, required, switch, trusted_keys};
use crate::push::{KEEP, message};

/// Value of `open --mode` for a mounted workspace.
pub(super) const OVERLAY: &str = "overlay";

/// Defines the command `samovar workspace`.
pub(crate) fn command() -> Command {
    Command::new("workspace")
        .visible_alias("ws")
        .about("Manages workspaces: local directories that are pushed to a ref and pulled from it")
        .after_help(
            "A workspace is an ordinary directory on a local disk. Its state is in \
             $XDG_STATE_HOME/samovar, found by the identity of the directory. \
             Push makes the whole tree durable on the server as the next generation of \
             the ref; pull merges the newest generation. Exit code 0: done; 1: the request was \
             refused, or conflicts are left; 2: the command line is invalid, or the directory is \
             not in a workspace; 3: the cache or the directory is unavailable.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([open(), status(), diff(), push(), pull(), log()])
        .subcommands([restore(), discard(), close(), repair(), list(), auto()])
        .subcommands([overlay::command(), overlay::guard_command()])
}

/// Defines a subcommand for the workspace that contains the current directory.
fn in_workspace(name: &'static str, about: &'static str) -> Command {
    let directory = option("dir", "DIR")
        .value_parser(value_parser!(PathBuf))
        .help("Use the workspace that contains DIR [default: the current directory]");
    let command = Command::new(name).about(about).arg(directory);
    match name {
        "diff" => command,
        _ => command.args(credentials()),
    }
}

fn open() -> Command {
    Command::new("open")
        .about("Makes a directory a workspace of a ref")
        .after_help(
            "A REF is [URL#]NAME[@GENERATION]; without URL#, the cache is that of the variable \
             SAMOVAR_CACHE. If the ref exists, its newest or the given generation is downloaded \
             into the directory, which must not exist or be empty. If it does not exist, the \
             first push creates it from the files of the directory. Opening a workspace again \
             changes none of its files. With --mode overlay, nothing is downloaded first: files \
             are read from the server when they are used, and changes are written to a directory \
             in $SAMOVAR_STATE_DIR. This mounts the files for all processes of the machine, which \
             only root may do. Opening again mounts the files again if they are not mounted, as \
             after a reboot.",
        )
        .arg(
            option("mode", "MODE")
                .value_parser(["dir", OVERLAY])
                .help("Download the files (dir), or mount them (overlay) [default: dir]"),
        )
        .args(credentials())
        .arg(remembered_keys())
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

fn status() -> Command {
    let about = "Shows the unpushed changes, and whether the server has newer files";
    in_workspace("status", about)
        .after_help(
            "Never fails because the server is unreachable. Exit code 0: no unpushed changes; 1: \
             unpushed changes; 2: the command line is invalid, or the directory is not in a \
             workspace; 3: the files cannot be read.",
        )
        .arg(switch("offline").help("Send no request to the server"))
        .arg(json())
}

fn diff() -> Command {
    let about = "Lists the paths that differ from the last push or pull";
    in_workspace("diff", about).after_help("The exit codes are those of samovar workspace status.")
}

fn push() -> Command {
    let about = "Uploads the files as the next generation of the ref";
    in_workspace("push", about)
        .after_help(
            "Returns when the server has written the tree to stable storage. If another machine \
             has pushed meanwhile, nothing is published: pull first.",
        )
        .arg(message())
        .arg(
            switch("force")
                .help("Set the ref even if it has newer generations, without merging them"),
        )
        .arg(skip_unreadable())
        .arg(keep())
        .arg(json())
}

fn skip_unreadable() -> Arg {
    switch("skip-unreadable").help("Leave out files that you may not read; the log names them")
}

fn keep() -> Arg {
    let help = format!(
        "Keep only this number of newest generations, including the new one \
                        [default: {KEEP}]"
    );
    option("keep", "NUMBER")
        .value_parser(value_parser!(u32).range(1..))
        .help(help)
}

fn pull() -> Command {
    let about = "Merges the newest generation of the ref into the files";
    in_workspace("pull", about)
        .after_help(
            "If both sides changed a file, the local version stays, and the other version is \
             stored beside it as NAME.conflict-HOST-DATE. Files that a program changes meanwhile \
             are not overwritten. Exit code 0: merged; 1: merged with conflicts, or refused.",
        )
        .arg(remembered_keys())
}

fn remembered_keys() -> Arg {
    trusted_keys().help(
        "Require a signature by one of these keys, separated by spaces, now and in later commands",
    )
}

fn log() -> Command {
    let about = "Lists the generations of the ref; * marks that of the last push or pull";
    in_workspace("log", about)
}

fn restore() -> Command {
    let about = "Replaces files by those of an older generation, as unpushed changes";
    in_workspace("restore", about)
        .after_help(
            "Files that the generation lacks are removed if they were pushed. New files stay. \
             Unpushed changes are never overwritten without --force.",
        )
        .arg(switch("force").help("Overwrite unpushed changes"))
        .arg(
            required("generation", "GENERATION")
                .value_parser(generation)
                .help("Number of a generation, as 3 or @3"),
        )
        .arg(
            Arg::new("path")
                .value_name("PATH")
                .value_parser(value_parser!(PathBuf))
                .help("File or directory [default: all]"),
        )
}

fn generation(text: &str) -> Result<u64, &'static str> {
    let number = text.strip_prefix('@').unwrap_or(text).parse();
    number.map_err(|_error| "expected the number of a generation, as 3 or @3")
}

fn discard() -> Command {
    let about = "Undoes unpushed changes: restores the files of the last push or pull";
    in_workspace("discard", about)
        .after_help("Changed and removed files are brought back, new files are removed.")
        .arg(switch("yes").help("Do not ask"))
        .arg(
            Arg::new("paths")
                .value_name("PATH")
                .num_args(0..)
                .value_parser(value_parser!(PathBuf))
                .help("File or directory [default: all]"),
        )
}

fn close() -> Command {
    in_workspace("close", "Makes a workspace an ordinary directory")
        .after_help(
            "Refuses while there are unpushed changes. The files stay. --delete deletes only files \
             that are on the server: files that programs create or change meanwhile stay, and the \
             exit code is 1. If close --delete was killed, the next close continues. In overlay \
             mode, the files are unmounted, so that the directory is empty, and --discard keeps \
             unpushed changes in another directory, which it prints.",
        )
        .arg(switch("discard").help("Close even if there are unpushed changes"))
        .arg(switch("delete").help("Delete the files"))
}

fn repair() -> Command {
    let about = "Repairs the state of a workspace after crashes";
    in_workspace("repair", about).after_help(
        "Removes temporary files of killed processes. Downloads the manifest of the last push or \
         pull if it is damaged. In overlay mode, mounts the files if they are not mounted, after a \
         reboot for example, or if the process that serves them has ended. Takes over a state on a \
         network file system that another machine has changed. Never changes the user's files.",
    )
}

fn list() -> Command {
    Command::new("list")
        .about("Lists the workspaces of this user on this machine")
        .arg(json())
}

fn auto() -> Command {
    let about = "Pushes whenever no program has changed the files for some time";
    in_workspace("auto", about)
        .after_help(
            "Runs until SIGTERM, SIGINT or SIGHUP, then pushes once more. A failed push is \
             printed once and repeated. If another machine has pushed, waits for a pull.",
        )
        .arg(
            option("idle", "TIME")
                .value_parser(idle)
                .default_value("5s")
                .help("Time without changes before a push, as 500ms, 5s or 2m"),
        )
        .arg(skip_unreadable())
        .arg(
            option("max-delete", "PERCENT")
                .value_parser(value_parser!(u64).range(..=100))
                .default_value("50")
                .help(
                    "Wait for a push by hand if more than this share of the pushed files is gone",
                ),
        )
        .arg(keep())
        .arg(remembered_keys())
}

fn idle(text: &str) -> Result<Duration, &'static str> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000)];
    let parsed = units.into_iter().find_map(|(unit, milliseconds)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(milliseconds)
    });
    let parsed = parsed.map(Duration::from_millis);
    parsed.ok_or("expected a time, as 500ms, 5s or 2m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_generations() {
        assert_eq!(idle("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(idle("2m"), Ok(Duration::from_secs(120)));
        assert!(idle("5").is_err() && idle("ms").is_err() && idle("-1s").is_err());
        assert_eq!((generation("3"), generation("@3")), (Ok(3), Ok(3)));
        assert!(generation("x").is_err());
    }
}
