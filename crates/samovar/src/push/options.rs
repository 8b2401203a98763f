//! Parses the command line of `samovar push`.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, value_parser};
use samovar_client::push::{Compressing, FRAME_LEN, PinOptions, Selection, Settings};
use samovar_nix::Glob;
use samovar_protocol::names::{PIN_TEXT_LEN_MAX, PinName};

use super::tree::KEEP;
use crate::arguments::{job_credentials, json, option, paths, sources, spool, switch};
use crate::credentials::Sources;
use crate::remote::Remote;
use crate::token::lifetime;

/// Default of `--compression-level`: about 300 MB of NAR per second and core.
const LEVEL: i32 = 3;

/// The source of the paths to push.
#[derive(Debug)]
pub(super) enum Source {
    /// The paths that the arguments name.
    Paths(Vec<String>),
    /// The paths that are registered while this command runs.
    Command(Vec<String>),
    /// The paths in the files of this spool directory.
    Spool(PathBuf),
    /// The paths that are registered from now on, until the process is killed.
    Watch,
}

/// The parsed command line of `samovar push`.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) settings: Settings,
    pub(super) source: Source,
    pub(super) credentials: Sources,
    pub(super) with_substituted: bool,
    pub(super) pin: Option<PinOptions>,
    pub(super) is_json: bool,
}

/// Long: a list of options with their help.
pub(crate) fn command() -> Command {
    Command::new("push")
        .about("Uploads paths with their closures, or a directory, to a binary cache")
        .override_usage("samovar push [OPTIONS] URL PATH...\n       samovar push [OPTIONS] DIR REF")
        .after_help(
            "The cache needs a token. It is taken from --token-file, --netrc-file, the URL, the \
             variable SAMOVAR_TOKEN, or Nix's netrc-file, in this order. A push that is run again \
             sends only the paths that are missing. References of paths that --exclude and \
             --skip-signed-by leave out are not pushed either, unless another path needs them. \
             Samovar refuses paths that refer to a path that is neither uploaded nor in the \
             server's Nix store; other servers do not check that. Prints a summary line, and a \
             line for each path that was not pushed, with the reason. Exit code 0: all paths are \
             in the cache, and the path of --pin is pinned; 1: a path was not pushed or not \
             pinned, or the cache refused the push; 2: the command line is invalid; 3: the cache \
             or the store is unavailable. With --exec: the exit code of the command if it is not \
             0. With --watch, the command runs until it is killed.\n\n\
             With DIR REF, uploads the files of a directory as the next generation of a ref: see \
             samovar ref. Only changes are sent. When the command has ended with exit code 0, the \
             whole tree is durable on the server. Exit code 1 also if another client has set the \
             ref meanwhile, or if a program writes to the directory during the push.",
        )
        .arg(Arg::new("url").value_name("URL").required(true).help(
            "URL of a binary cache that takes uploads: Samovar with --storage, or any server \
                 that takes PUT. In the second form: the directory DIR, before the REF",
        ))
        .arg(paths())
        .arg(switch("exec").requires("command").help(
            "Run the COMMAND after --, then push the paths built meanwhile, even if it fails",
        ))
        .arg(spool().help("Push the paths that samovar hook has stored in this directory"))
        .arg(switch("watch").help(
            "Push all paths that are built from now on; after a restart, also those built while \
             the command did not run",
        ))
        .group(
            ArgGroup::new("source")
                .args(["paths", "exec", "spool", "watch"])
                .required(true),
        )
        .args(selection())
        .args(pin())
        .args(directory())
        .args(job_credentials())
        .arg(
            option("jobs", "N")
                .value_parser(value_parser!(u16).range(1..))
                .help("Number of NARs that are compressed at once [default: one for each core]"),
        )
        .arg(
            option("compression-level", "LEVEL")
                .value_parser(value_parser!(i32).range(1..=19))
                .help(format!("Level of zstd, 1 to 19 [default: {LEVEL}]")),
        )
        .arg(
            switch("dry-run")
                .conflicts_with_all(["exec", "spool", "watch"])
                .help(
                    "List the paths that the cache lacks, and push nothing; needs only the right \
                     to read",
                ),
        )
        .arg(json())
        .arg(
            Arg::new("command")
                .value_name("COMMAND")
                .action(ArgAction::Append)
                .num_args(1..)
                .last(true)
                .conflicts_with_all(["paths", "spool", "watch"])
                .help("Command of --exec, with its arguments"),
        )
}

