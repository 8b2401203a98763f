//! A storage whose objects are in a bucket keeps the promises of one whose objects are in a
//! directory: tests with a real S3 engine, whose objects are files.

mod support_bucket;
mod support_tokens;

use std::fs;
use std::io::{Read as _, Write as _};
use std::time::Duration;

use samovar_bucket::Settings;
use samovar_nix::narinfo::Compression;
use samovar_nix::{NarHash, StoreDir, StorePath};
use samovar_protocol::push::OpenLine;
use samovar_storage::check::fsck::Options;
use samovar_storage::gc::Rules;
use samovar_storage::verify::Unlimited;
use samovar_storage::{Location, PutError, Storage, StorageError};
use samovar_storage::{backup, logs, nar, push};
use sha2::{Digest as _, Sha256};
use testkit::s3::S3Engine;

use support_bucket::{EVERYBODY, Fixture, Upload, path, read, upload};

#[test]
fn an_upload_is_an_object_of_the_bucket_and_is_read_from_there() {
    let Some(mut fixture) = Fixture::new(false) else {
        return;
    };
    let uploads = [upload(1, 100), upload(2, 300 << 10), upload(3, 40 << 20)];
    for (number, upload) in (1..).zip(&uploads) {
        fixture.put(number, upload);
        assert_eq!(fs::read(fixture.object(upload)).unwrap(), upload.nar);
        let narinfo = format!("{}.narinfo", path(number).hash_part());
        assert!(fixture.engine.bucket().join(narinfo).exists());
    }
    assert!(fixture.engine.bucket().join("nix-cache-info").exists());
    // The uploads are the copies.
    let copy = |upload: &Upload, dir: &tempfile::TempDir| {
        fs::read(dir.path().join(format!("cache/nar/{}", upload.name))).ok()
    };
    for upload in &uploads {
        assert_eq!(copy(upload, &fixture.dir), Some(upload.nar.clone()));
    }
    fixture.forget_copies();
    for upload in &uploads {
        let file = fixture.open_file(upload).unwrap().unwrap();
        std::thread::scope(|scope| {
            for offset in [0, upload.nar.len() as u64 / 2, upload.nar.len() as u64 - 1] {
                let file = file.clone();
                scope.spawn(move || {
                    let from = usize::try_from(offset).unwrap();
                    assert!(read(file, offset).unwrap() == upload.nar[from..]);
                });
            }
        });
        testkit::eventually("the file is copied", || {
            copy(upload, &fixture.dir).as_ref() == Some(&upload.nar)
        });
        let whole = fixture.open_file(upload).unwrap().unwrap();
        assert!(whole.whole(0..1).is_some());
    }
}

#[test]
fn a_missing_object_is_lost_and_the_next_upload_mends_it() {
    let Some(mut fixture) = Fixture::new(false) else {
        return;
    };
    let (short, long) = (upload(1, 100), upload(2, 20 << 20));
    for (number, upload) in [(1, &short), (2, &long)] {
        fixture.put(number, upload);
        fixture.forget_copies();
        let whole = fs::read(fixture.object(upload)).unwrap();
        for damage in ["missing", "short"] {
            match damage {
                "missing" => fs::remove_file(fixture.object(upload)).unwrap(),
                _ => fs::write(fixture.object(upload), &whole[..50]).unwrap(),
            }
            let lost_count = fixture.lost_count();
            assert!(fixture.open_file(upload).unwrap().is_none(), "{damage}");
            assert_eq!(fixture.lost_count(), lost_count + 1);
            let path = path(number);
            assert_eq!(fixture.cache.lookup(path.hash_part()).unwrap(), None);
            fixture.send(upload).unwrap();
            assert!(fixture.cache.lookup(path.hash_part()).unwrap().is_some());
            assert_eq!(fs::read(fixture.object(upload)).unwrap(), whole);
            fixture.forget_copies();
        }
    }
}

#[test]
fn wrong_bytes_never_end_cleanly() {
    let Some(mut fixture) = Fixture::new(false) else {
        return;
    };
    let (short, long) = (upload(1, 100), upload(2, 20 << 20));
    for (number, upload) in [(1, &short), (2, &long)] {
        fixture.put(number, upload);
        fixture.forget_copies();
        let mut file = fs::OpenOptions::new()
            .write(true)
            .open(fixture.object(upload))
            .unwrap();
        file.write_all(b"wrong").unwrap();
        let lost_count = fixture.lost_count();
        // Once may be chance.
        let mut attempt_count = 0;
        while let Some(file) = fixture.open_file(upload).unwrap() {
            read(file, 0).unwrap_err();
            attempt_count += 1;
            assert!(attempt_count < 5);
        }
        assert_eq!(fixture.lost_count(), lost_count + 1);
        fixture.send(upload).unwrap();
        let file = fixture.open_file(upload).unwrap().unwrap();
        assert!(read(file, 0).unwrap() == upload.nar);
    }
}

