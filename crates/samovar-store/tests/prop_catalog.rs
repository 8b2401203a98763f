//! No sequence of registrations, deletions, new hashes, new signatures, checkpoints and replaced
//! databases makes the catalog stale.
//!
//! The test acts as a server: it keeps facts learned in an epoch, and uses them while `check`
//! confirms the epoch. Every result is compared with the test's model. A database that is replaced
//! or overwritten while it is being read is inconsistent for a moment. Only then are errors
//! accepted, until all readers of the old database have finished.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use samovar_nix::PathInfo;
use samovar_store::{LocalStore, Snapshot, Store, StoreError, Unavailable};
use support::rows::{self, Journal, Rows};
use testkit::sqlite::{SETTINGS, Shell};

const PATH_COUNT: u32 = 6;

/// Number of rows, enough for a background load.
const LARGE: u32 = 4500;

#[derive(Debug, Clone)]
enum Act {
    Register(u32, u32),
    RegisterMany(u32),
    Delete(u32),
    /// Changes the hash of an existing row, as Nix's `updatePathInfo` does.
    Rehash(u32, u32),
    Sign(u32, u8),
    Checkpoint(&'static str),
    Vacuum,
    /// A Nix process ends, and another one starts.
    Reopen,
    /// Switches to the other writer. Both have the database open.
    Change,
    /// Replaces the database by one that has the same paths but one.
    Replace(u32),
    /// Restores the database through SQLite, with other row ids.
    Restore,
    /// Copies the database file.
    BackUp,
    /// Overwrites the database file with the copy.
    CopyOver,
    /// Restores the copy with SQLite's backup API, in one commit.
    RestoreCopy,
    Ask(usize, u32),
    /// Waits until the background load has ended.
    Load,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let path = 0..PATH_COUNT;
    let act = prop_oneof![
        8 => (path.clone(), 0..5_u32).prop_map(|(path, content)| Act::Register(path, content)),
        2 => (1..200_u32).prop_map(Act::RegisterMany),
        6 => path.clone().prop_map(Act::Delete),
        3 => (path.clone(), 0..5_u32).prop_map(|(path, content)| Act::Rehash(path, content)),
        4 => (path.clone(), any::<u8>()).prop_map(|(path, number)| Act::Sign(path, number)),
        3 => prop_oneof![Just("passive"), Just("restart"), Just("truncate")]
            .prop_map(Act::Checkpoint),
        1 => Just(Act::Vacuum),
        2 => Just(Act::Reopen),
        2 => Just(Act::Change),
        1 => path.clone().prop_map(Act::Replace),
        1 => Just(Act::Restore),
        1 => Just(Act::BackUp),
        2 => Just(Act::CopyOver),
        1 => Just(Act::RestoreCopy),
        1 => Just(Act::Load),
        20 => (0..2_usize, path).prop_map(|(thread, path)| Act::Ask(thread, path)),
    ];
    prop::collection::vec(act, 1..80)
}

/// A path of the model: its contents and its signature.
type Model = BTreeMap<u32, (u32, Option<u8>)>;

/// The facts of an I/O thread of a server, and of its worker.
struct Thread {
    snapshot: Arc<Snapshot>,
    learned: BTreeMap<u32, (u64, Option<PathInfo>)>,
}

impl Thread {
    fn ask(&mut self, store: &LocalStore, number: u32) -> Result<Option<PathInfo>, StoreError> {
        let catalog = store.catalog().unwrap();
        let hash_part = rows::path(number).hash_part();
        if !catalog.check(&mut self.snapshot) {
            match catalog.refresh()? {
                Some(snapshot) => self.snapshot = snapshot,
                None => return store.lookup(hash_part),
            }
        }
        if !self.snapshot.may_contain(&hash_part) {
            return Ok(None);
        }
        match self.learned.get(&number) {
            Some((epoch, info)) if *epoch == self.snapshot.epoch => Ok(info.clone()),
            _ => {
                let info = store.lookup(hash_part)?;
                self.learned
                    .insert(number, (self.snapshot.epoch, info.clone()));
                Ok(info)
            }
        }
    }
}

/// The writers are separate processes, like Nix. A connection of this process would share its
/// record locks with the store's connections, and lose them when the store closes the WAL index.
struct Writer<'place> {
    place: &'place Rows,
    /// The two writers. The first one is in use.
    shells: [Option<Shell>; 2],
}

impl<'place> Writer<'place> {
    fn new(place: &'place Rows) -> Self {
        Self {
            place,
            shells: [const { None }; 2],
        }
    }