/// Defines the options that select the paths to push.
fn selection() -> [Arg; 5] {
    [
        option("store", "URI").help("Store that has the paths [default: the store of Nix]"),
        switch("no-closure").help("Push only the named paths: the cache must have references"),
        option("exclude", "GLOB")
            .action(ArgAction::Append)
            .help("Do not push paths whose name matches, such as *-debug; * and ? are wildcards"),
        option("skip-signed-by", "KEY-NAME")
            .action(ArgAction::Append)
            .value_parser(key_name)
            .help("Do not push paths with a signature of this key, such as cache.nixos.org-1"),
        switch("substituted").help(
            "With --exec and --watch: also push paths that were downloaded, not only those that \
             were built",
        ),
    ]
}

fn pin_name(text: &str) -> anyhow::Result<PinName> {
    let name: PinName = text.parse()?;
    name.check_new()?;
    Ok(name)
}

/// Defines the options for pins.
fn pin() -> [Arg; 3] {
    [
        option("pin", "NAME")
            .value_parser(pin_name)
            .conflicts_with_all(["exec", "spool", "watch", "dry-run"])
            .help("Pin the path under this name after it was pushed; needs exactly one PATH"),
        option("keep", "NUMBER")
            .value_parser(value_parser!(u32).range(1..))
            .help(format!(
                "With --pin or a directory: keep only this number of newest generations [default: \
                 all, of a directory {KEEP}]"
            )),
        option("pin-expires", "TIME")
            .requires("pin")
            .value_parser(lifetime)
            .help("With --pin: time until the generation expires, as 90d [default: never]"),
    ]
}

/// Defines the options for directories.
fn directory() -> [Arg; 3] {
    [
        message().help("With a directory: message for the log of the ref"),
        switch("force").help(
            "With a directory: set the ref even if another client has set it meanwhile, or if it \
             is a pin of a package; with --pin: pin the path even if NAME is a ref of snapshots",
        ),
        switch("public")
            .help("With a directory: accept a cache that everybody can read without a token"),
    ]
}

/// Defines `--message`, for the log of a ref.
pub(crate) fn message() -> Arg {
    option("message", "TEXT")
        .short('m')
        .value_parser(parse_message)
        .help("Message for the log of the ref")
}

fn parse_message(text: &str) -> Result<String, String> {
    match text.len() <= PIN_TEXT_LEN_MAX {
        true => Ok(text.to_owned()),
        false => Err(format!("a message has at most {PIN_TEXT_LEN_MAX} bytes")),
    }
}

fn key_name(text: &str) -> Result<String, &'static str> {
    match text.is_empty() || text.contains(':') {
        true => Err("expected the name of a key, as cache.nixos.org-1"),
        false => Ok(text.to_owned()),
    }
}

