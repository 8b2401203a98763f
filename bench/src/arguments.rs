//! Parses the command line of `samovar-bench`.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::nginx::Variant;

pub(crate) const USAGE: &str = "\
usage: samovar-bench --store DIR --server NAME=COMMAND... [OPTION...]
       samovar-bench engine [--server NAME=COMMAND...] [--rounds N] [--seconds S] [--rows TEXT]
       samovar-bench sockets [--sockets N] [--seconds S]
       samovar-bench uploads --store DIR [--server NAME=COMMAND...] [OPTION...]
       samovar-bench upstreams --store DIR [OPTION...]
       samovar-bench workspaces [--tree DIR] [OPTION...]

`engine` compares HTTP engines instead of binary caches. A COMMAND of `engine` starts a server with
the endpoints that bench/rivals/src/lib.rs lists, and has {port}, {threads} and {dir} filled in. It
is measured in the rows whose endpoints it answers. `sockets` holds N WebSockets open for S seconds,
on several processes, and reports the memory that they take. `uploads` measures uploads, to the
program samovar in the directory of this program, to nginx, and to a directory. It creates the store
with the paths if DIR is empty. A COMMAND of `uploads` starts a server that takes PUT below /upload.
`upstreams` compares a server with upstream caches, and its goals. Its store is one like that of
--big-store. `workspaces` compares workspaces of 42,000 small files with their goals.

  --store DIR            store made by `cargo run -p xtask -- sample-store --bench DIR`
  --big-store DIR        store made by `cargo run -p xtask -- sample-store --paths 1000000 DIR`
  --server NAME=COMMAND  server to measure; repeatable. A shell runs COMMAND with {port}, {store},
                         {key} (file with a secret key) and {scratch} (empty directory, a new one
                         at each start) filled in. The server must listen on 127.0.0.1. Give the
                         same NAME with and without {key} to measure signing too. The summary
                         compares the first NAME with the others
  --tree DIR             with `workspaces`: npm project, or directory with small files. npm installs
                         an Angular project if DIR is empty. Without it, the files are generated
  --dir DIR              with `uploads` and `workspaces`: directory for the files of servers and
                         clients (that for temporary files)
  --sockets N            with `sockets`: number of WebSockets (100000)
  --json                 with `workspaces`: print a JSON document
  --out DIR              also write table.md, and chart.svg or figures.json, to DIR
  --rounds N             measure each figure N times and report the median (3)
  --seconds S            duration of each measurement (3)
  --rows TEXT            measure only rows whose name contains TEXT
  --check                one round, as short as possible: checks that everything works
  --help                 show this help";

/// The comparison that is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Downloads from binary caches.
    Caches,
    /// HTTP engines.
    Engine,
    /// Many WebSockets.
    Sockets,
    /// Uploads to binary caches.
    Uploads,
    /// Upstream caches.
    Upstreams,
    /// Workspaces of small files.
    Workspaces,
}

/// The parsed command line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Arguments {
    pub(crate) mode: Mode,
    /// Whether the run only checks that everything works.
    pub(crate) is_check: bool,
    pub(crate) store: PathBuf,
    pub(crate) big_store: Option<PathBuf>,
    /// Name and command of each cache server, in the order of the command line.
    pub(crate) servers: Vec<(String, String)>,
    /// Directory with small files; empty if they are generated.
    pub(crate) tree: PathBuf,
    /// Directory for the files of servers that receive uploads, and of their clients.
    pub(crate) dir: PathBuf,
    pub(crate) is_json: bool,
    /// Number of WebSockets.
    pub(crate) sockets: usize,
    /// Address of the server, in a process that is a client of `sockets`.
    pub(crate) client: Option<SocketAddr>,
    pub(crate) out: Option<PathBuf>,
    pub(crate) rounds: u32,
    pub(crate) seconds: f64,
    /// Text that a row's name must contain for the row to be measured; empty for all rows.
    pub(crate) rows: String,
    /// Numbers of connections with which rows with small responses are measured.
    pub(crate) connections: &'static [u32],
    /// nginx configurations that are measured for comparison.
    pub(crate) nginx: &'static [Variant],
}

impl Arguments {
    fn defaults(mode: Mode) -> Self {
        Self {
            mode,
            is_check: false,
            store: PathBuf::new(),
            big_store: None,
            servers: Vec::new(),
            tree: PathBuf::new(),
            dir: std::env::temp_dir(),
            is_json: false,
            sockets: 100_000,
            client: None,
            out: None,
            rounds: 3,
            seconds: 3.0,
            rows: String::new(),
            connections: &[1, 64, 256],
            nginx: &[Variant::Sendfile, Variant::NoSendfile],
        }
    }

