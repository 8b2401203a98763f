//! Opening a push protects what the client need not send, and pushes expire with their parts.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support_tokens;

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use samovar_nix::nar::Encoder;
use samovar_nix::{HashPart, NarHash, StoreDir, StorePath};
use samovar_protocol::names::PushId;
use samovar_protocol::push::OpenLine;
use samovar_storage::gc::{Rules, sweep_pushes};
use samovar_storage::metadata::{DAY, OWN_LEN, Published, StoredPath, collect};
use samovar_storage::objects::Objects;
use samovar_storage::push::{Answer, PushError};
use samovar_storage::token::Token;
use samovar_storage::verify::Unlimited;
use samovar_storage::{DATABASE, Storage, StoredCache};
use samovar_storage::{Statistics, push, upkeep};
use sha2::{Digest, Sha256};
use support_tokens::add_token;

thread_local! {
    /// The time of a test, which runs in a thread of its own.
    static NOW: Cell<i64> = const { Cell::new(1_800_000_000) };
}

fn clock() -> i64 {
    NOW.get()
}

fn pass(seconds: i64) {
    NOW.set(NOW.get() + seconds);
}

struct Fixture {
    dir: tempfile::TempDir,
    storage: Arc<Storage>,
    cache: StoredCache,
    token: Token,
}

/// A path and its NAR.
struct Made {
    path: StorePath,
    nar: Vec<u8>,
}

impl Made {
    fn new(name: &str) -> Self {
        Self::of(name, name)
    }

    fn of(name: &str, contents: &str) -> Self {
        let digest = Sha256::digest(name);
        let hash_part = HashPart::from_bytes(digest[..20].try_into().unwrap());
        let mut nar = Vec::new();
        let mut encoder = Encoder::new();
        encoder.begin(&mut nar).unwrap();
        encoder
            .file(&mut nar, false, contents.len() as u64)
            .unwrap();
        nar.extend(contents.bytes());
        encoder.end_file(&mut nar).unwrap();
        encoder.finish().unwrap();
        Self {
            path: StorePath::from_base_name(&format!("{hash_part}-{name}")).unwrap(),
            nar,
        }
    }

    fn nar_hash(&self) -> NarHash {
        NarHash::from_bytes(Sha256::digest(&self.nar).into())
    }

    fn line(&self) -> OpenLine {
        OpenLine {
            hash_part: self.path.hash_part(),
            nar_hash: self.nar_hash(),
            nar_size: self.nar.len() as u64,
            path: None,
        }
    }

    fn pack(&self) -> Vec<u8> {
        let hash = samovar_nix::nixbase32::encode(self.nar_hash().as_bytes());
        let head = format!("nar {hash} none {}\n", self.nar.len());
        [head.as_bytes(), &self.nar, b"end 1\n"].concat()
    }

    fn narinfo(&self) -> Vec<u8> {
        let (path, nar_hash, len) = (&self.path, self.nar_hash(), self.nar.len());
        let text = format!("StorePath: /nix/store/{path}\nNarHash: {nar_hash}\nNarSize: {len}\n");
        format!("narinfo {}\n{text}end 1\n", text.len()).into_bytes()
    }
}

fn open(dir: &Path) -> (Arc<Storage>, StoredCache) {
    open_with(dir, Rules::default())
}

fn open_with(dir: &Path, rules: Rules) -> (Arc<Storage>, StoredCache) {
    // The clock of these tests jumps.
    let rules = Rules {
        drift_max: i64::MAX,
        ..rules
    };
    let storage = Storage::with_rules(dir, &StoreDir::default(), rules, clock).unwrap();
    let cache = storage.cache("default", true).unwrap();
    (storage, cache)
}

impl Fixture {
    fn new() -> Self {
        Self::with_rules(Rules::default())
    }

