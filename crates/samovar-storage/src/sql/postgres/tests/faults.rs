//! Servers that crash, hang, lose connections, or are replaced. In each case, what was acknowledged
//! is there, and nothing was done twice.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use testkit::eventually;
use testkit::faults::{FaultProxy, Faults};
use testkit::random::SplitMix64;

use super::*;

const LISTEN: &str = "listen_addresses=127.0.0.1";

/// Leaves a server as it is for this time, which is the fault that is tested.
fn stay(time: Duration) {
    std::thread::sleep(time);
}

fn open(url: &str) -> Database {
    Database::open_postgres(&PostgresSettings::parse(url).unwrap(), None).unwrap()
}

/// Adds a row with this name, and increments a counter, in one transaction. The row cannot be added
/// twice. `changes`: what other nodes must learn.
fn add(database: &Database, name: &str, changes: &[Change]) -> Result<(), StorageError> {
    database.write(|transaction| {
        transaction.execute("update clock set seq = seq + 1", &[])?;
        add_cache(transaction, name)?;
        changes.iter().for_each(|change| transaction.note(*change));
        Ok(())
    })
}

fn names(database: &Database) -> HashSet<String> {
    let names = "select name from cache";
    let read = |connection: &Connection<'_>| connection.rows(names, &[], |row| row.get(0));
    database.read(read).unwrap().into_iter().collect()
}

/// Checks that each of the transactions was run once. `with_changes`: whether each has incremented
/// the clock a second time, for its change.
fn check_all_once(database: &Database, acknowledged: &HashSet<String>, with_changes: bool) {
    let found = names(database);
    assert_eq!(found, *acknowledged);
    let numbers = "select (select seq from clock), (select count(*) from change)";
    let read = |connection: &Connection<'_>| {
        connection.row(numbers, &[], |row| Ok((row.get(0)?, row.get(1)?)))
    };
    let (sequence, change_count): (i64, i64) = database.read(read).unwrap();
    let count = i64::try_from(found.len()).unwrap();
    let expected = if with_changes {
        (2 * count, count)
    } else {
        (count, 0)
    };
    assert_eq!((sequence, change_count), expected);
}

#[test]
fn a_server_that_is_killed_loses_no_acknowledged_commit() {
    if !Server::is_installed() {
        return;
    }
    let mut random = SplitMix64::new(9);
    let mut server = Server::with_settings(&["fsync=off"]);
    let databases = [open(&server.url()), open(&server.url())];
    let (count, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let write = |writer: usize, database: &Database| {
        let mut acknowledged = HashSet::new();
        for number in 0.. {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            let name = format!("{writer}-{number}");
            // A change would wait for the leases of nodes that a crashed server has forgotten.
            add(database, &name, &[]).unwrap();
            acknowledged.insert(name);
            count.fetch_add(1, Ordering::Relaxed);
        }
        acknowledged
    };
    let acknowledged: HashSet<String> = std::thread::scope(|scope| {
        let write = &write;
        let writers = [(0, &databases[0]), (1, &databases[1])]
            .map(|(writer, database)| scope.spawn(move || write(writer, database)));
        while count.load(Ordering::Relaxed) < 200 {
            stay(Duration::from_millis(random.below(300)));
            server.kill();
            server.resume();
        }
        is_over.store(true, Ordering::Relaxed);
        let written = writers.map(|writer| writer.join().unwrap());
        written.into_iter().flatten().collect()
    });
    check_all_once(&databases[0], &acknowledged, false);
}

#[test]
fn writers_wait_for_a_server_that_hangs() {
    if !Server::is_installed() {
        return;
    }
    let server = Server::with_settings(&["fsync=off"]);
    let database = open(&server.url());
    let hang = Duration::from_secs(10);
    // Before a transaction, and in the middle of one, which the server then ends.
    for (number, is_inside) in [false, true].into_iter().enumerate() {
        let name = number.to_string();
        let mut is_first = is_inside;
        std::thread::scope(|scope| {
            if !is_inside {
                server.pause();
            }
            let writer = scope.spawn(|| {
                database.write(|transaction| {
                    add_cache(transaction, &name)?;
                    if std::mem::take(&mut is_first) {
                        server.pause();
                        transaction.note(Change::TokensChanged);
                    }
                    transaction.execute("update clock set seq = seq + 1", &[])?;
                    Ok(())
                })
            });
            stay(hang);
            server.unpause();
            writer.join().unwrap().unwrap();
        });
    }
    assert_eq!(names(&database).len(), 2);
    assert_eq!(cache_count(&database), 2);
}

#[test]
fn a_look_up_fails_while_the_server_is_away_and_an_upload_waits() {
    if !Server::is_installed() {
        return;
    }
    let mut server = Server::with_settings(&["fsync=off"]);
    let database = open(&server.url());
    assert_eq!(cache_count(&database), 0);
    let statistics = || database.postgres().unwrap().statistics();
    let before = statistics();
    assert_eq!((before.down, before.connection_count), (None, 2));
    server.kill();
    let count = || {
        let query = "select count(*) from cache";
        database.read(|connection| connection.row(query, &[], |row| row.get::<i64>(0)))
    };
    let started = Instant::now();
    let failed = count();
    assert!(
        matches!(failed, Err(StorageError::Unavailable(_))),
        "{failed:?}"
    );
    assert!(started.elapsed() < Duration::from_secs(10));
    let away = statistics();
    assert!(away.down.is_some(), "{away:?}");
    assert_eq!(away.reads.failed_count, before.reads.failed_count + 1);
    std::thread::scope(|scope| {
        let upload = scope.spawn(|| {
            let _patience = database.waits().start();
            count()
        });
        stay(Duration::from_millis(300));
        server.resume();
        assert_eq!(upload.join().unwrap().unwrap(), 0);
    });
    // The connections of before are not used.
    assert_eq!(count().unwrap(), 0);
    let back = statistics();
    assert_eq!(back.down, None);
    // The upload, which was attempted several times, is one transaction, and it waited.
    let counts = |of: &DatabaseStatistics| (of.reads.committed_count, of.reads.failed_count);
    assert_eq!(counts(&back), (counts(&away).0 + 2, counts(&away).1));
    assert!(back.reads.wait - away.reads.wait >= Duration::from_millis(200));
    assert!(back.connect_count > before.connect_count);
}

#[test]
fn writers_wait_while_the_server_is_read_only() {
    if !Server::is_installed() {
        return;
    }
    let server = Server::with_settings(&["fsync=off"]);
    let database = open(&server.url());
    add(&database, "a", &[]).unwrap();
    let set = |value: &str| {
        let mut client = server.client();
        let set = format!("alter system set default_transaction_read_only to {value}");
        client
            .batch_execute("set default_transaction_read_only to off")
            .unwrap();
        client.batch_execute(&set).unwrap();
        client.batch_execute("select pg_reload_conf()").unwrap();
        eventually("the server has read its settings", || {
            let mut client = server.client();
            let row = client.query_one("show default_transaction_read_only", &[]);
            row.unwrap().get::<_, String>(0) == value
        });
    };
    set("on");
    let refused = database.write_within(Duration::from_millis(100), |transaction| {
        add_cache(transaction, "b")
    });
    let is_refused = matches!(refused, Err(StorageError::Unavailable(_)));
    assert!(is_refused, "{refused:?}");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| add(&database, "c", &[]));
        stay(Duration::from_millis(200));
        set("off");
        writer.join().unwrap().unwrap();
    });
    assert_eq!(names(&database).len(), 2);
}

