//! A storage whose objects are in a bucket keeps the promises of one whose objects are in a
//! directory: tests with a real S3 engine, whose objects are files.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::Cell;
use std::fs;
use std::io::{Read, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use samovar_bucket::{CredentialSource, FixedCredentials, Settings};
use samovar_nix::nar::Encoder;
use samovar_nix::{HashPart, NarHash, StoreDir, StorePath};
use samovar_protocol::names::FileName;
use samovar_storage::check::fsck::{Fsck, Options, Summary};
use samovar_storage::gc::{Retention, Rules};
use samovar_storage::metadata::{Client, NewToken, Published, StoredPath, tokens};
use samovar_storage::objects::{NarFile, Objects};
use samovar_storage::token::{Rights, Token, TokenHash};
use samovar_storage::verify::Unlimited;
use samovar_storage::{
    BucketLocation, Location, PutError, Storage, StorageError, StoredCache, open_database,
};
use samovar_storage::{logs, nar, narinfo, upkeep};
use sha2::{Digest, Sha256};
use testkit::s3::S3Engine;

/// A client without a token, of a public cache.
const EVERYBODY: Client = Client {
    token: None,
    is_reader: true,
};

/// Length of a day, in seconds.
const DAY: i64 = 86_400;

thread_local! {
    /// Number of seconds by which the clock of a test is ahead. Each test runs in its own thread.
    static AHEAD: Cell<i64> = const { Cell::new(0) };
}

fn now() -> i64 {
    samovar_storage::token::now() + AHEAD.get()
}

/// A storage with its objects in a bucket.
struct Fixture {
    engine: S3Engine,
    dir: tempfile::TempDir,
    location: Location,
    storage: Arc<Storage>,
    cache: StoredCache,
    token: Token,
    lost_count: Arc<AtomicUsize>,
}

/// An uncompressed NAR of one file.
#[derive(Clone)]
struct Upload {
    nar: Vec<u8>,
    name: FileName,
}

impl Fixture {
    /// Returns `None` if no engine is installed.
    fn new(packs: bool) -> Option<Self> {
        let engine = S3Engine::start()?;
        let url = engine.url();
        Some(Self::at(engine, &url, packs, Rules::default()))
    }

    fn at(engine: S3Engine, url: &str, packs: bool, rules: Rules) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = Settings::parse(url).unwrap();
        settings.credentials = CredentialSource::Fixed(FixedCredentials {
            key_id: testkit::s3::ACCESS_KEY.to_owned(),
            secret: testkit::s3::SECRET_KEY.to_owned(),
            token: None,
        });
        let location = Location::new(dir.path()).with_bucket(Some(BucketLocation {
            settings,
            cache_len_max: 1 << 30,
            redirect_over: None,
            packs,
        }));
        let new = NewToken {
            name: "tests".to_owned(),
            cache: None,
            names: None,
            rights: Rights {
                read: true,
                push: true,
                pin: false,
            },
            expires_at: None,
        };
        let hash = TokenHash::of(b"smv1_a").unwrap();
        tokens::add(&open_database(&location).unwrap(), &hash, &new).unwrap();
        let (storage, cache) = open(&location, rules);
        let token = cache.authorize(b"smv1_a", now()).unwrap().unwrap();
        let lost_count = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&lost_count);
        storage.set_on_lost(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        Self {
            engine,
            dir,
            location,
            storage,
            cache,
            token,
            lost_count,
        }
    }

    fn send(&self, upload: &Upload) -> Result<(), PutError> {
        let mut body = upload.nar.as_slice();
        nar::put(
            &self.cache,
            &self.token,
            &upload.name,
            &mut body,
            &mut Unlimited,
        )
    }

    fn publish(&self, path: &StorePath, upload: &Upload) -> Result<Published, PutError> {
        let text = text(path, upload);
        let outcome = narinfo::put(
            &self.cache,
            &self.token,
            path.hash_part(),
            text.as_bytes(),
            &|_| false,
            &render,
        );
        outcome.map(|(_, published)| published)
    }

    fn put(&self, number: u8, upload: &Upload) -> StorePath {
        let path = path(number);
        self.send(upload).unwrap();
        assert_eq!(self.publish(&path, upload).unwrap(), Published::New);
        path
    }

    fn open_file(&self, upload: &Upload) -> Result<Option<NarFile>, StorageError> {
        let opened = self.cache.open_file(EVERYBODY, &upload.name)?;
        Ok(opened.map(|(_, file)| file))
    }

    /// Opens the storage again without copies of objects.
    fn forget_copies(&mut self) {
        let copies = self.dir.path().join("cache");
        let other = tempfile::tempdir().unwrap();
        let moved = Location::new(other.path());
        let (storage, cache) = open(&moved, Rules::default());
        // The lock of the storage is released before it is opened again.
        self.cache = cache;
        self.storage = storage;
        fs::remove_dir_all(copies).unwrap();
        let (storage, cache) = open(&self.location, Rules::default());
        let count = Arc::clone(&self.lost_count);
        storage.set_on_lost(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        (self.storage, self.cache) = (storage, cache);
    }

    fn object(&self, upload: &Upload) -> PathBuf {
        self.engine.bucket().join(format!("nar/{}", upload.name))
    }

    fn lost_count(&self) -> usize {
        self.lost_count.load(Ordering::Relaxed)
    }
}

fn open(location: &Location, rules: Rules) -> (Arc<Storage>, StoredCache) {
    let storage = Storage::with_rules(location, &StoreDir::default(), rules, now).unwrap();
    let cache = storage.cache("default", true).unwrap();
    (storage, cache)
}

fn render(path: &StoredPath) -> Vec<u8> {
    let mut text = Vec::new();
    let info = path.narinfo();
    info.write(&StoreDir::default(), &mut text).unwrap();
    text
}

fn path(number: u8) -> StorePath {
    let hash_part = HashPart::from_bytes([number; 20]);
    StorePath::from_base_name(&format!("{hash_part}-path")).unwrap()
}

/// Makes a NAR of a file with these many bytes.
fn upload(seed: u8, len: usize) -> Upload {
    let (mut nar, mut contents) = (Vec::new(), Vec::with_capacity(len));
    let mut digest = Sha256::digest([seed]);
    while contents.len() < len {
        contents.extend_from_slice(&digest);
        digest = Sha256::digest(digest);
    }
    contents.truncate(len);
    let mut encoder = Encoder::new();
    encoder.begin(&mut nar).unwrap();
    encoder.file(&mut nar, false, len as u64).unwrap();
    nar.extend_from_slice(&contents);
    encoder.end_file(&mut nar).unwrap();
    encoder.finish().unwrap();
    let hash = NarHash::from_bytes(Sha256::digest(&nar).into());
    let hash = String::from_utf8(hash.nixbase32().to_vec()).unwrap();
    let name = FileName::parse(format!("{hash}.nar").as_bytes()).unwrap();
    Upload { nar, name }
}

fn text(path: &StorePath, upload: &Upload) -> String {
    let hash = NarHash::from_bytes(Sha256::digest(&upload.nar).into());
    format!(
        "StorePath: /nix/store/{}\nURL: nar/{}\nCompression: none\nNarHash: {hash}\nNarSize: {}\n\
         References: \n",
        path.base_name(),
        upload.name,
        upload.nar.len(),
    )
}

fn read(file: NarFile, offset: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.reader(offset).read_to_end(&mut bytes)?;
    Ok(bytes)
}

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
        matches!(opened, Err(StorageError::StoreId { .. })),
        "{opened:?}"
    );
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
    let check = |options: Options| -> (Summary, Vec<String>) {
        let database = open_database(&fixture.location).unwrap();
        let objects = Objects::open(&fixture.location).unwrap();
        let mut findings = Vec::new();
        let mut report = |finding: samovar_storage::check::fsck::Finding| {
            findings.push(finding.to_string());
        };
        let fsck = Fsck::new(&database, &objects, options, None, &mut report);
        (fsck.run().unwrap(), findings)
    };
    let deep = Options {
        deep: true,
        repair: true,
        ..Options::default()
    };
    let (summary, findings) = check(deep);
    assert_eq!((summary.objects, findings.len()), (2, 0), "{findings:?}");
    fs::write(fixture.object(&uploads[1]), "short").unwrap();
    let (_, findings) = check(deep);
    assert_eq!(findings.len(), 1, "{findings:?}");
    fixture.send(&uploads[1]).unwrap();
    let (_, findings) = check(Options::default());
    assert!(findings.len() <= 1, "{findings:?}");
    let nothing = Retention {
        time: Some(1),
        ..Retention::default()
    };
    let retentions = [("default".to_owned(), nothing)];
    fixture
        .storage
        .set_retentions(retentions.into_iter().collect());
    for _ in 0..4 {
        AHEAD.set(AHEAD.get() + 2 * DAY);
        let run = |collector: samovar_storage::gc::Collector<'_>| collector.forced(true).run();
        upkeep::collecting(&fixture.storage, run).unwrap().unwrap();
    }
    let left = fs::read_dir(fixture.engine.bucket().join("nar")).unwrap();
    assert_eq!(left.count(), 0);
    let narinfo = format!("{}.narinfo", path(1).hash_part());
    assert!(!fixture.engine.bucket().join(narinfo).exists());
}