    fn with_rules(rules: Rules) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (storage, cache) = open_with(dir.path(), rules);
        let database = samovar_storage::open_database(dir.path()).unwrap();
        add_token(&database, "tests", "smv1_a");
        let token = cache.authorize(b"smv1_a", clock()).unwrap().unwrap();
        Self {
            dir,
            storage,
            cache,
            token,
        }
    }

    fn database(&self) -> samovar_storage::metadata::Database {
        let path = self.dir.path().join(DATABASE);
        samovar_storage::metadata::Database::with_clock(&path, clock).unwrap()
    }

    fn sweep(&self) {
        let objects = Objects::open(&self.dir.path().into()).unwrap();
        sweep_pushes(&self.database(), &objects).unwrap();
    }

    fn open(&self, made: &Made) -> (PushId, Answer) {
        let (id, answers) = push::open(&self.cache, &self.token, &[made.line()]).unwrap();
        (id, answers[0].clone())
    }

    fn send(&self, id: PushId, made: &Made) {
        let push = push::find(&self.cache, &self.token, id).unwrap();
        let outcomes = push::put_pack(&push, &mut &made.pack()[..], &mut Unlimited).unwrap();
        assert_eq!(outcomes.len(), 1);
        assert_eq!(outcomes[0].refusal, None);
    }

    fn publish(&self, id: PushId, made: &Made) {
        let push = push::find(&self.cache, &self.token, id).unwrap();
        let mut body = &made.narinfo()[..];
        let published = push::publish(&push, &mut body, &|_| false, &render).unwrap();
        assert_eq!(published, [(made.path.clone(), Published::New)]);
    }

    fn put_part(&self, id: PushId, made: &Made) -> Result<(), PushError> {
        let (hash, len) = (made.nar_hash(), made.nar.len() as u64);
        let push = push::find(&self.cache, &self.token, id)?;
        push::put_part(&push, hash, 1, len, *hash.as_bytes(), &mut &made.nar[..])
    }

    fn part_count(&self) -> usize {
        let tmp = fs::read_dir(self.dir.path().join(".samovar/tmp")).unwrap();
        let parts = tmp.map(|push| fs::read_dir(push.unwrap().path()).unwrap().count());
        parts.sum()
    }
}

fn render(path: &StoredPath) -> Vec<u8> {
    let mut text = Vec::new();
    path.narinfo()
        .write(&StoreDir::default(), &mut text)
        .unwrap();
    text
}

#[test]
fn a_path_that_the_client_need_not_send_is_revived() {
    let fixture = Fixture::new();
    let made = Made::new("path");
    let (id, answer) = fixture.open(&made);
    assert_eq!(answer, Answer::Need);
    fixture.send(id, &made);
    fixture.publish(id, &made);
    let database = fixture.database();
    let path = || collect::graph(&database, &|_, _| None).unwrap().paths[0];
    pass(40 * DAY);
    collect::condemn_paths(&database, &[path().id], true).unwrap();
    assert!(collect::confirm(&database, 10).unwrap() && path().is_condemned);
    assert_eq!(fixture.open(&made).1, Answer::Have);
    assert!(!path().is_condemned);
    assert_eq!(path().used_at, clock());
    // The use of a path that is not condemned is recorded at once as well.
    pass(DAY);
    assert_eq!(fixture.open(&made).1, Answer::Have);
    assert_eq!(path().used_at, clock());
}

#[test]
fn a_nar_that_the_client_need_not_send_stays_for_a_day() {
    let fixture = Fixture::new();
    let made = Made::new("path");
    let (id, _) = fixture.open(&made);
    fixture.send(id, &made);
    let collect = || upkeep::collect(&fixture.storage).unwrap().unwrap();
    for _ in 0..3 {
        pass(DAY - 60);
        assert_eq!(collect().condemned_nars, 0);
        assert_eq!(fixture.open(&made).1, Answer::Link);
    }
    pass(DAY + 60);
    assert_eq!(collect().condemned_nars, 1);
    // Condemned, it can still be revived.
    assert_eq!(fixture.open(&made).1, Answer::Link);
    pass(7200);
    assert_eq!(collect().deleted_nars, 0);
    let (id, _) = fixture.open(&made);
    fixture.publish(id, &made);
}

