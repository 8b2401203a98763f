//! The engine with a real server.

mod access;
mod faults;

use std::ops::ControlFlow;

use samovar_nix::HashPart;
use testkit::postgres::Postgres as Server;

use super::*;
use crate::sql::{CacheId, Connection, Database, Transaction, params};

/// Returns an empty database on the server of this process, or `None` if PostgreSQL is not
/// installed.
fn database() -> Option<(PostgresSettings, Database)> {
    if !Server::is_installed() {
        return None;
    }
    let settings = PostgresSettings::parse(&Server::shared().new_database()).unwrap();
    let database = Database::open_postgres(&settings, None).unwrap();
    Some((settings, database))
}

fn add_cache(transaction: &Transaction<'_>, name: &str) -> Result<i64, StorageError> {
    transaction.row(
        "insert into cache (name, store_dir, created_at) values (?1, '/s', ?2) returning id",
        params![name, 5i64],
        |row| row.get(0),
    )
}

fn cache_count(database: &Database) -> i64 {
    database
        .read(|connection| connection.row("select count(*) from cache", &[], |row| row.get(0)))
        .unwrap()
}

#[test]
fn values_are_read_as_they_were_written() {
    let Some((_, database)) = database() else {
        return;
    };
    let check = |connection: &Connection<'_>| {
        let query = "select ?1 + 0, ?2 || '', cast(?3 as bytea), cast(?4 as bigint) is null, \
                     sum(id), count(*), id = 1 from (values (1), (2)) as its (id) group by id = 1 \
                     order by id = 1 desc";
        connection.row(
            query,
            params![-7i64, "ü", &[0u8, 255], None::<i64>],
            |row| {
                assert_eq!(row.get::<i64>(0)?, -7);
                assert_eq!(row.get::<String>(1)?, "ü");
                assert_eq!(row.get::<[u8; 2]>(2)?, [0, 255]);
                assert!(row.get::<bool>(3)?);
                assert_eq!((row.get::<i64>(4)?, row.get::<i64>(5)?), (1, 1));
                assert!(row.get::<bool>(6)?);
                Ok(())
            },
        )
    };
    database.read(check).unwrap();
}

#[test]
fn a_transaction_is_committed_or_undone() {
    let Some((_, database)) = database() else {
        return;
    };
    database
        .write(|transaction| add_cache(transaction, "a"))
        .unwrap();
    let failed: Result<(), _> = database.write(|transaction| {
        add_cache(transaction, "b")?;
        Err(StorageError::TokenInvalid)
    });
    assert!(matches!(failed, Err(StorageError::TokenInvalid)));
    assert_eq!(cache_count(&database), 1);
    // A statement fails, and the caller ignores that.
    let failed = database.write(|transaction| {
        add_cache(transaction, "a").ok();
        Ok(())
    });
    assert!(
        matches!(failed, Err(StorageError::Database(_))),
        "{failed:?}"
    );
}

#[test]
fn changes_get_numbers_in_the_order_of_commits() {
    let Some((settings, database)) = database() else {
        return;
    };
    let part = HashPart::from_bytes([7; 20]);
    let other = Database::open_postgres(&settings, None).unwrap();
    for (number, database) in [&database, &other, &database].into_iter().enumerate() {
        database
            .write(|transaction| {
                transaction.note(Change::PathAdded(CacheId(3), part));
                transaction.note(Change::TokensChanged);
                Ok(number)
            })
            .unwrap();
    }
    database.write(|_| Ok(())).unwrap();
    let query = "select seq, number, op, cache_id, hash_part from change order by seq, number";
    let rows = database.read(|connection| {
        connection.rows(query, &[], |row| {
            let change = Change::of_columns(
                row.get(2)?,
                row.get(3)?,
                row.get::<Option<[u8; 20]>>(4)?.map(HashPart::from_bytes),
            );
            Ok((row.get::<i64>(0)?, row.get::<i64>(1)?, change))
        })
    });
    let rows = rows.unwrap();
    assert_eq!(rows.len(), 6);
    assert_eq!(rows[2], (2, 0, Some(Change::PathAdded(CacheId(3), part))));
    assert_eq!(rows[5], (3, 1, Some(Change::TokensChanged)));
}

