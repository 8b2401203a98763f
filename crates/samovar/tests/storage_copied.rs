//! `samovar storage copy` copies everything in a storage while its server runs, and a repetition
//! copies what is new.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use support::samovar;
use support_uploads::{MadePath, Site};
use testkit::eventually;
use testkit::postgres::Postgres;
use testkit::process::{fails, finish, output};
use testkit::s3::S3Engine;

/// Returns the command that copies a storage to another one.
fn copy(from: &Path, to: &Path) -> Command {
    let mut command = samovar();
    command.args(["storage", "copy"]).arg(from).arg(to);
    command
}

#[track_caller]
fn copied(from: &Path, to: &Path) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = finish(&mut copy(from, to));
    let (stdout, stderr) = (
        String::from_utf8(stdout).unwrap(),
        String::from_utf8(stderr).unwrap(),
    );
    assert!(status.success(), "{stdout}{stderr}");
    stdout
}

fn pin(site: &Site, path: &MadePath) {
    let mut command = samovar();
    command
        .args(["pin", "add", "--storage"])
        .arg(site.storage());
    output(command.args(["default/main", &path.store_path]));
}

/// What both storages have, as the database lists it.
const ROWS: &str = "select hash_part, path.name, sigs, deriver, used_at, registered_at, nar_size, \
     file_size, file_hash, compression, \
     (select token.name from token where token.id = token_id) \
     from path join nar on nar.id = nar_id order by hash_part; \
     select name, hex(hash), rights, created_at, expires_at, revoked_at from token \
     where name <> 'samovar import' order by name; \
     select pin.name, generation, hash_part, pin.created_at, hex(lineage) from pin \
     join path on path.id = path_id order by generation; \
     select name, generation from removed_pin order by name; \
     select name, size, uploaded_at, is_left from log order by name; \
     select key, body, sigs, recorded_at from extra order by key; \
     select a.name, b.name from reference join path as a on a.id = referrer \
     join path as b on b.id = reference order by 1, 2;";

#[test]
fn everything_is_copied_while_the_server_runs() {
    let (from, to) = (Site::new(), Site::new());
    let server = from.start();
    let token = from.token(&["--name", "ci", "--rights", "read,push,pin"]);
    let library = MadePath::new("library");
    let program = MadePath::new("program").referring_to(&library.store_path);
    server.publish(&token, &library);
    server.publish(&token, &program);
    pin(&from, &library);
    pin(&from, &program);
    let log = format!("/log/{}-program.drv", "0".repeat(32));
    assert_eq!(server.put(&token, &log, "a log").status, 200);
    from.sql(
        "update path set used_at = used_at - 1000000, registered_at = registered_at - 2000000",
    );

    let first = copied(&from.config(), &to.config());
    assert!(first.contains("2 paths: 2 copied with "), "{first}");
    assert!(first.contains("2 NARs and 1 build log sent"), "{first}");
    assert_eq!(to.sql(ROWS), from.sql(ROWS));

    // What is new, or revoked, is copied by the next run; and nothing again.
    let later = MadePath::new("later").referring_to(&program.store_path);
    server.publish(&token, &later);
    from.token(&["--name", "old"]);
    from.revoke("old");
    let mut remove = samovar();
    remove
        .args(["pin", "remove", "--storage"])
        .arg(from.storage());
    output(remove.args(["default/main"]));
    server.process.terminate();
    let second = copied(&from.config(), &to.storage());
    assert!(second.contains("3 paths: 1 copied with "), "{second}");
    assert!(
        second.contains("2 known, 0 not copied\n1 NAR and 0 build logs sent"),
        "{second}"
    );
    let third = copied(&from.storage(), &to.storage());
    assert!(
        third.contains("3 paths: 0 copied with 0 B, 3 known"),
        "{third}"
    );
    let rows = "select used_at from path where name = 'library'";
    assert_eq!(to.sql(rows), from.sql(rows));
    assert_eq!(to.sql("select count(*) from pin").trim(), "0");
    assert_eq!(to.sql(ROWS), from.sql(ROWS));

    // Clients find everything at the new place, with the same token.
    let server = to.start();
    for path in [&library, &program, &later] {
        server.assert_serves(path);
    }
    assert_eq!(server.get(&log).text(), "a log");
    server.publish(&token, &MadePath::new("new"));
    let mut fsck = samovar();
    output(fsck.args(["fsck", "--deep", "--config"]).arg(to.config()));
}

