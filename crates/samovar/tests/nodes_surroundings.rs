//! What is around nodes and is wrong: a pooler that gives one session to several clients, and a
//! clock.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a test says what it has not tested")]

mod support;
mod support_clock;
mod support_nodes;
mod support_uploads;

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use support_clock::FakeClock;
use support_nodes::Cluster;
use support_uploads::MadePath;
use testkit::process::{Process, fails, output};
use testkit::{eventually, free_port};

/// Starts `PgBouncer` in front of PostgreSQL. Returns it and its port. Returns `None`, after
/// printing the reason, if it is not installed.
fn pooler(cluster: &Cluster, mode: &str, dir: &Path) -> Option<(Process, u16)> {
    let program = "/usr/sbin/pgbouncer";
    if !Path::new(program).exists() {
        println!("not tested: a pooler: PgBouncer is not installed");
        return None;
    }
    let port = free_port();
    let settings = format!(
        "[databases]\n* = host=127.0.0.1 port={} user=postgres\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = any\npool_mode = {mode}\n",
        cluster.postgres.port()
    );
    let file = dir.join(format!("{mode}.ini"));
    fs::write(&file, settings).unwrap();
    let mut command = Command::new(program);
    if rustix::process::geteuid().is_root() {
        command.args(["-u", "nobody"]);
    }
    let process = Process::spawn(command.arg(file));
    eventually("PgBouncer listens", || {
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
    });
    Some((process, port))
}

#[test]
fn a_pooler_in_transaction_mode_is_refused() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let config = cluster.nodes.config(0);
    let text = fs::read_to_string(config).unwrap();
    let direct = cluster.to_database.address().to_string();
    let list = |port: u16| {
        let through = text.replace(&direct, &format!("127.0.0.1:{port}"));
        assert_ne!(through, text);
        fs::write(config, through).unwrap();
        let mut list = cluster.nodes.samovar();
        list.args(["token", "list", "--config"]).arg(config);
        list
    };
    for mode in ["transaction", "statement"] {
        let Some((_pooler, port)) = pooler(&cluster, mode, cluster.dir()) else {
            return;
        };
        let refused = fails(&mut list(port));
        let expected = "go through a pooler in transaction mode";
        assert!(refused.contains(expected), "{mode}: {refused}");
    }
    let (_pooler, port) = pooler(&cluster, "session", cluster.dir()).unwrap();
    assert!(output(&mut list(port)).contains("NAME"));
}

/// A load balancer that asks a node is told in time that a part hangs.
#[test]
fn a_node_whose_bucket_or_database_hangs_says_that_it_is_not_ready() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let is_ready = || {
        let began = Instant::now();
        let status = cluster.get(0, "/readyz").status;
        // With slack: the limit is 3 s, and each part is waited for much longer.
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "{:?}",
            began.elapsed()
        );
        status == 200
    };
    eventually("the node is ready", is_ready);
    let engine = cluster.engine.process.as_ref().unwrap();
    engine.signal("STOP");
    let while_stopped = [is_ready(), is_ready()];
    engine.signal("CONT");
    assert_eq!(while_stopped, [false, false]);
    eventually("the node is ready", is_ready);
    cluster.postgres.pause();
    let while_paused = [is_ready(), is_ready()];
    cluster.postgres.unpause();
    assert_eq!(while_paused, [false, false]);
    eventually("the node is ready", is_ready);
}

/// Tokens expire by the clock of the database.
#[test]
fn a_node_with_a_wrong_clock_accepts_tokens_as_others_do() {
    let Some(mut cluster) = Cluster::start(2) else {
        return;
    };
    let arguments = [
        "--name",
        "short",
        "--rights",
        "read,push",
        "--expires",
        "1h",
    ];
    let token = cluster.nodes.run(0, &["token", "create"], &arguments);
    let Some(clock) = FakeClock::find() else {
        return;
    };
    for (round, offset) in ["+1d", "-1d"].into_iter().enumerate() {
        cluster.nodes.kill(1);
        let mut serve = cluster.nodes.command(1);
        clock.set(&mut serve, offset);
        let node = Process::spawn(&mut serve);
        node.wait_for_address();
        let path = MadePath::new(&format!("path-{round}"));
        cluster.publish(1, &token, &path);
        let found = cluster.get(0, &path.target());
        assert_eq!(found.status, 200, "{offset}: {}", found.text());
    }
}