#[test]
fn a_commit_whose_answer_is_lost_is_looked_up() {
    if !Server::is_installed() {
        return;
    }
    let server = Server::with_settings(&[LISTEN, "fsync=off"]);
    let proxy = FaultProxy::start(SocketAddr::from(([127, 0, 0, 1], server.port())));
    let port = proxy.address().port();
    let url = format!("postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable");
    let database = open(&url);
    let mut acknowledged = HashSet::new();
    let faults = [
        // The server commits, and the answer is lost.
        Faults::reset_responses(0).once_sent("commit").times(1),
        // The server does not get the commit.
        Faults::reset_requests(0).once_sent("commit").times(1),
        // The connection ends before.
        Faults::reset_responses(0)
            .once_sent("returning id")
            .times(1),
        Faults::NONE,
    ];
    for (number, faults) in faults.into_iter().enumerate() {
        proxy.set(faults);
        let name = number.to_string();
        add(&database, &name, &[Change::TokensChanged]).unwrap();
        acknowledged.insert(name);
        assert_eq!(proxy.cut_count(), 3.min(number as u64 + 1));
    }
    check_all_once(&database, &acknowledged, true);
}

#[test]
fn a_standby_takes_over_without_loss() {
    if !Server::is_installed() {
        return;
    }
    let mut primary = Server::with_settings(&[LISTEN, "fsync=off"]);
    let standby = primary.standby(&[LISTEN, "fsync=off"]);
    let mut client = primary.client();
    let wait_for = "alter system set synchronous_standby_names to '*'";
    client.batch_execute(wait_for).unwrap();
    client.batch_execute("select pg_reload_conf()").unwrap();
    eventually("the standby is synchronous", || {
        let state = "select count(*) from pg_stat_replication where sync_state = 'sync'";
        client.query_one(state, &[]).unwrap().get::<_, i64>(0) == 1
    });
    drop(client);
    // The standby is listed first: it is refused as long as it accepts no writes.
    let url = format!(
        "postgresql://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?sslmode=disable",
        standby.port(),
        primary.port()
    );
    let database = open(&url);
    let identity = |database: &Database| {
        let link = database.postgres().unwrap().link().unwrap();
        link.identity().clone()
    };
    let before = identity(&database);
    let mut acknowledged = HashSet::new();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..60 {
                let name = number.to_string();
                add(&database, &name, &[Change::TokensChanged]).unwrap();
                acknowledged.insert(name);
            }
        });
        stay(Duration::from_millis(100));
        primary.kill();
        standby.promote();
        writer.join().unwrap();
    });
    check_all_once(&database, &acknowledged, true);
    let after = identity(&database);
    assert_eq!(before.system, after.system);
    assert_ne!(before.timeline, after.timeline);
    assert_ne!(before.incarnation, after.incarnation);
}

#[test]
fn a_crash_of_one_process_of_the_server_is_another_incarnation() {
    if !Server::is_installed() {
        return;
    }
    let mut server = Server::with_settings(&["fsync=off"]);
    let database = open(&server.url());
    let identity = || {
        let mut found = None;
        eventually("the server is back", || {
            let link = database.postgres().unwrap().link();
            found = link.ok().map(|link| link.identity().clone());
            found.is_some()
        });
        found.unwrap()
    };
    let first = identity();
    assert_eq!(identity(), first);
    server.crash_one_process();
    let second = identity();
    // The server itself was not started again, but its unlogged tables are empty.
    assert_eq!(second.started_at, first.started_at);
    assert_ne!(second.incarnation, first.incarnation);
    server.kill();
    server.resume();
    assert_ne!(identity().started_at, first.started_at);
}
