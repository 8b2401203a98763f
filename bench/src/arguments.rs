//! The command line.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

pub(crate) const USAGE: &str = "\
usage: samovar-bench --store DIR [--server NAME=COMMAND]… [options]

  --store DIR            a store made by `cargo run -p xtask -- sample-store --bench DIR`
  --server NAME=COMMAND  a server to measure, more than once if wanted; a shell runs COMMAND with
                         {port} and {store} filled in. It must listen on 127.0.0.1
  --rounds N             measure each figure N times and take the median (3)
  --seconds S            for so long each time (3)
  --rows TEXT            only rows whose name holds TEXT
  --quick                three rounds of half a second, 1 and 64 connections
  --no-nginx             without the reference";

/// What to measure, and for how long.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Arguments {
    pub(crate) store: PathBuf,
    /// Name and command of each server.
    pub(crate) servers: Vec<(String, String)>,
    pub(crate) rounds: u32,
    pub(crate) seconds: f64,
    /// Part of the names of the rows wanted; empty for all.
    pub(crate) rows: String,
    /// Whether to leave out what takes long.
    pub(crate) quick: bool,
    pub(crate) nginx: bool,
}

impl Arguments {
    /// Reads the words behind the program's name.
    pub(crate) fn parse(words: &[String]) -> Result<Self> {
        let mut arguments = Self {
            store: PathBuf::new(),
            servers: Vec::new(),
            rounds: 3,
            seconds: 3.0,
            rows: String::new(),
            quick: false,
            nginx: true,
        };
        let mut words = words.iter();
        while let Some(option) = words.next() {
            let mut value = || {
                words
                    .next()
                    .with_context(|| format!("{option} needs a value"))
            };
            match option.as_str() {
                "--store" => arguments.store = value()?.into(),
                "--server" => {
                    let server = value()?;
                    let (name, command) = server
                        .split_once('=')
                        .with_context(|| format!("{server}: no NAME="))?;
                    arguments.servers.push((name.into(), command.into()));
                }
                "--rounds" => arguments.rounds = value()?.parse().context("--rounds")?,
                "--seconds" => arguments.seconds = value()?.parse().context("--seconds")?,
                "--rows" => arguments.rows.clone_from(value()?),
                "--quick" => {
                    arguments.quick = true;
                    arguments.seconds = 0.5;
                }
                "--no-nginx" => arguments.nginx = false,
                _ => bail!("unknown option {option}\n\n{USAGE}"),
            }
        }
        if arguments.store.as_os_str().is_empty() {
            bail!("--store is missing\n\n{USAGE}");
        }
        if arguments.rounds == 0 || arguments.seconds <= 0.0 {
            bail!("--rounds and --seconds must be more than 0");
        }
        if arguments.servers.is_empty() && !arguments.nginx {
            bail!("nothing to measure\n\n{USAGE}");
        }
        Ok(arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments> {
        Arguments::parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read() {
        let arguments = parse("--store /s --server a=b=c --rounds 5 --seconds 1.5").unwrap();
        assert_eq!(arguments.servers, [("a".to_owned(), "b=c".to_owned())]);
        assert_eq!((arguments.rounds, arguments.seconds), (5, 1.5));
        assert!(parse("--store /s --quick").unwrap().quick);
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "--quick",
            "--store",
            "--store /s --rounds 0",
            "--store /s --what",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(parse("--store /s --no-nginx").is_err());
        assert!(parse("--store /s --server nix-serve").is_err());
    }
}
