//! The catalog never gives a stale answer, however registrations, deletions, new hashes, new
//! signatures, checkpoints and replaced databases follow each other.
//!
//! The test plays a server: it keeps what it learned in an epoch and uses it again as long as
//! `check` says that the epoch lasts. Whatever it would answer is compared with what was written.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use rusqlite::Connection;
use samovar_nix::PathInfo;
use samovar_store::{LocalStore, Snapshot, Store};
use support::rows::{self, Journal, Rows};

const PATH_COUNT: u32 = 6;

#[derive(Debug, Clone)]
enum Act {
    Register(u32, u32),
    RegisterMany(u32),
    Delete(u32),
    Sign(u32, u8),
    Checkpoint(&'static str),
    /// A Nix process ends and another one begins.
    Reopen,
    /// Another database with the same paths but one.
    Replace(u32),
    /// The catalog's own database restored through SQLite, with other row numbers.
    Restore,
    Ask(usize, u32),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let path = 0..PATH_COUNT;
    let act = prop_oneof![
        4 => (path.clone(), 0..5_u32).prop_map(|(path, content)| Act::Register(path, content)),
        1 => (1..200_u32).prop_map(Act::RegisterMany),
        3 => path.clone().prop_map(Act::Delete),
        2 => (path.clone(), any::<u8>()).prop_map(|(path, number)| Act::Sign(path, number)),
        1 => prop_oneof![Just("passive"), Just("restart"), Just("truncate")]
            .prop_map(Act::Checkpoint),
        1 => Just(Act::Reopen),
        1 => path.clone().prop_map(Act::Replace),
        1 => Just(Act::Restore),
        8 => (0..2_usize, path).prop_map(|(thread, path)| Act::Ask(thread, path)),
    ];
    prop::collection::vec(act, 1..80)
}

/// What the database holds of a path: its content and its signature.
type Model = BTreeMap<u32, (u32, Option<u8>)>;

/// One I/O thread of a server.
struct Thread {
    snapshot: Arc<Snapshot>,
    learned: BTreeMap<u32, (u64, Option<PathInfo>)>,
}

impl Thread {
    fn ask(&mut self, store: &LocalStore, number: u32) -> Option<PathInfo> {
        let catalog = store.catalog().unwrap();
        if !catalog.check(&mut self.snapshot) {
            self.snapshot = catalog.load().unwrap();
        }
        let hash_part = rows::path(number).hash_part();
        if !self.snapshot.may_contain(&hash_part) {
            return None;
        }
        match self.learned.get(&number) {
            Some((epoch, info)) if *epoch == self.snapshot.epoch => info.clone(),
            _ => {
                let info = store.lookup(hash_part).unwrap();
                self.learned
                    .insert(number, (self.snapshot.epoch, info.clone()));
                info
            }
        }
    }
}

fn play(journal: Journal, acts: Vec<Act>) {
    let place = Rows::new(journal);
    let mut writer = place.writer();
    let store = place.open();
    let mut model = Model::new();
    let mut others = 1000;
    let mut threads = [(); 2].map(|()| Thread {
        snapshot: store.catalog().unwrap().current(),
        learned: BTreeMap::new(),
    });
    for act in acts {
        match act {
            Act::Register(number, content) => {
                if model.insert(number, (content, None)).is_some() {
                    rows::delete(&writer, number);
                }
                rows::register(&writer, number, content);
            }
            Act::RegisterMany(count) => {
                writer.execute_batch("begin").unwrap();
                (others..others + count).for_each(|number| rows::register(&writer, number, 0));
                writer.execute_batch("commit").unwrap();
                others += count;
            }
            Act::Delete(number) => {
                model.remove(&number);
                rows::delete(&writer, number);
            }
            Act::Sign(number, signature) => {
                if let Some(entry) = model.get_mut(&number) {
                    entry.1 = Some(signature);
                }
                rows::sign(&writer, number, &rows::signature(signature));
            }
            Act::Checkpoint(mode) => {
                let pragma = format!("pragma wal_checkpoint({mode})");
                writer.query_row(&pragma, [], |_| Ok(())).unwrap();
            }
            Act::Reopen => {
                writer.close().unwrap();
                writer = place.writer();
            }
            Act::Replace(without) => {
                writer.close().unwrap();
                model.remove(&without);
                place.replace(|new| fill(new, &model));
                writer = place.writer();
                // What the keeper does every 100 ms.
                store.catalog().unwrap().inspect();
            }
            Act::Restore => {
                writer
                    .execute_batch("begin immediate; delete from ValidPaths")
                    .unwrap();
                writer.execute_batch("delete from sqlite_sequence").unwrap();
                fill(&writer, &model);
                writer.execute_batch("commit").unwrap();
            }
            Act::Ask(thread, number) => {
                let answer = threads[thread].ask(&store, number);
                check(answer.as_ref(), model.get(&number));
            }
        }
    }
    for number in 0..PATH_COUNT {
        check(threads[0].ask(&store, number).as_ref(), model.get(&number));
    }
}

fn fill(connection: &Connection, model: &Model) {
    for (&number, &(content, signature)) in model.iter().rev() {
        rows::register(connection, number, content);
        if let Some(signature) = signature {
            rows::sign(connection, number, &rows::signature(signature));
        }
    }
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
fn a_restored_row_with_its_old_number_stands_for_itself_alone() {
    for journal in [Journal::Wal, Journal::Truncate] {
        play(
            journal,
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

/// A failing case is printed whole, so nothing needs to be kept in files.
fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(48)
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn wal_mode(acts in acts()) {
        play(Journal::Wal, acts);
    }

    #[test]
    fn rollback_mode(acts in acts()) {
        play(Journal::Truncate, acts);
    }
}