    fn write(&mut self, sql: &str) {
        let place = self.place;
        self.shells[0]
            .get_or_insert_with(|| Shell::open(&place.database(), SETTINGS))
            .run(sql);
    }

    fn close(&mut self) {
        self.shells = [const { None }; 2];
    }

    fn change(&mut self) {
        self.shells.swap(0, 1);
    }
}

fn play(journal: Journal, path_count: u32, acts: Vec<Act>) {
    let place = Rows::new(journal);
    let mut writer = Writer::new(&place);
    let mut others = 1000;
    let many = |begin: u32, count: u32| {
        let rows = (begin..begin + count).map(|number| register(number, 0));
        format!("begin; {} commit;", rows.collect::<String>())
    };
    writer.write(&many(others, path_count));
    others += path_count;
    let store = place.open();
    let mut model = Model::new();
    let mut backup = None;
    let mut threads = [(); 2].map(|()| Thread {
        snapshot: store.catalog().unwrap().current(),
        learned: BTreeMap::new(),
    });
    for act in acts {
        match act {
            Act::Register(number, content) => {
                // Two commits, as Nix makes.
                if model.insert(number, (content, None)).is_some() {
                    writer.write(&delete(number));
                }
                writer.write(&register(number, content));
            }
            Act::RegisterMany(count) => {
                writer.write(&many(others, count));
                others += count;
            }
            Act::Delete(number) => {
                model.remove(&number);
                writer.write(&delete(number));
            }
            Act::Rehash(number, content) => {
                if let Some(entry) = model.get_mut(&number) {
                    entry.0 = content;
                }
                writer.write(&format!(
                    "update ValidPaths set narSize = {}, hash = '{}' where path = '{}';",
                    nar_size(content),
                    rows::hash(content),
                    rows::full(number)
                ));
            }
            Act::Sign(number, signature) => {
                if let Some(entry) = model.get_mut(&number) {
                    entry.1 = Some(signature);
                }
                writer.write(&sign(number, signature));
            }
            Act::Checkpoint(mode) => {
                writer.write(&format!("pragma wal_checkpoint({mode});"));
            }
            Act::Vacuum => writer.write("vacuum;"),
            Act::Reopen => writer.close(),
            Act::Change => writer.change(),
            Act::Replace(without) => {
                writer.close();
                model.remove(&without);
                place.replace(|new| new.execute_batch(&fill(&model)).unwrap());
                // A background thread calls this every 100 ms.
                store.catalog().unwrap().inspect();
                recover(&store, &mut threads, &model);
            }
            Act::Restore => writer.write(&format!(
                "begin immediate; delete from ValidPaths; delete from sqlite_sequence; {} commit;",
                fill(&model)
            )),
            Act::BackUp => {
                settle(&mut writer, journal);
                copy(&place.database(), &place.dir().join("backup"));
                backup = Some((model.clone(), others));
            }
            Act::CopyOver => {
                if let Some((then, others_then)) = &backup {
                    settle(&mut writer, journal);
                    writer.close();
                    copy(&place.dir().join("backup"), &place.database());
                    (model, others) = (then.clone(), *others_then);
                    store.catalog().unwrap().inspect();
                    recover(&store, &mut threads, &model);
                }
            }
            Act::RestoreCopy => {
                if let Some((then, others_then)) = &backup {
                    writer.close();
                    let restore = format!(".restore {}", place.dir().join("backup").display());
                    Shell::open(&place.database(), SETTINGS).run(&restore);
                    (model, others) = (then.clone(), *others_then);
                }
            }
            Act::Load => load(&store),
            Act::Ask(thread, number) => {
                let answer = threads[thread].ask(&store, number).unwrap();
                check(answer.as_ref(), model.get(&number));
            }
        }
    }
    for number in 0..PATH_COUNT {
        for thread in &mut threads {
            let answer = thread.ask(&store, number).unwrap();
            check(answer.as_ref(), model.get(&number));
        }
    }
}

/// Looks all paths up until there is no error. An earlier write may have found the database
/// damaged: SQLite trusts the WAL index while any thread, including the background load, has the
/// database open.
fn recover(store: &LocalStore, threads: &mut [Thread], model: &Model) {
    retry(|| {
        let mut outcome = Ok(());
        for thread in &mut *threads {
            for number in 0..PATH_COUNT {
                match thread.ask(store, number) {
                    Ok(answer) => check(answer.as_ref(), model.get(&number)),
                    Err(error) => outcome = Err(error),
                }
            }
        }
        outcome.and(store.catalog().unwrap().load().map(drop))
    });
}

