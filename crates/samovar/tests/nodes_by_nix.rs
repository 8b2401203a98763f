//! Stock Nix and `samovar push` use several nodes behind nginx as one cache: what was pushed
//! through any node is read through every node, and a second push sends nothing.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "it shows what a test leaves out")]

mod support;
mod support_nodes;
mod support_push;
mod support_uploads;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use support::secret_file;
use support_nodes::Cluster;
use support_push::{Pusher, assert_copies_back, count, noise, words};
use support_uploads::{MadePath, upload};
use testkit::nginx::Nginx;
use testkit::nix::{Nix, OwnStore, hash_part, local, sample_list, sample_root};
use testkit::process::output;
use testkit::wait::holds_within;

/// Starts two nodes behind nginx.
fn start() -> Option<(Cluster, Nginx)> {
    let cluster = Cluster::start(2)?;
    let nginx = cluster.behind_nginx();
    if nginx.is_none() {
        eprintln!("NOT TESTED: nginx in front of nodes; it is not installed");
    }
    Some((cluster, nginx?))
}

/// Copies paths of the sample store to the cache with this version of Nix.
#[track_caller]
fn copy_to(nix: &Nix, url: &str, token: &str, compression: &str, paths: &[String]) {
    let home = tempfile::tempdir().unwrap();
    output(&mut copying(
        nix,
        home.path(),
        url,
        token,
        compression,
        paths,
    ));
}

/// Returns the command that copies paths of the sample store to the cache.
#[track_caller]
fn copying(
    nix: &Nix,
    home: &Path,
    url: &str,
    token: &str,
    compression: &str,
    paths: &[String],
) -> Command {
    let login = format!("machine 127.0.0.1 login ci password {token}\n");
    let netrc = secret_file(home, "netrc", &login);
    let mut command = nix.command("nix", home);
    command.args(["copy", "--from", &local(&sample_root()), "--no-check-sigs"]);
    let to = format!("{url}/upload?compression={compression}");
    command.args(["--to", &to, "--option", "netrc-file"]);
    command.arg(netrc).args(paths);
    command
}

/// Returns the number of objects in the bucket.
fn object_count(dir: &Path) -> usize {
    let mut count = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        count += if path.is_dir() {
            object_count(&path)
        } else {
            1
        };
    }
    count
}

#[test]
fn what_stock_nix_copies_through_nginx_is_read_through_every_node() {
    let Some((cluster, nginx)) = start() else {
        return;
    };
    let token = cluster.nodes.token("ci", "read,push");
    let paths = &sample_list("graph")[..12];
    for (nix, compression) in Nix::all().iter().zip(["zstd", "none", "xz"]) {
        copy_to(nix, &nginx.url(), &token, compression, paths);
        for index in 0..2 {
            let key = &cluster.nodes.public_key;
            assert_copies_back(&cluster.url(index), key, &sample_root(), paths);
        }
    }
    let key = &cluster.nodes.public_key;
    assert_copies_back(&nginx.url(), key, &sample_root(), paths);
    // Another push sends no NAR.
    let before = object_count(&cluster.engine.bucket());
    copy_to(&Nix::INSTALLED, &nginx.url(), &token, "zstd", paths);
    assert_eq!(object_count(&cluster.engine.bucket()), before);
}

/// Time between two kills, in which nginx uses the node again.
const PAUSE: Duration = Duration::from_secs(3);

/// Maximum number of kills: after each, publishing waits three seconds for the lease of the killed
/// node, so without a maximum the work takes as long as the machine is slow.
const KILL_COUNT_MAX: usize = 5;

/// Kills one node after the other, and starts it again, until `work` has ended. Returns the number
/// of kills.
fn while_nodes_are_killed(cluster: &mut Cluster, work: impl FnOnce() + Send) -> usize {
    std::thread::scope(|scope| {
        let work = scope.spawn(work);
        let mut count = 0;
        while !work.is_finished() && count < KILL_COUNT_MAX {
            let index = count % 2;
            cluster.nodes.kill(index);
            cluster.restart(index);
            count += 1;
            holds_within(PAUSE, || work.is_finished());
        }
        work.join().unwrap();
        count
    })
}

#[test]
fn stock_nix_does_not_notice_that_nodes_are_killed() {
    let Some((mut cluster, nginx)) = start() else {
        return;
    };
    let token = cluster.nodes.token("ci", "read,push");
    let paths = &sample_list("graph")[..60];
    let key = cluster.nodes.public_key.clone();
    let url = nginx.url();
    let count = while_nodes_are_killed(&mut cluster, || {
        copy_to(&Nix::INSTALLED, &url, &token, "zstd", paths);
    });
    println!("{count} kills during the copy to the cache");
    let count = while_nodes_are_killed(&mut cluster, || {
        assert_copies_back(&url, &key, &sample_root(), paths);
    });
    println!("{count} kills during the copy from the cache");
}

/// Outages that are shorter are not noticed: nodes wait 50 s for what is away.
const OUTAGE_MAX: Duration = Duration::from_secs(45);