#[test]
fn a_damaged_path_is_named_and_the_others_are_copied() {
    let (from, to) = (Site::new(), Site::new());
    let server = from.start();
    let token = from.token(&[]);
    let (bad, good) = (MadePath::new("bad"), MadePath::new("good"));
    let above = MadePath::new("above").referring_to(&bad.store_path);
    for path in [&bad, &good, &above] {
        server.publish(&token, path);
    }
    server.process.terminate();
    let file = from.storage().join(bad.url());
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let done = finish(&mut copy(&from.config(), &to.config()));
    assert_eq!(done.status.code(), Some(1));
    let text = String::from_utf8(done.stdout).unwrap();
    for part in [
        format!("not copied {} of the cache default: ", bad.store_path),
        format!(
            "not copied {} of the cache default: its reference ",
            above.store_path
        ),
        "3 paths: 1 copied with ".to_owned(),
    ] {
        assert!(text.contains(&part), "{part}: {text}");
    }
    to.start().assert_serves(&good);
}

/// Makes the configuration of a site one of a storage in a bucket. `more`: more options.
fn put_into_bucket(site: &Site, engine: &S3Engine, more: &str) {
    let key = site.dir().join("key");
    S3Engine::write_credentials(&key);
    let bucket = format!(
        "bucket.url = {:?}\nbucket.credentials-file = {key:?}\n",
        engine.url()
    );
    site.configure_empty(&format!("{bucket}{more}"));
}

#[test]
fn a_storage_moves_to_a_bucket_and_to_postgresql_and_back() {
    let Some(engine) = S3Engine::start() else {
        return;
    };
    let from = Site::new();
    let server = from.start();
    let token = from.token(&["--rights", "read,push,pin"]);
    let library = MadePath::new("library").compressed("zstd");
    let program = MadePath::new("program").referring_to(&library.store_path);
    let log = format!("/log/{}-program.drv", "0".repeat(32));
    for path in [&library, &program] {
        server.publish(&token, path);
    }
    assert_eq!(server.put(&token, &log, "a log").status, 200);
    pin(&from, &program);
    server.process.terminate();

    // The files go into a bucket, the database stays in a directory.
    let in_bucket = Site::new();
    put_into_bucket(&in_bucket, &engine, "");
    let done = copied(&from.config(), &in_bucket.config());
    assert!(done.contains("2 paths: 2 copied"), "{done}");
    let server = in_bucket.start();
    for path in [&library, &program] {
        server.assert_serves(path);
    }
    assert_eq!(server.get(&log).text(), "a log");
    let later = MadePath::new("later").referring_to(&program.store_path);
    server.publish(&token, &later);
    server.process.terminate();
    assert!(!in_bucket.storage().join("nar").exists());
    let mut last = in_bucket;

    // The files go into another bucket, and the database to PostgreSQL.
    let other = S3Engine::start().unwrap();
    if Postgres::is_installed() {
        let url = Postgres::shared().url();
        let far = Site::new();
        put_into_bucket(&far, &other, &format!("database.url = {url:?}\n"));
        let done = copied(&last.config(), &far.config());
        assert!(done.contains("3 paths: 3 copied"), "{done}");
        let again = copied(&last.config(), &far.config());
        assert!(
            again.contains("3 paths: 0 copied with 0 B, 3 known"),
            "{again}"
        );
        let server = far.start();
        for path in [&library, &program, &later] {
            server.assert_serves(path);
        }
        server.publish(&token, &MadePath::new("latest"));
        server.process.terminate();
        last = far;
    }

    // All returns to a directory.
    let back = Site::new();
    copied(&last.config(), &back.storage());
    let server = back.start();
    for path in [&library, &program, &later] {
        server.assert_serves(path);
    }
    assert_eq!(server.get(&log).text(), "a log");
    server.publish(&token, &MadePath::new("end"));
    let pins = "select name, generation from pin";
    assert_eq!(back.sql(pins), from.sql(pins));
}