#[test]
fn uploads_wait_for_a_bucket_that_is_away() {
    let Some(mut fixture) = Fixture::new(false) else {
        return;
    };
    let (before, during) = (upload(1, 1000), upload(2, 1 << 20));
    let path = fixture.put(1, &before);
    fixture.engine.kill();
    // What has a copy is served.
    assert!(fixture.cache.lookup(path.hash_part()).unwrap().is_some());
    let file = fixture.open_file(&before).unwrap().unwrap();
    assert_eq!(read(file, 0).unwrap(), before.nar);
    std::thread::scope(|scope| {
        let sent = {
            let (cache, token) = (fixture.cache.clone(), fixture.token.clone());
            let upload = during.clone();
            scope.spawn(move || {
                let mut body = upload.nar.as_slice();
                nar::put(&cache, &token, &upload.name, &mut body, &mut Unlimited)
            })
        };
        // Longer than the client of the bucket repeats a request.
        let is_finished = testkit::holds_within(Duration::from_secs(12), || sent.is_finished());
        assert!(!is_finished);
        fixture.engine.resume();
        sent.join().unwrap().unwrap();
    });
    assert_eq!(fs::read(fixture.object(&during)).unwrap(), during.nar);
}

#[test]
fn an_upload_fails_when_its_patience_ends() {
    let Some(mut fixture) = Fixture::new(false) else {
        return;
    };
    let upload = upload(1, 1000);
    let uncached = {
        let uncached = self::upload(2, 1000);
        fixture.put(2, &uncached);
        fixture.forget_copies();
        uncached
    };
    fixture.engine.kill();
    fixture.storage.set_patience(Duration::from_secs(1));
    let patience = fixture.cache.start_patience();
    let failed = fixture.send(&upload).unwrap_err();
    drop(patience);
    let text = failed.to_string();
    assert!(matches!(failed, PutError::Storage(StorageError::Bucket(_))));
    assert!(
        text.contains("PUT nar/") && text.contains("cannot be reached"),
        "{text}"
    );
    let failed = fixture.open_file(&uncached).unwrap_err();
    assert!(matches!(failed, StorageError::Bucket(_)), "{failed}");
    fixture.engine.resume();
    assert!(fixture.open_file(&uncached).unwrap().is_some());
    fixture.send(&upload).unwrap();
}

#[test]
fn a_bucket_belongs_to_one_database() {
    let Some(fixture) = Fixture::new(false) else {
        return;
    };
    let other = tempfile::tempdir().unwrap();
    let bucket = fixture.location.bucket().cloned();
    let location = Location::new(other.path()).with_bucket(bucket);
    let opened = Storage::open(&location, &StoreDir::default());
    assert!(
        matches!(opened, Err(StorageError::OtherBucket)),
        "{opened:?}"
    );
}

#[test]
fn an_empty_bucket_is_not_that_of_a_database_with_files() {
    let Some(mut fixture) = Fixture::new(false) else {
        return;
    };
    let (path, empty) = (fixture.put(1, &upload(1, 100)), S3Engine::start().unwrap());
    let mut bucket = fixture.location.bucket().cloned().unwrap();
    bucket.settings.endpoint = Settings::parse(&empty.url()).unwrap().endpoint;
    let shown = bucket.to_string();
    let location = fixture.location.clone().with_bucket(Some(bucket));
    let error = Storage::open(&location, &StoreDir::default()).unwrap_err();
    assert!(matches!(error, StorageError::EmptyBucket(_)), "{error:?}");
    let text = error.to_string();
    for part in [
        shown.as_str(),
        "is empty",
        "correct bucket.url",
        "samovar storage copy",
    ] {
        assert!(text.contains(part), "{text}");
    }
    // Nothing was written there.
    assert_eq!(fs::read_dir(empty.bucket()).unwrap().count(), 0);
    assert!(text.contains("nar/lost"), "{text}");
    fixture.forget_copies();
    assert!(fixture.cache.lookup(path.hash_part()).unwrap().is_some());
}