    /// Makes everything as short as possible.
    fn shorten(&mut self) {
        self.is_check = true;
        self.connections = &[1];
        self.seconds = 0.05;
        self.sockets = 200;
        self.rounds = 1;
        self.nginx = &[Variant::Sendfile];
    }

    /// Parses the arguments after the program's name.
    pub(crate) fn parse(words: &[String]) -> Result<Self> {
        let mode = match words.first().map(String::as_str) {
            Some("engine") => Mode::Engine,
            Some("sockets") => Mode::Sockets,
            Some("uploads") => Mode::Uploads,
            Some("upstreams") => Mode::Upstreams,
            Some("workspaces") => Mode::Workspaces,
            _ => Mode::Caches,
        };
        let mut arguments = Self::defaults(mode);
        let mut words = words.iter().skip(usize::from(mode != Mode::Caches));
        while let Some(option) = words.next() {
            let mut value = || {
                words
                    .next()
                    .with_context(|| format!("{option} needs a value"))
            };
            match option.as_str() {
                "--store" => arguments.store = value()?.into(),
                "--big-store" => arguments.big_store = Some(value()?.into()),
                "--tree" => arguments.tree = value()?.into(),
                "--dir" => arguments.dir = value()?.into(),
                "--sockets" => {
                    let count = value()?.parse();
                    arguments.sockets = count.context("--sockets must be a number")?;
                }
                "--client" => {
                    let address = value()?.parse();
                    arguments.client = Some(address.context("--client must be an address")?);
                }
                "--json" => arguments.is_json = true,
                "--out" => arguments.out = Some(value()?.into()),
                "--server" => {
                    let server = value()?;
                    let (name, command) = server.split_once('=').with_context(|| {
                        format!("--server must be NAME=COMMAND, got {server:?}")
                    })?;
                    arguments.servers.push((name.into(), command.into()));
                }
                "--rounds" => {
                    arguments.rounds = value()?.parse().context("--rounds must be a number")?
                }
                "--seconds" => {
                    arguments.seconds = value()?.parse().context("--seconds must be a number")?
                }
                "--rows" => arguments.rows.clone_from(value()?),
                "--check" => arguments.shorten(),
                _ => bail!("unknown option {option:?}\n\n{USAGE}"),
            }
        }
        let has_store = !arguments.store.as_os_str().is_empty();
        if matches!(mode, Mode::Caches | Mode::Uploads | Mode::Upstreams) && !has_store {
            bail!("--store is required\n\n{USAGE}");
        }
        if mode == Mode::Caches && arguments.servers.is_empty() {
            bail!("--server is required\n\n{USAGE}");
        }
        if arguments.sockets == 0 {
            bail!("--sockets must be above 0");
        }
        if arguments.rounds == 0 || arguments.seconds <= 0.0 {
            bail!("--rounds and --seconds must be above 0");
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
    fn options_are_parsed() {
        let arguments =
            parse("--store /s --server a=b=c --rounds 5 --seconds 1.5 --out /o").unwrap();
        assert_eq!(arguments.servers, [("a".to_owned(), "b=c".to_owned())]);
        assert_eq!((arguments.rounds, arguments.seconds), (5, 1.5));
        assert_eq!(arguments.out, Some("/o".into()));
        assert_eq!(arguments.mode, Mode::Caches);
        assert_eq!(parse("engine --rows x").unwrap().mode, Mode::Engine);
        assert_eq!(parse("--store /s --server a=b --check").unwrap().rounds, 1);
        assert_eq!(parse("upstreams --store /s").unwrap().mode, Mode::Upstreams);
        let sockets = parse("sockets --sockets 7 --client 127.0.0.2:80").unwrap();
        assert_eq!(sockets.mode, Mode::Sockets);
        assert_eq!(sockets.sockets, 7);
        assert_eq!(sockets.client, Some(([127, 0, 0, 2], 80).into()));
        let uploads = parse("uploads --store /s --dir /d").unwrap();
        assert_eq!(uploads.mode, Mode::Uploads);
        assert_eq!(uploads.dir, PathBuf::from("/d"));
        let workspaces = parse("workspaces --tree /t --json").unwrap();
        assert_eq!(workspaces.mode, Mode::Workspaces);
        assert_eq!(workspaces.tree, PathBuf::from("/t"));
        assert!(workspaces.is_json && !uploads.is_json);
    }

    #[test]
    fn incomplete_and_unknown_options_are_refused() {
        for line in [
            "--check",
            "--store",
            "--store /s",
            "--store /s --server a=b --rounds 0",
            "--store /s --server a=b --what",
            "engine --rounds 0",
            "engine --server nix-serve",
            "sockets --sockets 0",
            "uploads --dir /d",
            "upstreams --dir /d",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(parse("--store /s --server nix-serve").is_err());
    }
}