/// Waits until the background load has ended. Several replacements in a row make it fail, and it
/// reports that for a second.
fn load(store: &LocalStore) {
    retry(|| match store.catalog().unwrap().load() {
        Err(error @ StoreError::Unavailable(Unavailable::BeingReplaced)) => Err(error),
        other => {
            other.unwrap();
            Ok(())
        }
    });
}

/// Retries for up to a minute.
#[track_caller]
fn retry(mut act: impl FnMut() -> Result<(), StoreError>) {
    let start = Instant::now();
    while let Err(error) = act() {
        assert!(start.elapsed() < testkit::PATIENCE, "still {error:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Checkpoints all commits into the file, so that it can be copied.
fn settle(writer: &mut Writer<'_>, journal: Journal) {
    if journal == Journal::Wal {
        writer.write("pragma wal_checkpoint(truncate);");
    }
}

/// Copies in another process: closing the file in this process would drop the locks of all its
/// connections.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    let copied = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

fn nar_size(content: u32) -> u32 {
    112 + content * 8
}

fn register(number: u32, content: u32) -> String {
    format!(
        "insert into ValidPaths (path, hash, registrationTime, narSize) \
         values ('{}', '{}', 1700000000, {});",
        rows::full(number),
        rows::hash(content),
        nar_size(content)
    )
}

fn delete(number: u32) -> String {
    format!(
        "delete from ValidPaths where path = '{}';",
        rows::full(number)
    )
}

fn sign(number: u32, signature: u8) -> String {
    format!(
        "update ValidPaths set sigs = '{}' where path = '{}';",
        rows::signature(signature),
        rows::full(number)
    )
}

fn fill(model: &Model) -> String {
    let mut sql = String::new();
    for (&number, &(content, signature)) in model.iter().rev() {
        sql += &register(number, content);
        if let Some(signature) = signature {
            write!(sql, "{}", sign(number, signature)).unwrap();
        }
    }
    sql
}

#[track_caller]
fn check(answer: Option<&PathInfo>, expected: Option<&(u32, Option<u8>)>) {
    let answer = answer.map(|info| {
        (
            info.nar_hash.to_string(),
            info.signatures.iter().map(ToString::to_string).collect(),
        )
    });
    let expected = expected.map(|(content, signature)| {
        let hash = samovar_nix::NarHash::parse(&rows::hash(*content)).unwrap();
        let signatures: Vec<String> = signature
            .iter()
            .map(|&byte| rows::signature(byte))
            .collect();
        (hash.to_string(), signatures)
    });
    assert_eq!(answer, expected);
}

#[test]
fn a_restored_row_with_its_old_id() {
    for journal in [Journal::Wal, Journal::Truncate] {
        play(
            journal,
            0,
            vec![
                Act::Register(2, 0),
                Act::Register(2, 0),
                Act::Ask(0, 0),
                Act::Register(3, 0),
                Act::Restore,
            ],
        );
    }
}

/// As many commits after the copy as before it lead to the same change counter.
#[test]
fn a_copy_with_the_same_change_counter() {
    for journal in [Journal::Wal, Journal::Truncate] {
        play(
            journal,
            0,
            vec![
                Act::Register(0, 0),
                Act::BackUp,
                Act::Register(1, 1),
                Act::Ask(0, 1),
                Act::Ask(0, 2),
                Act::CopyOver,
                Act::Register(2, 2),
                Act::Ask(1, 2),
                Act::Ask(0, 1),
                Act::Ask(0, 2),
            ],
        );
    }
}

/// A backup restores rows with their old ids, which had been deleted before the load.
#[test]
fn a_backup_from_before_a_deletion() {
    for journal in [Journal::Wal, Journal::Truncate] {
        for restore in [Act::CopyOver, Act::RestoreCopy] {
            for path_count in [0, LARGE] {
                play(
                    journal,
                    path_count,
                    vec![
                        Act::Register(1, 0),
                        Act::RegisterMany(50),
                        Act::BackUp,
                        Act::Delete(1),
                        Act::Load,
                        Act::Ask(0, 1),
                        restore.clone(),
                        Act::Ask(0, 1),
                    ],
                );
            }
        }
    }
}

/// No regression files are written, because failing cases are printed in full.
fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(64)
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn wal_mode(path_count in path_count(), acts in acts()) {
        play(Journal::Wal, path_count, acts);
    }

    #[test]
    fn rollback_mode(path_count in path_count(), acts in acts()) {
        play(Journal::Truncate, path_count, acts);
    }
}

fn path_count() -> impl Strategy<Value = u32> {
    prop_oneof![2 => Just(0), 2 => Just(300), 1 => Just(LARGE)]
}
