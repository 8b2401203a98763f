//! Small paths a second that 1, 2 and 4 nodes publish over one PostgreSQL and one S3 engine, and
//! the CPU time of each part. Usage: `nodes PROGRAM [PATHS [CLIENTS]]`.
//!
//! `PROGRAM`: the binary `samovar`. Databases and objects are below `TMPDIR`. Clients are
//! `samovar push`, which run at the same time and send their paths in batches.

#![expect(clippy::print_stdout, reason = "the figures are its output")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use testkit::http1::Connection;
use testkit::nix::{OwnStore, local};
use testkit::nodes::{Nodes, Shared};
use testkit::postgres::Postgres;
use testkit::process::output;
use testkit::procfs::{children_cpu_time, cpu_time, family};
use testkit::random::SplitMix64;
use testkit::s3::S3Engine;

/// Numbers of nodes that are measured.
const NODE_COUNTS: [usize; 3] = [1, 2, 4];

/// Length of the file in each path, in bytes.
const FILE_LEN: usize = 2_000;

/// Transactions that write, and the time in which they had the lock of all writers.
const WRITES: [&str; 2] = [
    "samovar_database_transactions_total{kind=\"write\",result=\"committed\"}",
    "samovar_database_transaction_seconds_sum{kind=\"write\"}",
];

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let program = words
        .first()
        .context("usage: nodes PROGRAM [PATHS [CLIENTS]]")?;
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok());
    let (path_count, client_count) = (number(1).unwrap_or(4_000), number(2).unwrap_or(8));
    let store = OwnStore::new();
    let paths = small_paths(&store, path_count)?;
    let groups: Vec<&[String]> = paths.chunks(path_count.div_ceil(client_count)).collect();
    println!(
        "{path_count} paths, {} clients; CPU in microseconds a path\n\
         nodes  paths/s  nodes' CPU  PostgreSQL  S3 engine  transactions  lock held, µs a path",
        groups.len()
    );
    for count in NODE_COUNTS {
        measure(Path::new(program), count, &store, &groups)?;
    }
    Ok(())
}

/// Publishes all paths with new nodes, a new database and a new bucket. Prints a line.
fn measure(
    program: &Path,
    count: usize,
    store: &OwnStore,
    groups: &[&[String]],
) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let engine = S3Engine::start().context("the S3 engine is not installed")?;
    let postgres = Postgres::with_settings(&["listen_addresses=127.0.0.1"]);
    let shared = Shared {
        database_url: format!(
            "postgresql://postgres@127.0.0.1:{}/postgres",
            postgres.port()
        ),
        bucket_url: engine.url(),
        options: String::new(),
    };
    let mut nodes = Nodes::new(program, dir.path(), count, &shared);
    nodes.start_all();
    let token = dir.path().join("token");
    fs::write(&token, nodes.token("bench", "read,push"))?;
    fs::set_permissions(&token, Permissions::from_mode(0o600))?;
    let pid_file = fs::read_to_string(postgres.data().join("postmaster.pid"))?;
    let pid = pid_file.lines().next().context("no process")?;
    let database: u32 = pid.parse()?;
    let bucket = engine.process.as_ref().context("no process")?.pid();
    let used = || {
        let of_nodes = (0..count).map(|index| used(nodes.process(index).pid()));
        [of_nodes.sum(), used(database), used(bucket)]
    };
    let before = (used(), writes(&nodes)?, Instant::now());
    let clients = groups.iter().enumerate().map(|(number, group)| {
        let url = nodes.all()[number % count].url();
        let mut push = nodes.samovar();
        push.args([
            "push",
            &url,
            "--store",
            &local(store.root()),
            "--token-file",
        ]);
        push.arg(&token).args(*group);
        push.env("HOME", dir.path()).env("NIX_CONF_DIR", dir.path());
        start(&mut push)
    });
    for mut client in clients.collect::<anyhow::Result<Vec<Child>>>()? {
        ensure!(client.wait()?.success(), "a client has failed");
    }
    let time = before.2.elapsed();
    let path_count: usize = groups.iter().map(|group| group.len()).sum();
    let paths = f64::from(u32::try_from(path_count)?);
    let after = (used(), writes(&nodes)?);
    let [of_nodes, of_database, of_bucket]: [f64; 3] =
        std::array::from_fn(|at| (after.0[at] - before.0[at]).as_secs_f64() * 1e6 / paths);
    println!(
        "{count:5}  {:7.0}  {of_nodes:10.0}  {of_database:10.0}  {of_bucket:9.0}  {:12.0}  {:20.0}",
        paths / time.as_secs_f64(),
        after.1[0] - before.1[0],
        (after.1[1] - before.1[1]) * 1e6 / paths,
    );
    Ok(())
}

fn start(command: &mut Command) -> anyhow::Result<Child> {
    Ok(command
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()?)
}

/// Returns the CPU time of a process and its children.
fn used(pid: u32) -> Duration {
    let living = family(pid).into_iter().filter_map(cpu_time);
    living.sum::<Duration>() + children_cpu_time(pid).unwrap_or_default()
}

/// Returns the sums of [`WRITES`] of all nodes.
fn writes(nodes: &Nodes) -> anyhow::Result<[f64; 2]> {
    let mut sums = [0.0; 2];
    for node in nodes.all() {
        let text = Connection::connect(node.admin).get("/metrics").text();
        for (sum, name) in sums.iter_mut().zip(WRITES) {
            let value = text.lines().find_map(|line| line.strip_prefix(name));
            *sum += value.context(name)?.trim().parse::<f64>()?;
        }
    }
    Ok(sums)
}

/// Adds paths of incompressible files to a store. Returns them.
fn small_paths(store: &OwnStore, count: usize) -> anyhow::Result<Vec<String>> {
    let dir = tempfile::tempdir()?;
    let mut random = SplitMix64::new(1);
    let mut add = store.command("nix-store");
    add.arg("--add");
    for number in 0..count {
        let bytes = std::iter::repeat_with(|| random.next()).take(FILE_LEN / 8);
        let bytes: Vec<u8> = bytes.flat_map(u64::to_le_bytes).collect();
        let file = dir.path().join(format!("small-{number}"));
        fs::write(&file, bytes)?;
        add.arg(file);
    }
    Ok(output(&mut add).lines().map(str::to_owned).collect())
}