#[test]
fn a_result_of_any_length_is_visited_in_one_snapshot() {
    let Some((_, database)) = database() else {
        return;
    };
    let visited = |last: i64| {
        let (mut count, mut sum) = (0, 0);
        let numbers = "select number from generate_series(1, ?1) as its (number) order by number";
        let outcome = database.read(|connection| {
            connection.each(numbers, params![5000i64], |row| {
                let number: i64 = row.get(0)?;
                (count, sum) = (count + 1, sum + number);
                // Another statement, and another cursor, in the same session.
                if number % 1000 == 0 {
                    connection.each("select 1", &[], |_| Ok(ControlFlow::Continue(())))?;
                }
                Ok(match number == last {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                })
            })
        });
        outcome.unwrap();
        (count, sum)
    };
    assert_eq!(visited(0), (5000, 12_502_500));
    assert_eq!(visited(3), (3, 6));
    let counts = database.read(|connection| {
        connection.snapshot(|connection| {
            let count = || connection.row("select count(*) from cache", &[], |row| row.get(0));
            let before: i64 = count()?;
            database.write(|transaction| add_cache(transaction, &format!("a{before}")))?;
            Ok((before, count()?))
        })
    });
    assert_eq!(counts.unwrap(), (0, 0));
    assert_eq!(cache_count(&database), 1);
}

#[test]
fn writers_of_two_nodes_take_turns() {
    let Some((settings, database)) = database() else {
        return;
    };
    let other = Database::open_postgres(&settings, None).unwrap();
    let started = Instant::now();
    database
        .write(|transaction| {
            let busy = other.write_within(Duration::from_millis(20), |_| Ok(()));
            assert!(matches!(busy, Err(StorageError::Busy)), "{busy:?}");
            add_cache(transaction, "a")
        })
        .unwrap();
    assert!(started.elapsed() < Duration::from_secs(5));
    // Increments by reading and writing, of which none is lost.
    let count = |database: &Database| {
        for _ in 0..20 {
            let increment = |transaction: &Transaction<'_>| {
                let old: i64 =
                    transaction.row("select created_at from cache", &[], |row| row.get(0))?;
                transaction.execute("update cache set created_at = ?1", params![old + 1])
            };
            database.write(increment).unwrap();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| count(&database));
        scope.spawn(|| count(&database));
        count(&other);
    });
    let sum = "select created_at from cache";
    let sum: i64 = database
        .read(|connection| connection.row(sum, &[], |row| row.get(0)))
        .unwrap();
    assert_eq!(sum, 65);
}

#[test]
fn one_node_at_a_time_has_an_exclusive_right() {
    let Some((settings, database)) = database() else {
        return;
    };
    let other = Database::open_postgres(&settings, None).unwrap();
    let exclusive = |database: &Database, name| {
        let postgres = database.postgres().unwrap();
        postgres.exclusive(name).unwrap()
    };
    let ours = exclusive(&database, "collector").unwrap();
    assert!(ours.is_held());
    assert!(exclusive(&other, "collector").is_none());
    assert!(exclusive(&other, "mirror").is_some());
    drop(ours);
    // The server notices the end of a connection a little later.
    testkit::eventually("the right is free", || {
        exclusive(&other, "collector").is_some()
    });
}

