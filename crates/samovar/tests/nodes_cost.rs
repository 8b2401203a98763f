//! The number of objects in the bucket, each of which is a request that operators pay for, and the
//! size of the database stay within what the book states.
//!
//! `SAMOVAR_NODES_PATHS` sets the number of small paths.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints what it has measured"
)]

mod support;
mod support_nodes;
mod support_push;
mod support_uploads;

use std::fs;
use std::path::Path;

use support::secret_file;
use support_nodes::Cluster;
use support_push::{Pusher, noise, words};
use testkit::nix::{OwnStore, local, nix};
use testkit::process::output;

/// Number of small paths by default.
const COUNT: u32 = 256;

/// Maximum number of objects for each small path that `samovar push` sends: a pack has at least 64.
const PER_PUSHED_PATH_MAX: f64 = 1.0 / 64.0;

/// Maximum number of objects for each path of `nix copy`, which sends one after the other.
const PER_COPIED_PATH_MAX: f64 = 1.1;

/// Returns the number of objects in the bucket. Each was sent by one PUT.
fn object_count(dir: &Path) -> u32 {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .map(|path| {
            if path.is_dir() {
                object_count(&path)
            } else {
                1
            }
        })
        .sum()
}

/// Prints how many objects and bytes of the database there are for each of `count` paths, compared
/// with before. Returns the number of objects per path.
fn report(what: &str, cluster: &Cluster, before: (u32, f64), count: u32) -> f64 {
    let objects = f64::from(object_count(&cluster.engine.bucket()) - before.0) / f64::from(count);
    let bytes = (database_len(cluster) - before.1) / f64::from(count);
    println!("{what}: {objects:.3} objects and {bytes:.0} bytes of the database per path");
    objects
}

/// Returns the size of the database in bytes.
fn database_len(cluster: &Cluster) -> f64 {
    let mut client = cluster.postgres.client();
    client.batch_execute("checkpoint").unwrap();
    let sql = "select pg_database_size(current_database())::float8";
    client.query_one(sql, &[]).unwrap().get(0)
}

/// Adds `count` small files to a store. Returns their paths.
fn small_paths(store: &OwnStore, name: &str, count: u32) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let mut add = store.command("nix-store");
    add.arg("--add");
    for number in 0..count {
        let file = dir.path().join(format!("{name}-{number}"));
        let seed = u64::from(number) + 100_000 * name.len() as u64;
        fs::write(&file, noise(seed, 2_000)).unwrap();
        add.arg(file);
    }
    output(&mut add).lines().map(str::to_owned).collect()
}

#[test]
fn small_paths_share_objects() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let count = std::env::var("SAMOVAR_NODES_PATHS");
    let count = count.map_or(COUNT, |count| count.parse().unwrap());
    let token = cluster.nodes.token("ci", "read,push");
    let store = OwnStore::new();
    let counted = || {
        let count = object_count(&cluster.engine.bucket());
        (count, database_len(&cluster))
    };

    let pushed = small_paths(&store, "pushed", count);
    let before = counted();
    let pusher = Pusher::new(&local(store.root()), &token);
    pusher.report(&cluster.url(0), &words(&pushed));
    let objects = report("samovar push", &cluster, before, count);
    assert!(objects <= PER_PUSHED_PATH_MAX, "{objects} objects per path");

    let copied = small_paths(&store, "copied", count);
    let before = counted();
    let home = tempfile::tempdir().unwrap();
    let login = format!("machine 127.0.0.1 login ci password {token}\n");
    let netrc = secret_file(home.path(), "netrc", &login);
    let mut command = nix("nix", home.path());
    command.args(["copy", "--from", &local(store.root()), "--no-check-sigs"]);
    let to = format!("{}/upload?compression=zstd", cluster.url(0));
    command.args(["--to", &to, "--option", "netrc-file"]);
    output(command.arg(netrc).args(&copied));
    let objects = report("nix copy", &cluster, before, count);
    assert!(objects <= PER_COPIED_PATH_MAX, "{objects} objects per path");
}
