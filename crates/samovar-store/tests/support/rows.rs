//! Writes a database row by row, with the statements that Nix uses.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};
use samovar_nix::StorePath;
use samovar_store::{LocalStore, Location};
use testkit::sqlite::SETTINGS;

/// `src/libstore/schema.sql` of Nix 2.8.0.
const SCHEMA: &str = "
create table if not exists ValidPaths (
    id               integer primary key autoincrement not null,
    path             text unique not null,
    hash             text not null,
    registrationTime integer not null,
    deriver          text,
    narSize          integer,
    ultimate         integer,
    sigs             text,
    ca               text
);
create table if not exists Refs (
    referrer  integer not null,
    reference integer not null,
    primary key (referrer, reference),
    foreign key (referrer) references ValidPaths(id) on delete cascade,
    foreign key (reference) references ValidPaths(id) on delete restrict
);
create index if not exists IndexReferrer on Refs(referrer);
create index if not exists IndexReference on Refs(reference);
create trigger if not exists DeleteSelfRefs before delete on ValidPaths
  begin
    delete from Refs where referrer = old.id and reference = old.id;
  end;
create table if not exists DerivationOutputs (
    drv  integer not null,
    id   text not null,
    path text not null,
    primary key (drv, id),
    foreign key (drv) references ValidPaths(id) on delete cascade
);
create index if not exists IndexDerivationOutputs on DerivationOutputs(path);
";

/// The journal mode of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Journal {
    Wal,
    Truncate,
}

/// A state directory whose database the test writes.
#[derive(Debug)]
pub(crate) struct Rows {
    dir: tempfile::TempDir,
    journal: Journal,
}

impl Rows {
    pub(crate) fn new(journal: Journal) -> Self {
        let dir = tempfile::tempdir().unwrap();
        super::make_public(dir.path());
        std::fs::create_dir_all(dir.path().join("var/db")).unwrap();
        std::fs::write(dir.path().join("var/db/schema"), "10").unwrap();
        let rows = Self { dir, journal };
        rows.writer();
        rows
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.dir.path().join("var/db/db.sqlite")
    }

    pub(crate) fn location(&self) -> Location {
        Location {
            store_dir: samovar_nix::StoreDir::default(),
            real_dir: self.dir.path().join("store"),
            state_dir: self.dir.path().join("var"),
            log_dir: self.dir.path().join("log"),
            socket: self.dir.path().join("socket"),
            read_only: false,
            dotfile_locks: false,
        }
    }

    pub(crate) fn open(&self) -> LocalStore {
        LocalStore::new(self.location()).unwrap()
    }

    /// Opens a read-write connection, as a Nix process does.
    pub(crate) fn writer(&self) -> Connection {
        self.writer_at(&self.database())
    }

    pub(crate) fn writer_at(&self, path: &Path) -> Connection {
        let connection = Connection::open(path).unwrap();
        let mode = match self.journal {
            Journal::Wal => "wal",
            Journal::Truncate => "truncate",
        };
        connection
            .query_row(&format!("pragma journal_mode = {mode}"), [], |_| Ok(()))
            .unwrap();
        connection.execute_batch(SETTINGS).unwrap();
        connection.execute_batch(SCHEMA).unwrap();
        connection
    }

    /// Replaces the database by another one, as restoring a backup does.
    pub(crate) fn replace(&self, fill: impl FnOnce(&Connection)) {
        let new = self.dir.path().join("var/db/new.sqlite");
        let connection = self.writer_at(&new);
        fill(&connection);
        connection.close().unwrap();
        for suffix in ["-wal", "-shm"] {
            let mut path = self.database().into_os_string();
            path.push(suffix);
            // The file does not exist in rollback mode.
            let _absent = std::fs::remove_file(path);
        }
        std::fs::rename(new, self.database()).unwrap();
    }
}

/// Returns a path whose hash part is derived from the number.
pub(crate) fn path(number: u32) -> StorePath {
    let mut bytes = [0x5a; 20];
    bytes[..4].copy_from_slice(&number.wrapping_mul(0x9e37_79b9).to_be_bytes());
    let hash_part = samovar_nix::HashPart::from_bytes(bytes);
    StorePath::from_base_name(&format!("{hash_part}-path-{number}")).unwrap()
}

pub(crate) fn hash(number: u32) -> String {
    format!("sha256:{number:064x}")
}

pub(crate) fn register(connection: &Connection, number: u32, content: u32) {
    connection
        .prepare_cached(
            "insert into ValidPaths (path, hash, registrationTime, deriver, narSize, ultimate, \
             sigs, ca) values (?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .unwrap()
        .execute(params![
            full(number),
            hash(content),
            1_700_000_000,
            None::<String>,
            112 + i64::from(content) * 8,
            None::<i64>,
            None::<String>,
            None::<String>,
        ])
        .unwrap();
}

pub(crate) fn delete(connection: &Connection, number: u32) {
    connection
        .execute("delete from ValidPaths where path = ?", [full(number)])
        .unwrap();
}

pub(crate) fn sign(connection: &Connection, number: u32, signatures: &str) {
    connection
        .execute(
            "update ValidPaths set sigs = ? where path = ?",
            [signatures, &full(number)],
        )
        .unwrap();
}

pub(crate) fn full(number: u32) -> String {
    path(number).full(&samovar_nix::StoreDir::default())
}

/// Returns a well-formed signature.
pub(crate) fn signature(number: u8) -> String {
    samovar_nix::Signature::new("test-1", [number; 64])
        .unwrap()
        .to_string()
}
