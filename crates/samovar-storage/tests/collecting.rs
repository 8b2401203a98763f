//! Publishers, readers and a collector that stops at random steps break no promise of the
//! collector; with a rule sabotaged, they do.
//!
//! Time is logical: the clock advances by [`STEP`] when a thread completes an action, and waiting
//! threads wait for the clock. So a slow machine runs the same model, only later.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support_tokens;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use samovar_nix::nar::Encoder;
use samovar_nix::{HashPart, NarHash, StoreDir, StorePath};
use samovar_protocol::names::FileName;
use samovar_storage::gc::{Retention, Rules};
use samovar_storage::metadata::{Database, caches, paths};
use samovar_storage::token::Token;
use samovar_storage::verify::Unlimited;
use samovar_storage::{DATABASE, Storage, StoredCache};
use samovar_storage::{nar, narinfo, upkeep};
use sha2::{Digest, Sha256};

const PATH_COUNT: u64 = 1500;
const RULES: Rules = Rules {
    hold: 20_000,
    young: 20_000,
    loose: 20_000,
    key_rest: 200_000,
    loose_bytes_max: u64::MAX,
    extra_bytes_max: u64::MAX,
    // The clock of the model is not that of the machine.
    drift_max: i64::MAX,
    settling: 0,
};
use support_tokens::add_token;

/// Seconds by which the clock advances per action. A day takes 144 actions.
const STEP: i64 = 600;

/// Maximum time until sabotage is found. It takes seconds, and a minute on a busy machine.
const SABOTAGE_TIME: Duration = Duration::from_secs(240);

static CLOCK: AtomicI64 = AtomicI64::new(1_800_000_000);

