//! However another process changes the database, the next response is current, even while the
//! catalog is loading and at hundreds of commits per second.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

mod support;

use std::collections::BTreeMap;

use support::{OwnStore, ServerProcess};
use testkit::http1::Connection;
use testkit::sqlite::{SETTINGS, Shell};

const PATH_COUNT: u64 = 5;
const STEP_COUNT: u64 = 600;
/// Number of paths, enough for the catalog to be loaded by its own thread.
const OTHER_COUNT: u64 = 6000;
const BASE_32: &[u8; 32] = b"0123456789abcdfghijklmnpqrsvwxyz";

/// The expected rows: content and signature of each path.
type Model = BTreeMap<u64, (u64, Option<u64>)>;

/// A pseudo-random generator with the same sequence in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

fn hash_part(number: u64) -> String {
    let mut bits = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let digits = (0..32).map(|_| {
        bits = bits.rotate_left(5);
        char::from(BASE_32[usize::try_from(bits % 32).unwrap()])
    });
    digits.collect()
}

fn path(number: u64) -> String {
    format!("/nix/store/{}-path-{number}", hash_part(number))
}

fn nar_size(content: u64) -> u64 {
    112 + 8 * content
}

fn signature(number: u64) -> String {
    // A signature of 64 bytes, whose last bytes hold the low bits of the number.
    format!(
        "test-1:{}{}==",
        "A".repeat(85),
        ["A", "Q", "g", "w"][usize::try_from(number % 4).unwrap()]
    )
}

fn register(number: u64, content: u64) -> String {
    format!(
        "insert into ValidPaths (path, hash, registrationTime, narSize) \
         values ('{}', 'sha256:{content:064x}', 1700000000, {});",
        path(number),
        nar_size(content)
    )
}

fn change(random: &mut Random, model: &mut Model) -> String {
    let number = random.below(PATH_COUNT);
    let path = path(number);
    let content = random.below(100);
    let Some(entry) = model.get_mut(&number) else {
        model.insert(number, (content, None));
        return register(number, content);
    };
    match random.below(4) {
        0 => {
            entry.0 = content;
            format!(
                "update ValidPaths set hash = 'sha256:{content:064x}', narSize = {} \
                 where path = '{path}';",
                nar_size(content)
            )
        }
        1 => {
            entry.1 = Some(content);
            format!(
                "update ValidPaths set sigs = '{}' where path = '{path}';",
                signature(content)
            )
        }
        _ => {
            model.remove(&number);
            format!("delete from ValidPaths where path = '{path}';")
        }
    }
}

#[track_caller]
fn check(connection: &mut Connection, model: &Model, number: u64) {
    let answer = connection.get(&format!("/{}.narinfo", hash_part(number)));
    let Some((content, signed)) = model.get(&number) else {
        assert_eq!(answer.status, 404, "{}", answer.text());
        return;
    };
    assert_eq!(answer.status, 200);
    let text = answer.text();
    let line = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::to_owned)
    };
    assert_eq!(line("StorePath: "), Some(path(number)));
    assert_eq!(line("NarSize: "), Some(nar_size(*content).to_string()));
    assert_eq!(line("Sig: "), signed.map(signature));
}

/// Compares responses with a model of the database after every commit.
#[test]
fn each_response_reflects_the_last_commit() {
    let store = OwnStore::new();
    let mut writer = Shell::open(&store.database(), SETTINGS);
    let others: String = (1000..1000 + OTHER_COUNT)
        .map(|number| register(number, 0))
        .collect();
    writer.run(&format!("begin; {others} commit;"));
    let server = ServerProcess::of_store(store.root());
    // Several connections are usually served by two threads.
    let mut connections = [(); 4].map(|()| Connection::connect(server.addr));
    let mut model = Model::new();
    let mut random = Random(1);
    for step in 0..STEP_COUNT {
        writer.run(&change(&mut random, &mut model));
        let connection = &mut connections[usize::try_from(step % 4).unwrap()];
        for _ in 0..2 {
            check(connection, &model, random.below(PATH_COUNT));
        }
        match random.below(60) {
            0 => writer.run("pragma wal_checkpoint(passive);"),
            1 => writer.run("pragma wal_checkpoint(truncate);"),
            2 => writer = Shell::open(&store.database(), SETTINGS),
            3 => writer.run("vacuum;"),
            _ => {}
        }
    }
    for number in 0..PATH_COUNT {
        for connection in &mut connections {
            check(connection, &model, number);
        }
    }
}