#[test]
fn a_link_gets_messages_and_knows_its_server() {
    let Some((settings, database)) = database() else {
        return;
    };
    let postgres = database.postgres().unwrap();
    let (receiver, sender) = (postgres.link().unwrap(), postgres.link().unwrap());
    assert_eq!(receiver.identity(), sender.identity());
    assert!(receiver.identity().incarnation.is_some());
    receiver.listen("changes").unwrap();
    assert!(receiver.wait(Duration::ZERO).unwrap().is_empty());
    sender.notify("changes", "7").unwrap();
    sender.notify("other", "8").unwrap();
    assert_eq!(receiver.wait(Duration::from_secs(60)).unwrap(), ["7"]);
    assert!(!receiver.is_lost());
    let connection = Connection::Postgres(receiver.session());
    let one: i64 = connection.row("select 1", &[], |row| row.get(0)).unwrap();
    assert_eq!(one, 1);
    // Another storage in the same database has other tables.
    let url = Server::shared().url_of("postgres");
    let twice = ["one", "two"].map(|schema| {
        let url = format!("{url}&options=-csearch_path%3D{schema}");
        let settings = PostgresSettings::parse(&url).unwrap();
        Database::open_postgres(&settings, None).unwrap()
    });
    twice[0]
        .write(|transaction| add_cache(transaction, "a"))
        .unwrap();
    assert_eq!((cache_count(&twice[0]), cache_count(&twice[1])), (1, 0));
    drop(settings);
}

#[test]
fn old_outcomes_are_deleted() {
    let Some((_, database)) = database() else {
        return;
    };
    let write = |statement: &str| {
        let write = |transaction: &Transaction<'_>| transaction.execute(statement, &[]);
        database.write(write).unwrap()
    };
    write("update outcome set at = 0");
    write("insert into outcome values (gen_random_uuid(), 0)");
    let delete = outcome::remove_old();
    assert_eq!(write(&delete), 2);
    // The rows of the last transactions stay.
    assert_eq!(write(&delete), 0);
}

