//! `nodes`: two servers with one PostgreSQL and one bucket behind nginx, to try on one machine.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use testkit::nginx::Nginx;
use testkit::nodes::{Nodes, Shared};
use testkit::postgres::Postgres;
use testkit::s3::S3Engine;

use crate::command::{output, progress, repository};
use crate::serve::{Served, build, prepare_store};

/// Number of servers.
const COUNT: usize = 2;

/// What runs until Ctrl-C. The fields are dropped in this order: the programs first that others
/// do not need.
struct Running {
    nginx: Nginx,
    nodes: Nodes,
    engine: S3Engine,
    postgres: Postgres,
}

/// Builds the server, runs it on two nodes until Ctrl-C, and prints how to use them. Fails if it
/// does not build, or a program is missing.
pub(crate) fn run() -> Result<()> {
    let program = build("samovar")?;
    let served = prepare_store()?;
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let dir = repository().join(".samovar/nodes");
    // What an earlier run has left behind belongs to the database of that run.
    fs::remove_dir_all(&dir).ok();
    fs::create_dir_all(&dir)?;
    progress("starting PostgreSQL, s3s-fs, two nodes and nginx");
    let running = Running::start(&program, &dir)?;
    let token = running.nodes.token("example", "read,push,pin");
    let token_file = dir.join("token");
    fs::write(&token_file, format!("{token}\n"))?;
    println!("{}", running.push(&served, &token_file)?);
    println!("{}", running.lines(&served, &token_file));
    signals.forever().next();
    progress("stopping");
    Ok(())
}

impl Running {
    fn start(program: &Path, dir: &Path) -> Result<Self> {
        let missing = |name| format!("{name} is missing: `make setup-test` installs it");
        let postgres = Postgres::with_settings(&["listen_addresses=127.0.0.1"]);
        let engine = S3Engine::in_directory(&dir.join("bucket"));
        let engine = engine.with_context(|| missing("s3s-fs"))?;
        let shared = Shared {
            database_url: format!(
                "postgresql://postgres@127.0.0.1:{}/postgres",
                postgres.port()
            ),
            bucket_url: engine.url(),
            options: String::new(),
        };
        let mut nodes = Nodes::new(program, dir, COUNT, &shared);
        nodes.start_all();
        let nginx = Nginx::before(&nodes.addresses());
        Ok(Self {
            nginx: nginx.with_context(|| missing("nginx"))?,
            nodes,
            engine,
            postgres,
        })
    }

    /// Pushes the example and its closure. Returns what the command says.
    fn push(&self, served: &Served, token_file: &Path) -> Result<String> {
        let mut command = self.nodes.samovar();
        command.args(["push", &self.nginx.url(), "--token-file"]);
        command.arg(token_file).args(&served.arguments);
        output(command.arg(&served.example))
    }

    /// Returns what to try.
    fn lines(&self, served: &Served, token_file: &Path) -> String {
        let all = self.nodes.all();
        let nodes: String = all
            .iter()
            .zip(1..)
            .map(|(node, number)| {
                let pid = node.process.as_ref().map_or(0, |process| process.pid());
                let (url, admin) = (node.url(), node.admin);
                format!("  node-{number}     {url}   status: http://{admin}/   PID {pid}\n")
            })
            .collect();
        format!(
            "
  cache      {url}   nginx in front of the nodes
{nodes}  database   postgresql://postgres@127.0.0.1:{database}/postgres
  bucket     {bucket}
  objects    {objects}
  token      {token}
  key        {key}

Read a path through nginx, into a store of its own:

  nix --extra-experimental-features nix-command copy --from {url} --to /tmp/samovar-nodes \\
    --option trusted-public-keys '{key}' {example}

Push a file to one node, and read it through the other:

  {program} push {first} --token-file {token} \\
    --store 'local?root=/tmp/samovar-nodes' $(nix-store --store /tmp/samovar-nodes --add FILE)

List the nodes, then kill one, and read and push on: `kill -9 PID`, or `kill -STOP PID`.

  {program} nodes --config {config}

Ctrl-C stops all of them.
",
            url = self.nginx.url(),
            database = self.postgres.port(),
            bucket = self.engine.url(),
            objects = self.engine.bucket().display(),
            token = token_file.display(),
            key = self.nodes.public_key,
            example = served.example,
            first = self.nodes.all()[0].url(),
            program = self.nodes.samovar().get_program().to_string_lossy(),
            config = self.nodes.config(0).display(),
        )
    }
}