#[test]
fn a_nar_whose_file_is_lost_is_needed_again() {
    let fixture = Fixture::new();
    let made = Made::new("path");
    let (id, _) = fixture.open(&made);
    fixture.send(id, &made);
    let file = fs::read_dir(fixture.dir.path().join("nar")).unwrap();
    let file = file.map(|entry| entry.unwrap().path()).next().unwrap();
    fs::write(&file, b"short").unwrap();
    assert_eq!(fixture.open(&made).1, Answer::Need);
    let push = push::find(&fixture.cache, &fixture.token, id).unwrap();
    let refused = push::publish(&push, &mut &made.narinfo()[..], &|_| false, &render);
    assert!(matches!(refused, Err(PushError::Missing(_))), "{refused:?}");
    fixture.send(id, &made);
    assert_eq!(fs::read(&file).unwrap(), made.nar);
    assert_eq!(fixture.open(&made).1, Answer::Link);
    fixture.publish(id, &made);
}

#[test]
fn pushes_expire_a_day_after_their_last_request() {
    let fixture = Fixture::new();
    let made = Made::new("path");
    let (used, _) = fixture.open(&made);
    let (unused, _) = fixture.open(&made);
    for id in [used, unused] {
        fixture.put_part(id, &made).unwrap();
    }
    // A new push starts with its tolerance; later ones have between that and none.
    pass(DAY - 1);
    let push = push::find(&fixture.cache, &fixture.token, used).unwrap();
    assert_eq!(push::parts(&push, &made.nar_hash()).unwrap().len(), 1);
    fixture.sweep();
    assert_eq!(fixture.part_count(), 2);
    pass(601);
    let gone = fixture.put_part(unused, &made);
    assert!(matches!(gone, Err(PushError::NoPush)), "{gone:?}");
    fixture.sweep();
    assert_eq!(fixture.part_count(), 1);
    fixture.put_part(used, &made).unwrap();
    pass(2 * DAY);
    fixture.sweep();
    assert_eq!(fixture.part_count(), 0);
}

impl Fixture {
    /// Closes the storage, calls `change` with its directory, and opens it again.
    fn reopen(self, change: impl FnOnce(&Path)) -> Self {
        let Self {
            dir,
            storage,
            cache,
            token,
        } = self;
        drop((storage, cache));
        change(dir.path());
        let (storage, cache) = open(dir.path());
        Self {
            dir,
            storage,
            cache,
            token,
        }
    }
}

#[test]
fn parts_survive_a_restart_and_unfinished_files_do_not() {
    let fixture = Fixture::new();
    let made = Made::new("path");
    let (id, _) = fixture.open(&made);
    fixture.put_part(id, &made).unwrap();
    let fixture = fixture.reopen(|dir| {
        fs::write(dir.join(".samovar/tmp/.tmpabc"), b"unfinished").unwrap();
    });
    assert_eq!(fixture.part_count(), 1);
    let push = push::find(&fixture.cache, &fixture.token, id).unwrap();
    let compression = samovar_nix::narinfo::Compression::None;
    push::join(&push, made.nar_hash(), 1, compression, &mut Unlimited).unwrap();
    assert_eq!(fixture.part_count(), 0);
    assert_eq!(fixture.open(&made).1, Answer::Link);
}

#[test]
fn the_parts_of_a_token_are_limited_in_number() {
    let fixture = Fixture::new();
    let made = Made::new("path");
    let (id, _) = fixture.open(&made);
    fixture.put_part(id, &made).unwrap();
    let push = fixture.dir.path().join(format!(".samovar/tmp/push-{id}"));
    let name = fs::read_dir(&push).unwrap().next().unwrap().unwrap();
    let name = name.file_name().into_string().unwrap();
    let add = |numbers: std::ops::RangeInclusive<u32>, nar: char| {
        for number in numbers {
            let name = name.replacen("-1-", &format!("-{number}-"), 1);
            fs::write(push.join(format!("{nar}{}", &name[1..])), b"").unwrap();
        }
    };
    // One of these names is that of the first part, because NAR hashes begin with 0 or 1.
    add(1..=10_000, '0');
    add(1..=6383, '1');
    let other = Made::new("other");
    fixture.put_part(id, &other).unwrap();
    let refused = fixture.put_part(id, &Made::new("third")).unwrap_err();
    assert!(refused.to_string().contains("16384"), "{refused}");
    // A part that exists may be sent again.
    fixture.put_part(id, &made).unwrap();
}