#[test]
fn nodes_that_start_at_once_create_the_tables_once() {
    if !Server::is_installed() {
        return;
    }
    let settings = PostgresSettings::parse(&Server::shared().new_database()).unwrap();
    let ids = std::thread::scope(|scope| {
        let open = || {
            Database::open_postgres(&settings, None)
                .unwrap()
                .store_id()
                .unwrap()
        };
        let threads = [(); 4].map(|()| scope.spawn(open));
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(ids[0].len(), 32);
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[test]
fn a_database_that_shuts_this_version_out_is_refused() {
    let Some((settings, database)) = database() else {
        return;
    };
    let set = |key: &str, value: &str| {
        let update = "update meta set value = ?2 where key = ?1";
        let write =
            |transaction: &Transaction<'_>| transaction.execute(update, params![key, value]);
        database.write(write).unwrap();
    };
    set("schema", "9");
    Database::open_postgres(&settings, None).unwrap();
    set("least-program", "9");
    let refused = Database::open_postgres(&settings, None).map(drop);
    let is_refusal = matches!(refused, Err(StorageError::SchemaTooNew { found: 9, .. }));
    assert!(is_refusal, "{refused:?}");
}

#[test]
fn tables_that_a_newer_program_has_just_migrated_keep_its_version() {
    let Some((settings, database)) = database() else {
        return;
    };
    let (session, _greeting) = server::connect(&settings, Purpose::Write, &Arc::default()).unwrap();
    // As if this program had waited for the other one.
    let update = "begin; update meta set value = '9' where key = 'schema'";
    session.begin(update, OPEN_TIME).unwrap();
    schema::run_steps(&session, &settings).unwrap();
    let query = "select value from meta where key = 'schema'";
    let found: String = database
        .read(|connection| connection.row(query, &[], |row| row.get(0)))
        .unwrap();
    assert_eq!(found, "9");
}

#[test]
fn a_role_without_rights_gets_a_sentence() {
    if !Server::is_installed() {
        return;
    }
    let server = Server::shared();
    let url = server.new_database();
    let roles = "create role reader login; create role owner login";
    server.client().batch_execute(roles).unwrap();
    let open = |role: &str| {
        let url = url.replace("user=postgres", &format!("user={role}"));
        Database::open_postgres(&PostgresSettings::parse(&url).unwrap(), None).map(drop)
    };
    let refused = open("reader").unwrap_err().to_string();
    assert!(
        refused.contains("create schema samovar authorization"),
        "{refused}"
    );
    let mut admin = postgres_client(&url);
    let create = "create schema samovar authorization owner";
    admin.batch_execute(create).unwrap();
    open("owner").unwrap();
    assert!(open("reader").is_err());
}

fn postgres_client(url: &str) -> testkit::postgres::Client {
    testkit::postgres::Client::connect(url, testkit::postgres::NoTls).unwrap()
}

#[test]
fn the_files_of_the_paths_of_a_cache_are_counted_once() {
    let Some((_, database)) = database() else {
        return;
    };
    let run = |statement: &str| {
        let write = |transaction: &Transaction<'_>| transaction.execute(statement, &[]);
        database.write(write).unwrap();
    };
    let bytes = || {
        let query = "select file_bytes, extra_bytes from cache order by id";
        let read = |connection: &Connection<'_>| {
            connection.rows(query, &[], |row| {
                Ok((row.get::<i64>(0)?, row.get::<i64>(1)?))
            })
        };
        database.read(read).unwrap()
    };
    run(
        "insert into cache (id, name, store_dir, created_at) values (1, 'a', '/s', 0), \
         (2, 'b', '/s', 0)",
    );
    run(
        "insert into nar (id, nar_hash, nar_size, file_hash, file_size, compression, object_key, \
         created_at) values (1, '\\x01', 1, '\\x01', 100, 'none', 'nar/1', 0), \
         (2, '\\x02', 1, '\\x02', 10, 'none', 'nar/2', 0)",
    );
    // Two paths of one statement have the same NAR.
    run(
        "insert into path (id, cache_id, hash_part, name, nar_id, self_reference, deriver, sigs, \
         registered_at, own_bytes) values (1, 1, '\\x01', 'lib', 1, 0, null, '', 0, 1), \
         (2, 1, '\\x02', 'app', 2, 0, 'app.drv', '', 0, 2), \
         (3, 1, '\\x03', 'copy', 1, 0, null, '', 0, 4), \
         (4, 2, '\\x01', 'lib', 1, 0, null, '', 0, 8)",
    );
    assert_eq!(bytes(), [(110, 7), (100, 8)]);
    run(
        "insert into path (id, cache_id, hash_part, name, nar_id, self_reference, sigs, \
         registered_at, own_bytes) values (5, 1, '\\x05', 'again', 1, 0, '', 0, 0)",
    );
    assert_eq!(bytes(), [(110, 7), (100, 8)]);
    run("update path set nar_id = 2 where id = 4");
    assert_eq!(bytes(), [(110, 7), (10, 8)]);
    run("insert into log (cache_id, name, size, uploaded_at) values (1, 'app.drv', 10, 0)");
    run("update log set size = 20");
    run("insert into extra values (1, 'k', 2, 'body', 'sig')");
    run("update extra set sigs = 's2 s3'");
    assert_eq!(bytes()[0], (110, 7 + 4096 + 20 + 4096 + 10));
    run("delete from path where id in (1, 3, 5)");
    assert_eq!(bytes()[0], (10, 2 + 4096 + 20 + 4096 + 10));
    // Its realisation is deleted with it, and its build log is left.
    run("delete from path where id = 2");
    assert_eq!(bytes(), [(0, 4096 + 20), (10, 8)]);
    let is_left = "select is_left from log";
    let is_left: bool = database
        .read(|connection| connection.row(is_left, &[], |row| row.get(0)))
        .unwrap();
    assert!(is_left);
    run("update path set own_bytes = own_bytes + 5");
    run("delete from log");
    assert_eq!(bytes(), [(0, 0), (10, 13)]);
}