fn clock() -> i64 {
    CLOCK.load(Ordering::SeqCst)
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

struct Model {
    dir: tempfile::TempDir,
    storage: Arc<Storage>,
    cache: StoredCache,
    token: Token,
    is_over: AtomicBool,
    published: AtomicUsize,
    deleted: AtomicUsize,
    violations: Mutex<Vec<String>>,
}

fn store_path(number: u64) -> StorePath {
    let digest = Sha256::digest(number.to_le_bytes());
    let hash_part = HashPart::from_bytes(digest[..20].try_into().unwrap());
    StorePath::from_base_name(&format!("{hash_part}-p{number}")).unwrap()
}

/// A path refers to others of its group of ten.
fn references(number: u64) -> Vec<u64> {
    let (group, own) = (number / 10 * 10, number % 10);
    match own {
        0 => Vec::new(),
        _ => vec![group + own / 2],
    }
}

fn nar(number: u64) -> Vec<u8> {
    // Some paths have the same NAR.
    let contents = format!("contents of {}", number / 2 * 2);
    let mut nar = Vec::new();
    let mut encoder = Encoder::new();
    encoder.begin(&mut nar).unwrap();
    encoder
        .file(&mut nar, false, contents.len() as u64)
        .unwrap();
    nar.extend_from_slice(contents.as_bytes());
    encoder.end_file(&mut nar).unwrap();
    encoder.finish().unwrap();
    nar
}

impl Model {
    fn new(rules: Rules) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::with_rules(dir.path(), &StoreDir::default(), rules, clock).unwrap();
        let keep = Retention {
            time: Some(86_400),
            ..Retention::default()
        };
        storage.set_retentions([("default".to_owned(), keep)].into_iter().collect());
        let database = database(dir.path());
        add_token(&database, "model", "smv1_model");
        let cache = storage.cache("default", true).unwrap();
        let token = cache.authorize(b"smv1_model", clock()).unwrap().unwrap();
        Self {
            dir,
            storage,
            cache,
            token,
            is_over: AtomicBool::new(false),
            published: AtomicUsize::new(0),
            deleted: AtomicUsize::new(0),
            violations: Mutex::default(),
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Waits until the clock has advanced by `time`, or the run is over.
    fn rest(&self, time: u64) {
        let end = clock() + i64::try_from(time).unwrap();
        while clock() < end && !self.is_over() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn violation(&self, text: String) {
        self.violations.lock().unwrap().push(text);
    }

    /// Publishes a path after its references.
    fn publish(&self, number: u64) {
        let start = clock();
        for reference in references(number) {
            self.publish(reference);
        }
        let (path, nar) = (store_path(number), nar(number));
        let hash = NarHash::from_bytes(Sha256::digest(&nar).into());
        let base32 = String::from_utf8(hash.nixbase32().to_vec()).unwrap();
        let name = FileName::parse(format!("{base32}.nar").as_bytes()).unwrap();
        let references: Vec<_> = references(number).into_iter().map(store_path).collect();
        let text = format!(
            "StorePath: /nix/store/{}\nURL: nar/{name}\nCompression: none\nNarHash: {hash}\n\
             NarSize: {}\nReferences: {}\n",
            path.base_name(),
            nar.len(),
            references
                .iter()
                .map(StorePath::base_name)
                .collect::<Vec<_>>()
                .join(" ")
        );
        let outcome = nar::put(
            &self.cache,
            &self.token,
            &name,
            &mut nar.as_slice(),
            &mut Unlimited,
        )
        .and_then(|()| {
            narinfo::put(
                &self.cache,
                &self.token,
                path.hash_part(),
                text.as_bytes(),
                &|_| false,
                &|path| {
                    let mut text = Vec::new();
                    path.narinfo()
                        .write(&StoreDir::default(), &mut text)
                        .unwrap();
                    text
                },
            )
        });
        match outcome {
            Ok(_) => {
                self.published.fetch_add(1, Ordering::Relaxed);
            }
            // What was acknowledged may be gone only after `hold`.
            Err(error) if clock() < start + RULES.hold => self.violation(error.to_string()),
            Err(_late) => {}
        }
    }

    /// Looks paths up, and checks what the answers promise until `hold` is over.
    fn read(&self, random: &mut Random) {
        let database = database(self.dir.path());
        let id = caches::add(&database, "default", "/nix/store").unwrap();
        let mut answers = Vec::new();
        for _ in 0..10 {
            let path = store_path(random.below(PATH_COUNT));
            let time = clock();
            if let Some(found) = self.cache.lookup(path.hash_part()).unwrap() {
                answers.push((time, found));
            }
        }
        for pause in [0, 6_000 + random.below(10_000)] {
            self.rest(pause);
            for (time, path) in &answers {
                let mut missing = Vec::new();
                for needed in path.references.iter().chain([&path.path]) {
                    if !paths::exists(&database, id, needed.hash_part()).unwrap() {
                        missing.push(format!("{needed} is missing, needed by {}", path.path));
                    }
                }
                let key = &path.nar.object_key;
                if !self.dir.path().join(key).exists() {
                    missing.push(format!("{key} of {} is missing", path.path));
                }
                if clock() < time + RULES.hold {
                    missing.into_iter().for_each(|text| self.violation(text));
                }
            }
        }
    }

    /// Runs the collector, and stops at a random step half of the time.
    fn collect(&self, random: &mut Random) {
        let step_count = match random.below(2) {
            0 => u64::MAX,
            _ => random.below(16),
        };
        let deleted = upkeep::collecting(&self.storage, |collector| {
            // The model condemns most paths at once.
            let mut collector = collector.forced(true);
            for _ in 0..step_count {
                if !collector.step()? {
                    break;
                }
            }
            Ok(collector.summary().deleted)
        });
        let deleted = deleted.unwrap().unwrap();
        self.deleted.fetch_add(deleted, Ordering::Relaxed);
        self.rest(random.below(2_000));
    }
}

fn database(dir: &Path) -> Database {
    Database::with_clock(&dir.join(DATABASE), clock).unwrap()
}

/// Runs the model until a violation is found or the time is over, and enough has happened. Returns
/// the violations.
fn run(rules: Rules, sabotage: &str, time: Duration) -> Vec<String> {
    // The clock belongs to one run at a time.
    static RUN: Mutex<()> = Mutex::new(());
    let _run = RUN.lock().unwrap_or_else(PoisonError::into_inner);
    let model = Model::new(rules);
    let connection = Connection::open(model.dir.path().join(DATABASE)).unwrap();
    connection.execute_batch(sabotage).unwrap();
    std::thread::scope(|scope| {
        let work = |seed: u64, step: fn(&Model, &mut Random)| {
            let model = &model;
            scope.spawn(move || {
                let mut random = Random(seed * 0x9e37_79b9_7f4a);
                while !model.is_over() {
                    step(model, &mut random);
                    CLOCK.fetch_add(STEP, Ordering::SeqCst);
                }
            });
        };
        for seed in 1..=8 {
            work(seed, |model, random| {
                model.publish(random.below(PATH_COUNT))
            });
        }
        for seed in 11..=13 {
            work(seed, Model::read);
        }
        work(21, Model::collect);
        let start = Instant::now();
        let is_enough = || {
            let counts = [&model.published, &model.deleted];
            let [published, deleted] = counts.map(|count| count.load(Ordering::Relaxed));
            start.elapsed() >= time && published > 100 && deleted > 20
        };
        let is_found = || !model.violations.lock().unwrap().is_empty();
        while !is_enough() && !is_found() && start.elapsed() < 4 * time {
            std::thread::sleep(Duration::from_millis(20));
        }
        model.is_over.store(true, Ordering::Relaxed);
    });
    let (published, deleted) = (model.published.into_inner(), model.deleted.into_inner());
    let violations = model.violations.into_inner().unwrap();
    assert!(
        !violations.is_empty() || (published > 100 && deleted > 20),
        "the run was too short: {published} paths published, {deleted} deleted"
    );
    violations
}

#[test]
fn no_promise_is_broken() {
    let violations = run(RULES, "", Duration::from_secs(12));
    assert!(violations.is_empty(), "{violations:?}");
}

#[test]
fn a_collector_that_ignores_revivals_is_found_out() {
    let sabotage = "create trigger sabotage after update of condemned_at on path \
                    when old.condemned_at is not null and new.condemned_at is null begin \
                    update path set condemned_at = old.condemned_at where id = new.id; end";
    assert!(!run(RULES, sabotage, SABOTAGE_TIME).is_empty());
}

#[test]
fn a_collector_that_does_not_wait_is_found_out() {
    let rules = Rules { hold: 0, ..RULES };
    assert!(!run(rules, "", SABOTAGE_TIME).is_empty());
}

#[test]
fn keys_that_are_used_again_are_found_out() {
    let sabotage = "create trigger sabotage after insert on garbage \
                    when new.object_key like 'nar/%' begin \
                    update or replace garbage set object_key = './' || new.object_key \
                    where object_key = new.object_key; end";
    assert!(!run(RULES, sabotage, SABOTAGE_TIME).is_empty());
}