/// A shorter outage than [`OUTAGE_MAX`] is not noticed, and a longer one ends with a message.
/// `SAMOVAR_OUTAGE_SECONDS` sets the duration.
#[test]
fn stock_nix_waits_for_the_database_and_the_bucket() {
    let Some((mut cluster, nginx)) = start() else {
        return;
    };
    let token = cluster.nodes.token("ci", "read,push");
    let seconds = std::env::var("SAMOVAR_OUTAGE_SECONDS");
    let outage = Duration::from_secs(seconds.map_or(30, |text| text.parse().unwrap()));
    let url = nginx.url();
    for (round, part) in ["database", "bucket"].into_iter().enumerate() {
        let paths = &sample_list("graph")[..(round + 1) * 12];
        match part {
            "database" => cluster.postgres.kill(),
            _ => cluster.engine.kill(),
        }
        let home = tempfile::tempdir().unwrap();
        let mut copy = copying(&Nix::INSTALLED, home.path(), &url, &token, "zstd", paths);
        let copy = std::thread::spawn(move || (copy.output().unwrap(), Instant::now()));
        let began = Instant::now();
        holds_within(outage, || false);
        match part {
            "database" => cluster.postgres.resume(),
            _ => cluster.engine.resume(),
        }
        let (copied, ended) = copy.join().unwrap();
        let text = String::from_utf8_lossy(&copied.stderr);
        println!("{part}: {:?}, {}: {text}", ended - began, copied.status);
        if outage < OUTAGE_MAX {
            assert!(copied.status.success(), "{part}: {text}");
        } else {
            // A version of Nix that cannot repeat an upload is told why it ends.
            let reasons = ["HTTP error 503", "cannot be written at the moment"];
            let is_told = reasons.iter().any(|reason| text.contains(reason));
            assert!(!copied.status.success() && is_told, "{part}: {text}");
            copy_to(&Nix::INSTALLED, &url, &token, "zstd", paths);
        }
        let key = &cluster.nodes.public_key;
        assert_copies_back(&url, key, &sample_root(), paths);
    }
}

#[test]
fn a_push_may_reach_another_node_with_each_request() {
    let Some((cluster, nginx)) = start() else {
        return;
    };
    let token = cluster.nodes.token("ci", "read,push");
    let store = OwnStore::new();
    // Some are packed, and one is sent in parts.
    let mut paths: Vec<String> = (0..100)
        .map(|number| store.add_file(&format!("small-{number}"), &noise(number, 2_000)))
        .collect();
    paths.push(store.add_file("large", &noise(1_000, 70 << 20)));
    let pusher = Pusher::new(&local(store.root()), &token);
    let report = pusher.report(&nginx.url(), &words(&paths));
    assert_eq!(count(&report, "pushed"), paths.len(), "{report}");
    for index in 0..2 {
        let key = &cluster.nodes.public_key;
        assert_copies_back(&cluster.url(index), key, store.root(), &paths);
    }
    let report = pusher.report(&cluster.url(1), &words(&paths));
    assert_eq!(count(&report, "present"), paths.len(), "{report}");
}

#[test]
fn a_path_that_two_nodes_receive_at_once_is_stored_once() {
    let Some(cluster) = Cluster::start(2) else {
        return;
    };
    let token = cluster.nodes.token("ci", "read,push");
    for round in 0..20 {
        let same = MadePath::new(&format!("same-{round}")).containing(&noise(round, 300_000));
        // A build that is not reproducible.
        let other = same.clone().containing(&noise(round + 1_000, 300_000));
        let second = if round % 2 == 0 { &same } else { &other };
        std::thread::scope(|scope| {
            for (index, path) in [&same, second].into_iter().enumerate() {
                let (cluster, token) = (&cluster, &token);
                scope.spawn(move || cluster.publish(index, token, path));
            }
        });
        let narinfo = cluster.get(0, &same.target()).text();
        assert_eq!(cluster.get(1, &same.target()).text(), narinfo);
        let first = if narinfo.contains(&same.url()) {
            &same
        } else {
            &other
        };
        cluster.assert_serve(first);
        // It is stored once.
        if round % 2 == 0 {
            let name = same.url();
            let stem = name.split('.').next().unwrap();
            let nars = fs::read_dir(cluster.engine.bucket().join("nar")).unwrap();
            let nars = nars.map(|nar| nar.unwrap().file_name().into_string().unwrap());
            let copies = nars.filter(|nar| stem.ends_with(nar.split('.').next().unwrap()));
            assert!(copies.count() <= 1);
        }
    }
    let fsck = cluster.nodes.run(0, &["fsck"], &["--deep"]);
    assert!(
        fsck.contains("no problems") || fsck.contains(" 0 "),
        "{fsck}"
    );
}

#[test]
fn a_reference_that_was_published_through_another_node_is_known() {
    let Some(cluster) = Cluster::start(2) else {
        return;
    };
    let token = cluster.nodes.token("ci", "read,push");
    let mut below: Option<MadePath> = None;
    for round in 0..40 {
        let mut path = MadePath::new(&format!("chain-{round}"));
        if let Some(below) = &below {
            path = path.referring_to(&below.store_path);
        }
        // The NAR through one node, the narinfo through the other.
        let file = upload(
            cluster.address(round % 2),
            &token,
            &path.file_target(),
            &path.file,
        );
        assert_eq!(file.status, 200, "{}", file.text());
        let other = cluster.address((round + 1) % 2);
        let narinfo = upload(other, &token, &path.target(), path.narinfo());
        assert_eq!(narinfo.status, 200, "{}", narinfo.text());
        assert_eq!(hash_part(&path.store_path), path.hash_part());
        cluster.assert_serve(&path);
        below = Some(path);
    }
}