#[test]
fn doctor_and_metrics_report_the_bucket_and_the_database() {
    let Some(mut engine) = S3Engine::start() else {
        return;
    };
    let site = Site::new();
    let mut postgres = Postgres::is_installed().then(|| Postgres::with_settings(&["fsync=off"]));
    let database = match &postgres {
        Some(postgres) => format!("database.url = {:?}\n", postgres.url()),
        None => String::new(),
    };
    put_into_bucket(
        &site,
        &engine,
        &format!("admin.on-cache = true\n{database}"),
    );
    let server = site.start();
    let mut token = samovar();
    token.args(["token", "create", "--name", "ci", "--config"]);
    let token = output(token.arg(site.config())).trim().to_owned();
    server.publish(&token, &MadePath::new("a"));
    let metrics = server.get("/metrics");
    let metrics = metrics.text();
    for line in [
        "samovar_bucket_up 1",
        "samovar_bucket_requests_total{kind=\"put\",result=\"failed\"} 0",
        "samovar_bucket_cache_files 1",
    ] {
        assert!(
            metrics.lines().any(|other| other == line),
            "{line}: {metrics}"
        );
    }
    if !database.is_empty() {
        check_database(&metrics);
    }
    let doctor = || {
        let mut command = samovar();
        let done = finish(command.args(["doctor", "--config"]).arg(site.config()));
        String::from_utf8(done.stdout).unwrap()
    };
    let text = doctor();
    assert!(
        text.contains("ok      bucket: s3://cache at http://127.0.0.1:"),
        "{text}"
    );
    assert!(text.contains(": tried writing, reading, "), "{text}");
    assert_eq!(
        text.contains("ok      database: PostgreSQL "),
        !database.is_empty(),
        "{text}"
    );
    engine.kill();
    let text = doctor();
    assert!(text.contains("error   bucket: "), "{text}");
    if let Some(postgres) = &mut postgres {
        let states = |line: &str| server.get("/metrics").text().lines().any(|it| it == line);
        postgres.kill();
        eventually("the database is down", || states("samovar_database_up 0"));
        postgres.resume();
        eventually("the database is up", || states("samovar_database_up 1"));
    }
}

/// Checks that the metrics of a server that was used have those of its database.
#[track_caller]
fn check_database(metrics: &str) {
    // The value of a metric that is missing is none, and fails the comparisons below.
    let value = |name: &str| -> Option<f64> {
        let mut lines = metrics.lines();
        let text = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        text?.parse().ok()
    };
    assert_eq!(value("samovar_database_up"), Some(1.0), "{metrics}");
    for name in [
        "samovar_database_transactions_total{kind=\"read\",result=\"committed\"}",
        "samovar_database_transactions_total{kind=\"write\",result=\"committed\"}",
        "samovar_database_transaction_seconds_sum{kind=\"read\"}",
        "samovar_database_transaction_seconds_sum{kind=\"write\"}",
        "samovar_database_wait_seconds_sum{kind=\"write\"}",
        "samovar_database_wait_seconds_count{kind=\"write\"}",
        "samovar_database_connections",
        "samovar_database_connects_total",
    ] {
        assert!(value(name) > Some(0.0), "{name}: {metrics}");
    }
}