#[test]
fn the_collector_and_the_check_work_on_objects() {
    let Some(engine) = S3Engine::start() else {
        return;
    };
    let url = engine.url();
    let fixture = Fixture::at(engine, &url, false, Rules::default());
    let uploads = [upload(1, 100), upload(2, 1 << 20)];
    for (number, upload) in (1..).zip(&uploads) {
        fixture.put(number, upload);
    }
    let log = StorePath::from_base_name(&format!("{}.drv", path(9).base_name())).unwrap();
    let mut text = &b"a log"[..];
    logs::put(&fixture.cache, &fixture.token, &log, &mut text, 100).unwrap();
    let mut found = String::new();
    let mut opened = logs::open(&fixture.cache, &log).unwrap().unwrap();
    opened.read_to_string(&mut found).unwrap();
    assert_eq!(found, "a log");
    let deep = Options {
        deep: true,
        repair: true,
        ..Options::default()
    };
    let (summary, findings) = fixture.check(deep);
    assert_eq!((summary.objects, findings.len()), (2, 0), "{findings:?}");
    fs::write(fixture.object(&uploads[1]), "short").unwrap();
    let (_, findings) = fixture.check(deep);
    assert_eq!(findings.len(), 1, "{findings:?}");
    fixture.send(&uploads[1]).unwrap();
    let (_, findings) = fixture.check(Options::default());
    assert!(findings.len() <= 1, "{findings:?}");
    fixture.collect_all();
    let left = fs::read_dir(fixture.engine.bucket().join("nar")).unwrap();
    assert_eq!(left.count(), 0);
    let narinfo = format!("{}.narinfo", path(1).hash_part());
    assert!(!fixture.engine.bucket().join(narinfo).exists());
}

#[test]
fn parts_that_reach_different_nodes_are_joined() {
    let Some(fixture) = Fixture::new(true) else {
        return;
    };
    let upload = upload(1, 20 << 20);
    let nar_hash = NarHash::from_bytes(Sha256::digest(&upload.nar).into());
    let line = OpenLine {
        hash_part: path(1).hash_part(),
        nar_hash,
        nar_size: upload.nar.len() as u64,
        path: None,
    };
    let (id, _) = push::open(&fixture.cache, &fixture.token, &[line]).unwrap();
    let push = push::find(&fixture.cache, &fixture.token, id).unwrap();
    let parts: Vec<&[u8]> = upload.nar.chunks(8 << 20).collect();
    for (number, part) in (1..).zip(&parts) {
        let sha256 = Sha256::digest(part).into();
        let len = part.len() as u64;
        push::put_part(&push, nar_hash, number, len, sha256, &mut &part[..]).unwrap();
    }
    assert_eq!(push::parts(&push, &nar_hash).unwrap().len(), parts.len());
    let count = u32::try_from(parts.len()).unwrap();
    push::join(&push, nar_hash, count, Compression::None, &mut Unlimited).unwrap();
    assert_eq!(fs::read(fixture.object(&upload)).unwrap(), upload.nar);
    assert!(push::parts(&push, &nar_hash).unwrap().is_empty());
    push::close(&fixture.cache, &fixture.token, id).unwrap();
}

#[test]
fn the_backup_and_direct_urls_are_of_the_bucket() {
    let Some(engine) = S3Engine::start() else {
        return;
    };
    let url = engine.url();
    let mut fixture = Fixture::at(engine, &url, true, Rules::default());
    let (small, large) = (upload(1, 1000), upload(2, 1 << 20));
    for (number, upload) in [(1, &small), (2, &large)] {
        fixture.put(number, upload);
    }
    backup::write(&fixture.storage).unwrap();
    let backups = fs::read_dir(fixture.engine.bucket().join(".samovar/backup")).unwrap();
    assert_eq!(backups.count(), 1);
    let direct = |fixture: &Fixture, upload: &Upload| {
        fixture.cache.direct_url(EVERYBODY, &upload.name).unwrap()
    };
    assert_eq!(direct(&fixture, &large), None);
    let mut bucket = fixture.location.bucket().unwrap().clone();
    bucket.redirect_over = Some(64 << 10);
    fixture.location = Location::new(fixture.dir.path()).with_bucket(Some(bucket));
    fixture.forget_copies();
    assert_eq!(direct(&fixture, &small), None);
    let url = direct(&fixture, &large).unwrap();
    assert!(
        url.contains("X-Amz-Expires=3600") && !url.contains("testtest"),
        "{url}"
    );
}
