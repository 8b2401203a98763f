//! Objects that a transaction removes from a bucket: those of its last attempt, and none that an
//! upload has written again meanwhile.

use samovar_bucket::{CredentialSource, FixedCredentials, Settings};
use testkit::s3::{ACCESS_KEY, S3Engine, SECRET_KEY};

use super::*;
use crate::layout::{TMP, log_prefix, narinfo_key};
use crate::location::{BucketLocation, Location};
use crate::objects::{Objects, Removal};
use crate::sql::{Transaction, params};

fn objects(engine: &S3Engine, dir: &TempDir) -> Objects {
    let mut settings = Settings::parse(&engine.url()).unwrap();
    settings.credentials = CredentialSource::Fixed(FixedCredentials {
        key_id: ACCESS_KEY.to_owned(),
        secret: SECRET_KEY.to_owned(),
        token: None,
    });
    let location = Location::new(dir.path()).with_bucket(Some(BucketLocation {
        settings,
        cache_len_max: 0,
        redirect_over: None,
        packs: false,
    }));
    std::fs::create_dir_all(dir.path().join(TMP)).unwrap();
    Objects::open(&location).unwrap()
}

fn add_cache(transaction: &Transaction<'_>) -> Result<CacheId, StorageError> {
    transaction.row(
        "insert into cache (name, store_dir, created_at) values ('a', '/s', 0) returning id",
        &[],
        |row| row.get(0),
    )
}

/// Calls a function after the first key.
struct Interrupted<'r, F> {
    removal: &'r mut dyn Removal,
    interrupt: Option<F>,
}

impl<F: FnOnce()> Removal for Interrupted<'_, F> {
    fn begin(&mut self) {
        self.removal.begin();
    }

    fn remove(&mut self, key: &str) -> Result<(), StorageError> {
        self.removal.remove(key)?;
        if let Some(interrupt) = self.interrupt.take() {
            interrupt();
        }
        Ok(())
    }
}

#[test]
fn a_transaction_that_is_run_again_removes_what_its_last_attempt_names() {
    let Some(engine) = S3Engine::start().filter(|_| Server::is_installed()) else {
        return;
    };
    let dir = TempDir::new().unwrap();
    let objects = objects(&engine, &dir);
    let mut server = Server::with_settings(&["fsync=off"]);
    let settings = PostgresSettings::parse(&server.url()).unwrap();
    let database = Database::open_postgres(&settings, None).unwrap();
    let cache = database.write(|transaction| {
        transaction.execute(
            "insert into nar (id, nar_hash, nar_size, file_hash, file_size, compression, \
             object_key, created_at) values (1, '\\x01', 1, '\\x01', 1, 'none', 'nar/1', 0)",
            &[],
        )?;
        let cache = add_cache(transaction)?;
        transaction.execute(
            "insert into path (id, cache_id, hash_part, name, nar_id, self_reference, sigs, \
             registered_at, condemned_at) values (?1, ?2, ?3, 'app', 1, 0, '', 0, 1)",
            params![1i64, cache, &[7u8; 20]],
        )?;
        Ok(cache)
    });
    caches::set_mirrored(&database, cache.unwrap()).unwrap();
    let narinfo = narinfo_key(HashPart::from_bytes([7; 20]));
    objects.write_mirror(&narinfo, b"a narinfo").unwrap();
    let deleted = objects.removing(|removal| {
        let mut interrupted = Interrupted {
            removal,
            interrupt: Some(|| {
                server.kill();
                server.resume();
                let revive = "update samovar.path set condemned_at = null";
                server.client().batch_execute(revive).unwrap();
            }),
        };
        collect::delete_paths(&database, &[1], 5, &mut interrupted)
    });
    assert_eq!(deleted.unwrap(), []);
    assert!(objects.read(&narinfo).unwrap().is_some());
}

#[test]
fn a_build_log_that_is_uploaded_again_after_its_deletion_stays() {
    let Some(engine) = S3Engine::start() else {
        return;
    };
    let dir = TempDir::new().unwrap();
    let objects = objects(&engine, &dir);
    let database = Database::with_clock(&dir.path().join("db.sqlite"), clock).unwrap();
    let cache = database.write(|transaction| {
        let cache = add_cache(transaction)?;
        let insert = "insert into log (cache_id, name, size, uploaded_at) values (?1, 'x', 5, 0)";
        transaction.execute(insert, params![cache])?;
        Ok(cache)
    });
    let key = format!("{}x", log_prefix(cache.unwrap().0));
    objects.write_mirror(&key, b"first").unwrap();
    let unused = extras::without_path(&database, 5).unwrap();
    let deleted = objects.removing(|files| {
        let deleted = extras::delete(&database, &unused, 5, files)?;
        // The row was deleted, so an upload records and writes the log anew.
        objects.write_mirror(&key, b"second")?;
        Ok(deleted.len())
    });
    assert_eq!(deleted.unwrap(), 1);
    assert!(objects.read(&key).unwrap().is_some());
}
