//! The schema of the database, and its migrations.
//!
//! Each version is an SQL file that changes the schema of the version before it. A new database
//! runs all of them in order.

use rusqlite::{Connection, TransactionBehavior};

use crate::error::StorageError;

/// The schema version that this program reads and writes.
pub(crate) const SCHEMA: i64 = 10;

/// The SQL statements that upgrade each version to the next. The first ones create version 1 in an
/// empty database.
const STEPS: [&str; 10] = [
    include_str!("schema_1.sql"),
    include_str!("schema_2.sql"),
    include_str!("schema_3.sql"),
    include_str!("schema_4.sql"),
    include_str!("schema_5.sql"),
    include_str!("schema_6.sql"),
    include_str!("schema_7.sql"),
    include_str!("schema_8.sql"),
    include_str!("schema_9.sql"),
    include_str!("schema_10.sql"),
];

/// Upgrades the database to the present schema version, in one transaction.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), StorageError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found: i64 = transaction.query_row("pragma user_version", [], |row| row.get(0))?;
    let steps = usize::try_from(found)
        .ok()
        .and_then(|found| STEPS.get(found..));
    let Some(steps) = steps else {
        return Err(StorageError::SchemaTooNew {
            found,
            supported: SCHEMA,
        });
    };
    for step in steps {
        transaction.execute_batch(step)?;
    }
    if found == 0 {
        let id = "insert into meta values ('store-id', lower(hex(randomblob(16))))";
        transaction.execute(id, [])?;
    }
    if found != SCHEMA {
        transaction.pragma_update(None, "user_version", SCHEMA)?;
    }
    Ok(transaction.commit()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integer(connection: &Connection, query: &str) -> i64 {
        connection.query_row(query, [], |row| row.get(0)).unwrap()
    }

    /// Returns a database that was made with an earlier schema, got rows, and was migrated.
    #[track_caller]
    fn migrated_from(version: usize, rows: &str) -> Connection {
        let mut connection = Connection::open_in_memory().unwrap();
        for step in &STEPS[..version] {
            connection.execute_batch(step).unwrap();
        }
        connection
            .pragma_update(None, "user_version", i64::try_from(version).unwrap())
            .unwrap();
        connection
            .execute_batch(&format!("pragma foreign_keys = on; {rows}"))
            .unwrap();
        migrate(&mut connection).unwrap();
        assert_eq!(integer(&connection, "pragma user_version"), SCHEMA);
        connection
    }

    #[test]
    fn a_database_of_schema_1_is_migrated_without_loss() {
        let mut connection = migrated_from(
            1,
            "insert into cache values \
                 (1, 'default', '/nix/store', 0), (2, 'b', '/nix/store', 0); \
             insert into nar values \
                 (1, x'01', 1, x'01', 100, 'none', 'nar/1.nar', null, null, 0), \
                 (2, x'02', 1, x'02', 10, 'none', 'nar/2.nar', null, null, 0); \
             insert into path values \
                 (1, 1, x'01', 'lib', 1, 0, null, null, '', 0, null), \
                 (2, 1, x'02', 'app', 2, 0, null, null, '', 0, null), \
                 (3, 1, x'03', 'copy', 1, 0, null, null, '', 0, null), \
                 (4, 2, x'01', 'lib', 1, 0, null, null, '', 0, null); \
             insert into reference values (2, 1);",
        );
        assert_eq!(integer(&connection, "select count(*) from path"), 4);
        assert_eq!(integer(&connection, "select min(state) from nar"), 1);
        let unused = "select count(*) from path where abs(used_at - unixepoch()) > 86400 \
                      or condemned_at is not null";
        assert_eq!(integer(&connection, unused), 0);
        let bytes = |cache: i64| {
            let query = format!("select file_bytes from cache where id = {cache}");
            integer(&connection, &query)
        };
        assert_eq!((bytes(1), bytes(2)), (110, 100));
        // Two paths use the same file, which counts once.
        connection
            .execute_batch("delete from path where id = 3")
            .unwrap();
        assert_eq!((bytes(1), bytes(2)), (110, 100));
        connection
            .execute_batch("update path set nar_id = 2 where id = 4")
            .unwrap();
        assert_eq!((bytes(1), bytes(2)), (110, 10));
        connection
            .execute_batch("delete from path where id = 4")
            .unwrap();
        connection
            .execute_batch("delete from path where id = 2")
            .unwrap();
        assert_eq!((bytes(1), bytes(2)), (100, 0));
        connection
            .execute_batch(
                "insert into path (cache_id, hash_part, name, nar_id, self_reference, sigs, \
                 registered_at) values (2, x'09', 'new', 2, 0, '', 0)",
            )
            .unwrap();
        assert_eq!((bytes(1), bytes(2)), (100, 10));
        migrate(&mut connection).unwrap();
    }

    #[test]
    fn pins_of_schema_6_are_migrated_without_loss() {
        let connection = migrated_from(
            6,
            "insert into cache values (1, 'default', '/nix/store', 0, 0, 0); \
             insert into nar values \
                 (1, x'01', 1, x'01', 100, 'none', 'nar/1.nar', null, null, 0, 1, 0); \
             insert into path values \
                 (1, 1, x'01', 'app', 1, 0, null, null, '', 0, null, 0, null); \
             insert into pin values (1, 1, 'main', 1, 1, 5, 9), (2, 1, 'main', 2, 1, 6, null);",
        );
        let old = "select count(*) from pin where token_name is null and host is null \
                   and message is null and created_at in (5, 6)";
        assert_eq!(integer(&connection, old), 2);
        // The newest removed generation is recorded, whichever row is deleted first.
        let removed = "select coalesce(max(generation), 0) from removed_pin";
        connection
            .execute_batch("delete from pin where generation = 1")
            .unwrap();
        assert_eq!(integer(&connection, removed), 0);
        connection
            .execute_batch(
                "insert into pin (id, cache_id, name, generation, path_id, created_at) \
                 values (3, 1, 'main', 1, 1, 5)",
            )
            .unwrap();
        connection
            .execute_batch("delete from pin where generation = 2; delete from pin")
            .unwrap();
        assert_eq!(integer(&connection, removed), 2);
    }

    #[test]
    fn each_pin_of_schema_7_gets_a_lineage() {
        let connection = migrated_from(
            7,
            "insert into cache values (1, 'default', '/nix/store', 0, 0, 0); \
             insert into nar values \
                 (1, x'01', 1, x'01', 100, 'none', 'nar/1.nar', null, null, 0, 1, 0); \
             insert into path values \
                 (1, 1, x'01', 'app', 1, 0, null, null, '', 0, null, 0, null); \
             insert into pin values \
                 (1, 1, 'main', 1, 1, 5, 9, 'ci', 'box', 'why'), \
                 (2, 1, 'main', 2, 1, 6, null, null, null, null), \
                 (3, 1, 'other', 2, 1, 6, null, null, null, null);",
        );
        let lineages = "select count(distinct lineage) from pin where length(lineage) = 16";
        assert_eq!(integer(&connection, lineages), 2);
        let of_main = format!("{lineages} and name = 'main' and lineage <> zeroblob(16)");
        assert_eq!(integer(&connection, &of_main), 1);
        let origin = "select count(*) from pin where token_name = 'ci' and message = 'why'";
        assert_eq!(integer(&connection, origin), 1);
    }

    #[test]
    fn what_counts_is_computed_for_a_database_of_schema_7() {
        let connection = migrated_from(
            7,
            "insert into cache values \
                 (1, 'default', '/nix/store', 0, 0, 0), (2, 'b', '/nix/store', 0, 0, 0); \
             insert into nar values \
                 (1, x'01', 1, x'01', 100, 'none', 'nar/1.nar', null, null, 0, 1, 0); \
             insert into path values \
                 (1, 1, x'01', 'lib', 1, 0, null, null, '', 0, null, 0, null), \
                 (2, 1, x'02', 'app', 1, 0, '1-app.drv', null, 'k:s', 0, null, 20000, null); \
             insert into reference values (2, 1); \
             insert into outer_reference values (2, '1234-x'); \
             insert into extra values (1, 'k', 2, 'body', 'sig'), (2, 'k', null, 'b', '');",
        );
        let own = |id: i64| {
            integer(
                &connection,
                &format!("select own_bytes from path where id = {id}"),
            )
        };
        assert_eq!((own(1), own(2)), (4096, 4096 + 3 + 36 + 6));
        let used_at = integer(&connection, "select used_at from path where id = 2");
        assert_eq!(used_at, 20_001 * 86_400 - 1);
        let extra = |cache: i64| {
            let query = format!("select extra_bytes from cache where id = {cache}");
            integer(&connection, &query)
        };
        assert_eq!((extra(1), extra(2)), (4096 + own(2) + 4096 + 8, 4096 + 2));
        let run = |statements: &str| connection.execute_batch(statements).unwrap();
        // The realisation of a path is deleted with it. Its build log is left.
        run("insert into log (cache_id, name, size, uploaded_at) values (1, '1-app.drv', 10, 0)");
        run("update log set size = 20");
        assert_eq!(extra(1), 4096 + own(2) + 4096 + 8 + 4096 + 20);
        run("update path set own_bytes = own_bytes + 5 where id = 1");
        run("update extra set sigs = 's2 s3'");
        assert_eq!(
            (extra(1), extra(2)),
            (4101 + own(2) + 4096 + 10 + 4096 + 20, 4096 + 7)
        );
        run("delete from path where id = 2");
        assert_eq!((extra(1), extra(2)), (4101 + 4096 + 20, 4096 + 7));
        assert_eq!(integer(&connection, "select is_left from log"), 1);
        run("delete from path; delete from log; delete from extra");
        assert_eq!((extra(1), extra(2)), (0, 0));
    }

    #[test]
    fn a_newer_database_is_refused() {
        let mut connection = Connection::open_in_memory().unwrap();
        for version in [SCHEMA + 1, -1] {
            connection
                .pragma_update(None, "user_version", version)
                .unwrap();
            let refused = migrate(&mut connection);
            assert!(
                matches!(refused, Err(StorageError::SchemaTooNew { found, .. }) if found == version)
            );
        }
    }
}
