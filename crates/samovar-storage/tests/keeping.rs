//! What the collector deletes of the paths of upstreams.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support_tokens;

use std::io::Write as _;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use samovar_nix::nar::Encoder;
use samovar_nix::narinfo::{Compression, NarInfo};
use samovar_nix::{HashPart, StoreDir, StorePath};
use samovar_protocol::names::FileName;
use samovar_protocol::pins::Condition;
use samovar_storage::gc::{Retention, Retentions, Rules};
use samovar_storage::kept::{self, NotKept};
use samovar_storage::metadata::{DAY, Database, NewPin, pins};
use samovar_storage::verify::{Limits, Unlimited, Verified, verify_unnamed};
use samovar_storage::{DATABASE, Storage, StoredCache, nar, narinfo, upkeep};
use support_tokens::add_token;

/// Length of the contents of each path, in bytes.
const LEN: u64 = 100_000;

/// Held by each test, because all of them set the clock.
static ONE: Mutex<()> = Mutex::new(());

static CLOCK: AtomicI64 = AtomicI64::new(1_800_000_000);

fn clock() -> i64 {
    CLOCK.load(Ordering::SeqCst)
}

fn wait(time: i64) {
    CLOCK.fetch_add(time, Ordering::SeqCst);
}

fn path(number: u8) -> StorePath {
    let hash_part = HashPart::from_bytes([number; 20]);
    StorePath::from_base_name(&format!("{hash_part}-p{number}")).unwrap()
}

/// Returns a NAR with contents that no other number has, and its verified hashes. Paths from 100 on
/// are short.
fn made(number: u8) -> (Vec<u8>, Verified) {
    let len = match number {
        0..100 => LEN,
        _ => 100,
    };
    let mut nar = Vec::new();
    let mut encoder = Encoder::new();
    encoder.begin(&mut nar).unwrap();
    encoder.file(&mut nar, false, len).unwrap();
    nar.extend(std::iter::repeat_n(number, usize::try_from(len).unwrap()));
    encoder.end_file(&mut nar).unwrap();
    encoder.finish().unwrap();
    let verified = verify_unnamed(
        &mut nar.as_slice(),
        Compression::None,
        &mut std::io::sink(),
        &Limits::default(),
        &mut Unlimited,
    );
    (nar, verified.unwrap())
}

fn info(number: u8, references: &[u8]) -> NarInfo {
    let (_, verified) = made(number);
    NarInfo {
        store_path: path(number),
        url: format!(
            "nar/{}",
            FileName::new(verified.file_hash, Compression::None)
        ),
        compression: Compression::None,
        file_hash: None,
        file_size: None,
        nar_hash: verified.nar_hash,
        nar_size: verified.nar_size,
        references: references.iter().copied().map(path).collect(),
        deriver: None,
        system: None,
        signatures: Vec::new(),
        content_address: None,
    }
}

/// Keeps a path of the upstream.
fn keep(stored: &StoredCache, number: u8, references: &[u8]) -> Result<(), NotKept> {
    let (nar, verified) = made(number);
    let mut keeping = kept::begin(stored, nar.len() as u64, false)?;
    keeping.write_all(&nar).unwrap();
    keeping.finish(verified, info(number, references))
}

/// Publishes an uploaded path whose references are elsewhere.
fn push(storage: &Arc<Storage>, number: u8, references: &[u8]) {
    let database = Database::open(&storage.directory().join(DATABASE)).unwrap();
    let secret = format!("smv1_{number}");
    add_token(&database, "ci", &secret);
    let cache = storage.cache("default", false).unwrap();
    let token = cache
        .authorize(secret.as_bytes(), clock())
        .unwrap()
        .unwrap();
    let ((file, verified), info) = (made(number), info(number, references));
    let name = FileName::new(verified.file_hash, Compression::None);
    nar::put(&cache, &token, &name, &mut file.as_slice(), &mut Unlimited).unwrap();
    let mut text = Vec::new();
    info.write(&StoreDir::default(), &mut text).unwrap();
    let hash_part = info.store_path.hash_part();
    narinfo::put(&cache, &token, hash_part, &text, &|_| true, &|_| Vec::new()).unwrap();
}

/// Pins an uploaded path.
fn pin(storage: &Storage, number: u8) {
    let database = Database::open(&storage.directory().join(DATABASE)).unwrap();
    let new = NewPin {
        cache: "default".to_owned(),
        name: "main".parse().unwrap(),
        hash_part: path(number).hash_part(),
        keep: None,
        expires_at: None,
        token: None,
        host: None,
        message: None,
        condition: Condition::default(),
    };
    pins::add(&database, &new).unwrap();
}

/// Returns whether an uploaded path exists.
fn is_there(storage: &Arc<Storage>, number: u8) -> bool {
    let cache = storage.cache("default", false).unwrap();
    let found = cache.peek(path(number).hash_part()).unwrap();
    found.is_some()
}

