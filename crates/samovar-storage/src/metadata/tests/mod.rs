//! Each function, with each engine.
//!
//! SQLite always; PostgreSQL if its programs are installed.

mod exchanging;
mod keeping;
mod listing;
mod publishing;
mod removing;

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use samovar_nix::narinfo::Compression;
use samovar_nix::{Glob, HashPart, NarHash, Signature, StorePath};
use samovar_protocol::pins::Condition;
use samovar_protocol::push::OpenLine;
use tempfile::TempDir;
use testkit::postgres::Postgres as Server;

use super::*;
use crate::error::StorageError;
use crate::postgres::PostgresSettings;
use crate::token::TokenHash;

const START: i64 = 1_000_000_000;

static CLOCK: AtomicI64 = AtomicI64::new(START);

const NO_LIMIT: SizeLimit = SizeLimit {
    quota: None,
    extra_max: 1 << 40,
};

const PATIENCE: Duration = Duration::from_secs(10);

fn clock() -> i64 {
    CLOCK.load(Ordering::Relaxed)
}

/// Calls a function with an empty database of each engine.
fn with_each(check: impl Fn(&Database)) {
    // The clock belongs to one test at a time.
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = TURN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = TempDir::new().unwrap();
    CLOCK.store(START, Ordering::Relaxed);
    check(&Database::with_clock(&dir.path().join("db.sqlite"), clock).unwrap());
    if Server::is_installed() {
        let settings = PostgresSettings::parse(&Server::shared().new_database()).unwrap();
        CLOCK.store(START, Ordering::Relaxed);
        check(&Database::open_postgres(&settings, Some(clock)).unwrap());
    }
}

/// A database with a cache and a token.
struct World<'d> {
    database: &'d Database,
    cache: CacheId,
    token: i64,
}

fn world(database: &Database) -> World<'_> {
    let cache = caches::add(database, "main", "/nix/store").unwrap();
    caches::set_mirrored(database, cache).unwrap();
    let token = tokens::add(database, &TokenHash([1; 32]), &new_token("ci", None)).unwrap();
    World {
        database,
        cache,
        token,
    }
}

fn new_token(name: &str, names: Option<&str>) -> NewToken {
    NewToken {
        name: name.to_owned(),
        cache: None,
        names: names.map(Glob::new),
        rights: "read,push,pin".parse().unwrap(),
        expires_at: None,
    }
}

fn store_path(number: u8) -> StorePath {
    let hash_part = HashPart::from_bytes([number; 20]);
    StorePath::from_base_name(&format!("{hash_part}-p{number}")).unwrap()
}

fn new_nar(number: u8) -> NewNar {
    NewNar {
        nar: StoredNar {
            id: 0,
            nar_hash: NarHash::from_bytes([number; 32]),
            nar_size: 10 * u64::from(number),
            file_hash: [number; 32],
            file_size: u64::from(number),
            compression: Compression::Zstd,
            object_key: format!("nar/{number}.nar.zst"),
        },
        listing: Some(vec![number]),
        frames: None,
        is_stored: false,
        pack: None,
    }
}

impl World<'_> {
    /// Records the NAR with this number. Returns its row number.
    fn nar(&self, number: u8) -> i64 {
        nars::add(self.database, self.token, &[new_nar(number)]).unwrap();
        nars::row(self.database, &[number; 32]).unwrap().unwrap()
    }

    fn path(&self, number: u8, references: &[u8]) -> NewPath {
        let reference = |number: &u8| NewReference {
            path: store_path(*number),
            is_elsewhere: *number >= 200,
        };
        NewPath {
            cache: self.cache,
            token: Some(self.token),
            path: store_path(number),
            nar_id: self.nar(number),
            references: references.iter().map(reference).collect(),
            has_self_reference: number.is_multiple_of(2),
            deriver: Some(
                StorePath::from_base_name(&format!("{}-d.drv", store_path(9).hash_part())).unwrap(),
            ),
            signatures: vec![signature(number)],
            content_address: None,
            limit: NO_LIMIT,
        }
    }

    fn publish(&self, groups: &[&[NewPath]]) -> Vec<Vec<Published>> {
        publish::publish(self.database, groups, PATIENCE).unwrap()
    }

    fn find(&self, number: u8) -> Option<StoredPath> {
        paths::find(self.database, self.cache, store_path(number).hash_part()).unwrap()
    }

    fn client(&self) -> Client {
        Client {
            token: Some(self.token),
            is_reader: true,
        }
    }

    /// Checks what the triggers have computed, and the structure.
    #[track_caller]
    fn check_totals(&self) {
        assert_eq!(check::wrong_totals(self.database, false).unwrap(), [""; 0]);
        assert_eq!(check::faults(self.database, true, 10).unwrap(), [""; 0]);
    }
}

fn signature(number: u8) -> Signature {
    Signature::new("key", [number; 64]).unwrap()
}