impl Options {
    /// # Errors
    ///
    /// The URL is invalid.
    pub(super) fn of(matches: &ArgMatches) -> anyhow::Result<Self> {
        let texts = |id: &str| -> Vec<String> {
            let texts = matches.get_many::<String>(id);
            texts.into_iter().flatten().cloned().collect()
        };
        let file = |id: &str| matches.get_one::<PathBuf>(id).cloned();
        let is_given =
            |id| matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
        for id in ["message", "public"] {
            ensure!(
                !is_given(id),
                "--{id} is for directories: samovar push DIR REF"
            );
        }
        ensure!(
            !is_given("force") || matches.contains_id("pin"),
            "--force is for directories and for --pin"
        );
        ensure!(
            matches.contains_id("pin") || !matches.contains_id("keep"),
            "--keep needs --pin"
        );
        let source = match file("spool") {
            Some(dir) => Source::Spool(dir),
            None if matches.get_flag("watch") => Source::Watch,
            None if matches.get_flag("exec") => Source::Command(texts("command")),
            None => Source::Paths(texts("paths")),
        };
        let url: &String = matches.get_one("url").context("a URL is missing")?;
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let jobs = matches
            .get_one::<u16>("jobs")
            .map(|jobs| usize::from(*jobs));
        Ok(Self {
            settings: Settings {
                remote: Remote::of_cache(url)?,
                store: matches.get_one::<String>("store").cloned(),
                selection: Selection {
                    is_without_references: matches.get_flag("no-closure"),
                    excluded: texts("exclude")
                        .iter()
                        .map(|glob| Glob::new(glob))
                        .collect(),
                    signers: texts("skip-signed-by"),
                },
                is_dry: matches.get_flag("dry-run"),
                compressing: Compressing {
                    worker_count: jobs.unwrap_or(cores),
                    level: matches
                        .get_one("compression-level")
                        .copied()
                        .unwrap_or(LEVEL),
                    frame_len: FRAME_LEN,
                    is_seekable: false,
                },
            },
            source,
            credentials: sources(matches),
            pin: matches.get_one::<PinName>("pin").map(|name| PinOptions {
                name: name.clone(),
                keep: matches.get_one("keep").copied(),
                lifetime: matches.get_one("pin-expires").copied(),
                is_forced: matches.get_flag("force"),
            }),
            with_substituted: matches.get_flag("substituted"),
            is_json: matches.get_flag("json"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options, String> {
        let words = ["push"].iter().chain(words);
        let matches = command().try_get_matches_from(words);
        let matches = matches.map_err(|error| error.to_string())?;
        Options::of(&matches).map_err(|error| error.to_string())
    }

    #[test]
    fn urls_of_caches() {
        for url in [
            "http://a/b",
            "http://a/b/",
            "http://a/b/upload",
            "http://a/b/upload/",
        ] {
            assert_eq!(
                parse(&[url, "x"]).unwrap().settings.remote.url(),
                "http://a/b"
            );
        }
        for bad in ["a", "file:///a", "http://a?compression=zstd"] {
            assert!(parse(&[bad, "x"]).is_err(), "{bad}");
        }
    }

    #[test]
    fn pins() {
        let words = ["http://a", "x", "--pin", "main", "--keep", "5"];
        let pin = parse(&words).unwrap().pin.unwrap();
        assert_eq!(
            (pin.name.as_str(), pin.keep, pin.lifetime),
            ("main", Some(5), None)
        );
        let words = ["http://a", "x", "--pin", "main", "--pin-expires", "1d"];
        assert_eq!(parse(&words).unwrap().pin.unwrap().lifetime, Some(86_400));
        assert_eq!(parse(&["http://a", "x"]).unwrap().pin, None);
        for bad in [
            &["http://a", "x", "--keep", "5"][..],
            &["http://a", "x", "--pin-expires", "1d"],
            &["http://a", "x", "--pin", ""],
            &["http://a", "x", "--pin", "a", "--keep", "0"],
            &["http://a", "x", "--pin", "a", "--pin-expires", "90"],
            &["http://a", "x", "--pin", "a", "--dry-run"],
            &["http://a", "--watch", "--pin", "a"],
            &["http://a", "--spool", "d", "--pin", "a"],
            &["http://a", "--pin", "a", "--exec", "--", "b"],
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn sources_of_paths() {
        let source = |words: &[&str]| parse(words).map(|options| options.source);
        assert!(matches!(source(&["http://a", "x", "y"]), Ok(Source::Paths(p)) if p.len() == 2));
        assert!(matches!(
            source(&["http://a", "--spool", "d"]),
            Ok(Source::Spool(_))
        ));
        assert!(matches!(
            source(&["http://a", "--watch"]),
            Ok(Source::Watch)
        ));
        let exec = ["http://a", "--exec", "--", "nix", "build", "--watch"];
        assert!(matches!(source(&exec), Ok(Source::Command(words)) if words.len() == 3));
        for bad in [
            &["http://a"][..],
            &["http://a", "x", "--spool", "d"],
            &["http://a", "--exec"],
            &["http://a", "x", "--", "nix"],
            &["http://a", "x", "--watch"],
            &["http://a", "--watch", "--dry-run"],
            &["http://a", "x", "--skip-signed-by", "cache-1:AAAA"],
            &["http://a", "x", "--jobs", "0"],
            &["http://a", "--spool", "d", "--dry-run"],
            &["http://a", "x", "--compression-level", "20"],
            &["http://a", "x", "--token", "smv1_x"],
        ] {
            assert!(source(bad).is_err(), "{bad:?}");
        }
    }
}
