//! A database that is made again has all that the bucket and its newest backup have, in a directory
//! and in PostgreSQL.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_push;
mod support_uploads;

use std::fs;
use std::process::Command;

use samovar_storage::DATABASE;
use support::samovar;
use support_push::{Pusher, assert_copies_back, noise, words};
use support_uploads::{MadePath, Running, Site};
use testkit::eventually;
use testkit::nix::{OwnStore, local};
use testkit::postgres::Postgres;
use testkit::process::{fails, finish, output};
use testkit::s3::S3Engine;

/// A site whose storage is in a bucket.
struct Fixture {
    site: Site,
    engine: S3Engine,
    postgres: Option<Postgres>,
}

impl Fixture {
    /// `None`: what the test needs is not installed.
    fn new(in_postgres: bool, packs: bool) -> Option<Self> {
        if in_postgres && !Postgres::is_installed() {
            return None;
        }
        let (engine, site) = (S3Engine::start()?, Site::new());
        let postgres = in_postgres.then(|| Postgres::with_settings(&["fsync=off"]));
        let key = site.dir().join("key");
        S3Engine::write_credentials(&key);
        let mut options = format!(
            "bucket.url = {:?}\nbucket.credentials-file = {key:?}\nbucket.pack = {packs}\n",
            engine.url()
        );
        if let Some(postgres) = &postgres {
            options += &format!("database.url = {:?}\n", postgres.url());
        }
        site.configure_empty(&options);
        Some(Self {
            site,
            engine,
            postgres,
        })
    }

    fn command(&self, line: &str) -> Command {
        let mut command = samovar();
        command.args(line.split(' '));
        command.arg("--config").arg(self.site.config());
        command
    }

    /// Starts the server, and waits until it has written a backup.
    fn start_and_back_up(&self) -> Running {
        let backups = self.engine.bucket().join(".samovar/backup");
        fs::remove_dir_all(&backups).ok();
        let server = self.site.start();
        eventually("a backup is written", || {
            fs::read_dir(&backups).is_ok_and(|mut entries| entries.next().is_some())
        });
        server
    }

    fn lose_database(&self) {
        match &self.postgres {
            Some(postgres) => {
                let mut client = postgres.client();
                client.batch_execute("drop schema samovar cascade").unwrap();
            }
            None => {
                for suffix in ["", "-wal", "-shm"] {
                    let file = format!("{DATABASE}{suffix}");
                    fs::remove_file(self.site.storage().join(file)).ok();
                }
            }
        }
        fs::remove_dir_all(self.site.storage().join("cache")).unwrap();
    }
}

/// Adds small files, and a large one, to a store. Returns their paths.
fn add_files(store: &OwnStore) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let mut add = store.command("nix-store");
    add.arg("--add");
    for number in 0..20_u32 {
        let len = if number == 0 { 1 << 20 } else { 2_000 };
        let file = dir.path().join(format!("file-{number}"));
        fs::write(&file, noise(u64::from(number), len)).unwrap();
        add.arg(file);
    }
    output(&mut add).lines().map(str::to_owned).collect()
}

fn check(in_postgres: bool, packs: bool) {
    let Some(fixture) = Fixture::new(in_postgres, packs) else {
        return;
    };
    let site = &fixture.site;
    let store = OwnStore::new();
    let server = site.start();
    let mut token = fixture.command("token create --name ci --rights read,push,pin");
    let token = output(&mut token).trim().to_owned();
    let paths = add_files(&store);
    let pusher = Pusher::new(&local(store.root()), &token);
    output(&mut pusher.push(&server.url(), &words(&paths)));
    let (copied, later) = (MadePath::new("copied"), MadePath::new("later"));
    let above = MadePath::new("above").referring_to(&copied.store_path);
    server.publish(&token, &copied);
    server.publish(&token, &above);
    server.process.terminate();
    output(&mut fixture.command(&format!("pin add default/main {}", above.store_path)));
    let server = fixture.start_and_back_up();
    // With packs, no narinfo of this path is in the bucket or in the backup.
    server.publish(&token, &later);
    server.process.terminate();
    let nars = fixture.engine.bucket().join("nar");
    let is_pack = |name: &std::ffi::OsStr| name.to_str().unwrap().starts_with("pack-");
    let names = || -> Vec<_> {
        let entries = fs::read_dir(&nars).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    assert_eq!(before.iter().any(|name| is_pack(name)), packs);

    fixture.lose_database();
    let refused = fails(&mut fixture.command("serve"));
    assert!(refused.contains("samovar import --rebuild"), "{refused}");
    let refused = fails(&mut fixture.command("import"));
    assert!(refused.contains("--rebuild"), "{refused}");
    let done = finish(&mut fixture.command("import --rebuild"));
    let (text, advice) = (
        String::from_utf8(done.stdout).unwrap(),
        String::from_utf8(done.stderr).unwrap(),
    );
    assert!(done.status.success(), "{text}{advice}");
    let count = if packs { 22 } else { 23 };
    let expected = format!("{count} paths imported, 0 known, 0 not imported");
    assert!(text.contains(&expected), "{text}{advice}");
    let unnamed = "1 NAR file in the bucket: no narinfo";
    assert_eq!(advice.contains(unnamed), packs, "{advice}");
    assert!(advice.contains("were restored from the backup"), "{advice}");
    assert_eq!(names(), before);

    let server = site.start();
    for path in [&copied, &above] {
        server.assert_serves(path);
    }
    match packs {
        true => server.publish(&token, &later),
        false => server.assert_serves(&later),
    }
    assert_copies_back(&server.url(), &site.public_key, store.root(), &paths);
    server.publish(&token, &MadePath::new("new"));
    server.process.terminate();
    let pins = output(&mut fixture.command("pin list"));
    assert!(pins.contains(&above.store_path), "{pins}");
    output(&mut fixture.command("fsck --deep"));
    let refused = fails(&mut fixture.command("import --rebuild"));
    assert!(refused.contains("the database has paths"), "{refused}");
}

#[test]
fn a_database_in_a_directory_is_made_again_from_packs() {
    check(false, true);
}

#[test]
fn a_database_in_a_directory_is_made_again_from_a_plain_binary_cache() {
    check(false, false);
}

#[test]
fn a_database_in_postgresql_is_made_again_from_packs() {
    check(true, true);
}

/// Until the rebuild has ended, no node may use the database.
#[test]
fn an_interrupted_rebuild_in_postgresql_is_refused_and_continues() {
    let Some(fixture) = Fixture::new(true, false) else {
        return;
    };
    let path = MadePath::new("a");
    let server = fixture.start_and_back_up();
    let mut token = fixture.command("token create --name ci");
    let token = output(&mut token).trim().to_owned();
    server.publish(&token, &path);
    server.process.terminate();
    fixture.lose_database();
    // The command ends at the backup, which it cannot read.
    let backup = fixture.engine.bucket().join(".samovar/backup");
    for entry in fs::read_dir(&backup).unwrap() {
        fs::write(entry.unwrap().path(), "bad").unwrap();
    }
    let stopped = fails(&mut fixture.command("import --rebuild"));
    assert!(stopped.contains("no daily backup can be read"), "{stopped}");
    for line in ["serve", "token list", "fsck", "gc", "pin list"] {
        let refused = fails(&mut fixture.command(line));
        let expected = "repeat samovar import --rebuild";
        assert!(refused.contains(expected), "{line}: {refused}");
    }
    fs::remove_dir_all(&backup).unwrap();
    output(&mut fixture.command("import --rebuild"));
    fixture.site.start().assert_serves(&path);
}