/// A command that names the directory alone must not make an empty storage there.
#[test]
fn the_local_directory_of_a_storage_in_a_bucket_is_no_storage() {
    let Some(engine) = S3Engine::start() else {
        return;
    };
    let site = Site::new();
    put_into_bucket(&site, &engine, "");
    site.start().process.terminate();
    for words in [["token", "list"], ["pin", "list"]] {
        let mut command = samovar();
        let refused = fails(command.args(words).arg("--storage").arg(site.storage()));
        let expected = "belongs to a storage in s3://cache at http://127.0.0.1:";
        assert!(refused.contains(expected), "{words:?}: {refused}");
        let mut command = samovar();
        output(command.args(words).arg("--config").arg(site.config()));
    }
    let mut gc = samovar();
    gc.args(["gc", "--config"])
        .arg(site.config())
        .arg("--storage");
    let refused = fails(gc.arg(site.storage()));
    assert!(
        refused.contains("sets bucket.url: leave out --storage"),
        "{refused}"
    );
    // A storage in a directory needs a copy, not an option more.
    let own = Site::new();
    own.start().process.terminate();
    put_into_bucket(&own, &engine, "");
    let mut serve = samovar();
    let refused = fails(serve.args(own.arguments()));
    assert!(
        refused.contains("copy the storage with samovar storage copy"),
        "{refused}"
    );
}

/// Only a confirmation makes the server, the check and the copy accept that the bucket is empty.
#[test]
fn an_empty_bucket_is_refused_until_the_loss_is_confirmed() {
    let (Some(engine), Some(empty)) = (S3Engine::start(), S3Engine::start()) else {
        return;
    };
    let (site, path) = (Site::new(), MadePath::new("a"));
    put_into_bucket(&site, &engine, "");
    let server = site.start();
    let mut token = samovar();
    token.args(["token", "create", "--name", "ci", "--config"]);
    let token = output(token.arg(site.config())).trim().to_owned();
    server.publish(&token, &path);
    server.process.terminate();
    put_into_bucket(&site, &empty, "");
    let target = Site::new();
    let with_config = |words: &[&str]| {
        let mut command = samovar();
        command.args(words).arg("--config").arg(site.config());
        command
    };
    for mut command in [
        with_config(&["serve"]),
        with_config(&["fsck", "--repair", "--delete-orphans"]),
        with_config(&["gc"]),
        copy(&site.config(), &target.config()),
    ] {
        let refused = fails(&mut command);
        assert!(
            refused.contains("is empty (it has no .samovar/store-id)"),
            "{command:?}: {refused}"
        );
        assert!(refused.contains("nar/lost"), "{command:?}: {refused}");
    }
    let doctor = || {
        let done = finish(&mut with_config(&["doctor"]));
        String::from_utf8(done.stdout).unwrap()
    };
    let text = doctor();
    assert!(text.contains("error   bucket: the bucket s3://"), "{text}");
    // A bucket of another storage is refused, too, whatever it confirms.
    fs::create_dir_all(empty.bucket().join(".samovar")).unwrap();
    fs::create_dir_all(empty.bucket().join("nar")).unwrap();
    fs::write(empty.bucket().join(".samovar/store-id"), "other\n").unwrap();
    fs::write(empty.bucket().join("nar/lost"), "").unwrap();
    let refused = fails(&mut with_config(&["fsck", "--delete-orphans"]));
    assert!(refused.contains("that of another storage"), "{refused}");
    assert!(doctor().contains("error   bucket: the bucket is not that of the database"));
    fs::remove_file(empty.bucket().join(".samovar/store-id")).unwrap();

    let repaired = finish(&mut with_config(&["fsck", "--repair"]));
    assert_eq!(repaired.status.code(), Some(1));
    let server = site.start();
    assert!(!empty.bucket().join("nar/lost").exists());
    server.assert_lacks(&path);
    server.publish(&token, &path);
    server.assert_serves(&path);
    assert!(!doctor().contains("error   bucket"));
}

#[test]
fn what_is_no_storage_is_refused() {
    let (from, to) = (Site::new(), Site::new());
    let refused = fails(&mut copy(&from.storage(), &to.storage()));
    assert!(refused.contains("is no storage"), "{refused}");
    assert!(!from.storage().exists() && !to.storage().exists());
    from.token(&[]);
    let refused = fails(&mut copy(&from.config(), &from.storage()));
    assert!(refused.contains("both are the same storage"), "{refused}");
}