/// Runs the collector until what it condemns is deleted. Returns the numbers of the kept paths.
fn collect(storage: &Storage, stored: &StoredCache, size: u64) -> Vec<u8> {
    let retention = (stored.name().to_owned(), kept::retention(Some(size)));
    // An upload is kept for a week after its last use.
    let of_uploads = Retention {
        time: Some(7 * DAY),
        ..Retention::default()
    };
    let of_uploads = ("default".to_owned(), of_uploads);
    storage.set_retentions(Retentions::from_iter([retention, of_uploads]));
    for _ in 0..2 {
        upkeep::collect(storage).unwrap().unwrap();
        wait(2 * 3600);
    }
    let is_kept = |number: &u8| {
        let found = stored.peek(path(*number).hash_part()).unwrap();
        found.is_some()
    };
    (0..200).filter(is_kept).collect()
}

#[test]
fn the_least_recently_used_paths_go_and_closures_of_uploads_stay() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let rules = Rules {
        drift_max: i64::MAX,
        settling: 0,
        ..Rules::default()
    };
    let storage = Storage::with_rules(dir.path(), &StoreDir::default(), rules, clock).unwrap();
    let name = kept::cache_name("up");
    let stored = storage.cache(&name, false).unwrap();
    let all = 11 * (LEN + 10_000);
    let stored = stored.with_quota(Some(all));
    for number in 0..10 {
        // Path 3 refers to one that is kept before it, one after it, and one that is not kept.
        let references: &[u8] = match number {
            3 => &[1, 8, 15],
            _ => &[],
        };
        keep(&stored, number, references).unwrap();
        wait(60);
    }
    push(&storage, 17, &[3]);
    let everything: Vec<u8> = (0..10).collect();
    assert_eq!(collect(&storage, &stored, all), everything);
    // Nothing that was used within a day is deleted, whatever the size.
    assert_eq!(collect(&storage, &stored, LEN), everything);
    wait(2 * DAY);
    stored.lookup(path(5).hash_part()).unwrap().unwrap();
    upkeep::write_uses(&storage).unwrap();
    wait(2 * DAY);
    assert_eq!(collect(&storage, &stored, 5 * LEN), [1, 3, 5, 8]);
    assert_eq!(collect(&storage, &stored, LEN), [1, 3, 8]);
    // What was deleted can be kept again, as far as there is room.
    keep(&stored, 5, &[]).unwrap();
    assert_eq!(collect(&storage, &stored, LEN), [1, 3, 5, 8]);
    // Path 19 is pinned, and needs the upload 18 through path 9 of the upstream.
    push(&storage, 18, &[]);
    keep(&stored, 9, &[18]).unwrap();
    push(&storage, 19, &[9]);
    pin(&storage, 19);
    keep(&stored, 10, &[16]).unwrap();
    push(&storage, 16, &[]);
    wait(8 * DAY);
    assert_eq!(collect(&storage, &stored, all), [1, 3, 5, 8, 9, 10]);
    let are_there = [16, 17, 18, 19].map(|number| is_there(&storage, number));
    assert_eq!(are_there, [false, false, true, true]);
    assert_eq!(collect(&storage, &stored, LEN), [9]);
    let full = stored.clone().with_quota(Some(LEN));
    assert!(matches!(keep(&full, 6, &[]), Err(NotKept::Size)));
    // Files that arrive at the same time count.
    let three = stored.clone().with_quota(Some(3 * (LEN + 10_000)));
    let one = kept::begin(&three, LEN, false).unwrap();
    let two = kept::begin(&three, LEN, false);
    assert!(two.is_ok(), "{two:?}");
    assert!(matches!(
        kept::begin(&three, LEN, false),
        Err(NotKept::Size)
    ));
    kept::begin(&three, LEN, true).unwrap();
    drop(one);
    kept::begin(&three, LEN, false).unwrap();
}

/// The collector makes room for new paths although each path has more metadata than contents.
#[test]
fn short_paths_make_room_for_new_ones() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let rules = Rules {
        drift_max: i64::MAX,
        settling: 0,
        ..Rules::default()
    };
    let storage = Storage::with_rules(dir.path(), &StoreDir::default(), rules, clock).unwrap();
    let stored = storage.cache(&kept::cache_name("up"), false).unwrap();
    let size = 10 * made(100).0.len() as u64;
    let stored = stored.with_quota(Some(size));
    for number in 100..110 {
        keep(&stored, number, &[]).unwrap();
        wait(60);
    }
    assert!(matches!(keep(&stored, 110, &[]), Err(NotKept::Size)));
    wait(3 * DAY);
    let left = collect(&storage, &stored, size);
    assert_eq!(left, (101..110).collect::<Vec<u8>>());
    keep(&stored, 110, &[]).unwrap();
}
