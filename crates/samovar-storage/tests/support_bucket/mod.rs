//! A storage whose objects are in a bucket of a real S3 engine, for tests.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test program uses a part")]

use std::cell::Cell;
use std::fs;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use samovar_bucket::{CredentialSource, FixedCredentials, Settings};
use samovar_nix::nar::Encoder;
use samovar_nix::{HashPart, NarHash, StoreDir, StorePath};
use samovar_protocol::names::FileName;
use samovar_storage::check::fsck::{Finding, Fsck, Options, Summary};
use samovar_storage::gc::{Collector, Retention, Rules};
use samovar_storage::metadata::{Client, Published, StoredPath};
use samovar_storage::objects::{NarFile, Objects};
use samovar_storage::token::Token;
use samovar_storage::verify::Unlimited;
use samovar_storage::{
    BucketLocation, Location, PutError, Storage, StorageError, StoredCache, open_database,
};
use samovar_storage::{nar, narinfo, upkeep};
use sha2::{Digest, Sha256};
use testkit::s3::S3Engine;

use crate::support_tokens::add_token;

/// A client without a token, of a public cache.
pub(crate) const EVERYBODY: Client = Client {
    token: None,
    is_reader: true,
};

/// Length of a day, in seconds.
pub(crate) const DAY: i64 = 86_400;

thread_local! {
    /// Number of seconds by which the clock of a test is ahead. Each test runs in its own thread.
    static AHEAD: Cell<i64> = const { Cell::new(0) };
}

pub(crate) fn now() -> i64 {
    samovar_storage::token::now() + AHEAD.get()
}

/// A storage with its objects in a bucket.
pub(crate) struct Fixture {
    pub(crate) engine: S3Engine,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) location: Location,
    pub(crate) storage: Arc<Storage>,
    pub(crate) cache: StoredCache,
    pub(crate) token: Token,
    pub(crate) lost_count: Arc<AtomicUsize>,
}

/// An uncompressed NAR of one file.
#[derive(Clone)]
pub(crate) struct Upload {
    pub(crate) nar: Vec<u8>,
    pub(crate) name: FileName,
}

impl Fixture {
    /// Returns `None` if no engine is installed.
    pub(crate) fn new(packs: bool) -> Option<Self> {
        let engine = S3Engine::start()?;
        let url = engine.url();
        Some(Self::at(engine, &url, packs, Rules::default()))
    }

    pub(crate) fn at(engine: S3Engine, url: &str, packs: bool, rules: Rules) -> Self {
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
        add_token(&open_database(&location).unwrap(), "tests", "smv1_a");
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

    pub(crate) fn send(&self, upload: &Upload) -> Result<(), PutError> {
        let mut body = upload.nar.as_slice();
        nar::put(
            &self.cache,
            &self.token,
            &upload.name,
            &mut body,
            &mut Unlimited,
        )
    }

    pub(crate) fn publish(&self, path: &StorePath, upload: &Upload) -> Result<Published, PutError> {
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

    pub(crate) fn put(&self, number: u8, upload: &Upload) -> StorePath {
        let path = path(number);
        self.send(upload).unwrap();
        assert_eq!(self.publish(&path, upload).unwrap(), Published::New);
        path
    }

    pub(crate) fn open_file(&self, upload: &Upload) -> Result<Option<NarFile>, StorageError> {
        let opened = self.cache.open_file(EVERYBODY, &upload.name)?;
        Ok(opened.map(|(_, file)| file))
    }

    /// Opens the storage again without copies of objects.
    pub(crate) fn forget_copies(&mut self) {
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

    pub(crate) fn check(&self, options: Options) -> (Summary, Vec<String>) {
        let database = open_database(&self.location).unwrap();
        let objects = Objects::open(&self.location).unwrap();
        let mut findings = Vec::new();
        let mut report = |finding: Finding| findings.push(finding.to_string());
        let fsck = Fsck::new(&database, &objects, options, None, &mut report);
        (fsck.run().unwrap(), findings)
    }

    /// Runs the collector until all paths are deleted.
    pub(crate) fn collect_all(&self) {
        let nothing = Retention {
            time: Some(1),
            ..Retention::default()
        };
        let retentions = [("default".to_owned(), nothing)];
        self.storage
            .set_retentions(retentions.into_iter().collect());
        for _ in 0..4 {
            AHEAD.set(AHEAD.get() + 2 * DAY);
            let run = |collector: Collector<'_>| collector.forced(true).run();
            upkeep::collecting(&self.storage, run).unwrap().unwrap();
        }
    }

    pub(crate) fn object(&self, upload: &Upload) -> PathBuf {
        self.engine.bucket().join(format!("nar/{}", upload.name))
    }

    pub(crate) fn lost_count(&self) -> usize {
        self.lost_count.load(Ordering::Relaxed)
    }
}

pub(crate) fn open(location: &Location, rules: Rules) -> (Arc<Storage>, StoredCache) {
    let storage = Storage::with_rules(location, &StoreDir::default(), rules, now).unwrap();
    let cache = storage.cache("default", true).unwrap();
    (storage, cache)
}

pub(crate) fn render(path: &StoredPath) -> Vec<u8> {
    let mut text = Vec::new();
    let info = path.narinfo();
    info.write(&StoreDir::default(), &mut text).unwrap();
    text
}

pub(crate) fn path(number: u8) -> StorePath {
    let hash_part = HashPart::from_bytes([number; 20]);
    StorePath::from_base_name(&format!("{hash_part}-path")).unwrap()
}

/// Makes a NAR of a file with these many bytes.
pub(crate) fn upload(seed: u8, len: usize) -> Upload {
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

pub(crate) fn text(path: &StorePath, upload: &Upload) -> String {
    let hash = NarHash::from_bytes(Sha256::digest(&upload.nar).into());
    format!(
        "StorePath: /nix/store/{}\nURL: nar/{}\nCompression: none\nNarHash: {hash}\nNarSize: {}\n\
         References: \n",
        path.base_name(),
        upload.name,
        upload.nar.len(),
    )
}

pub(crate) fn read(file: NarFile, offset: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.reader(offset).read_to_end(&mut bytes)?;
    Ok(bytes)
}