/// The second part of a file that would exceed the quota is refused before it is stored.
#[test]
fn a_part_that_exceeds_the_quota_is_refused() {
    for is_within in [true, false] {
        let fixture = Fixture::new();
        // Each half is a part that need not be the last one.
        let made = Made::of("path", &"contents".repeat(64 << 10));
        let (id, _) = fixture.open(&made);
        let (first, second) = made.nar.split_at(made.nar.len() / 2);
        let quota = made.nar.len() as u64 - u64::from(!is_within);
        let cache = fixture.cache.clone().with_quota(Some(quota));
        let push = push::find(&cache, &fixture.token, id).unwrap();
        let put = |number: u32, mut part: &[u8]| {
            let sha256 = Sha256::digest(part).into();
            let len = part.len() as u64;
            push::put_part(&push, made.nar_hash(), number, len, sha256, &mut part)
        };
        // A part that replaces another one with the same number does not count twice.
        put(1, second).unwrap();
        put(1, first).unwrap();
        let outcome = put(2, second);
        if is_within {
            put(2, first).unwrap();
        }
        if is_within {
            outcome.unwrap();
        } else {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("of its quota of"), "{error}");
        }
        assert_eq!(fixture.part_count(), 1 + usize::from(is_within));
    }
}

/// A NAR of a pack that was received, and cannot be moved to its place, is counted.
#[test]
fn a_failure_of_the_storage_after_a_nar_was_received_is_counted() {
    let fixture = Fixture::new();
    let made = Made::new("path");
    let (id, _) = fixture.open(&made);
    let nars = fixture.dir.path().join("nar");
    fs::remove_dir(&nars).unwrap();
    fs::write(&nars, b"a file in place of the directory").unwrap();
    let push = push::find(&fixture.cache, &fixture.token, id).unwrap();
    let failed = push::put_pack(&push, &mut &made.pack()[..], &mut Unlimited);
    assert!(matches!(failed, Err(PushError::Put(_))), "{failed:?}");
    let refused = Statistics::of(&fixture.storage).refused;
    let count = refused
        .iter()
        .find(|(reason, _)| *reason == "storage_failed");
    assert_eq!(count, Some(&("storage_failed", 1)));
}

/// The limit for files that no path uses also counts files that are not recorded yet: those of a
/// pack are recorded together.
#[test]
fn files_of_a_pack_that_are_not_recorded_yet_count_towards_the_limit() {
    let made = ["a", "b", "c"].map(Made::new);
    let sizes = made.each_ref().map(|made| made.nar.len() as u64 + OWN_LEN);
    let end = b"end 1\n".len();
    let mut pack = Vec::new();
    for made in &made {
        let one = made.pack();
        pack.extend_from_slice(&one[..one.len() - end]);
    }
    pack.extend_from_slice(b"end 3\n");
    for (limit, is_within) in [
        (sizes.iter().sum::<u64>(), true),
        (sizes.iter().sum::<u64>() - 1, false),
    ] {
        let fixture = Fixture::with_rules(Rules {
            loose_bytes_max: limit,
            ..Rules::default()
        });
        let (id, _) = fixture.open(&made[0]);
        let push = push::find(&fixture.cache, &fixture.token, id).unwrap();
        let outcome = push::put_pack(&push, &mut &pack[..], &mut Unlimited);
        assert_eq!(outcome.is_ok(), is_within, "{outcome:?}");
        // What was refused does not count.
        let (id, _) = fixture.open(&made[0]);
        let push = push::find(&fixture.cache, &fixture.token, id).unwrap();
        let outcome = push::put_pack(&push, &mut &made[0].pack()[..], &mut Unlimited);
        assert!(outcome.is_ok(), "{outcome:?}");
    }
}
