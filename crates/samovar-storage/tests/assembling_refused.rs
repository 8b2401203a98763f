//! A recipe that is invalid, costs too much or has no usable base is refused with its reason, and
//! nothing of it is stored.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support_assemble;

use std::fs;
use std::io::{self, Read, Write as _};
use std::sync::mpsc;
use std::thread;

use samovar_nix::nar::Encoder;
use samovar_protocol::recipe::{OPERATION_COUNT_MAX, WINDOW_LOG, WINDOW_LOG_MAX, Writer};
use samovar_storage::PutError;
use samovar_storage::gc::Rules;
use samovar_storage::push::{AssembleError, PushError};
use samovar_storage::verify::{Memory, MemoryError, Unlimited};
use samovar_storage::{Statistics, push};
use support_assemble::{
    Change, Fixture, Form, MIB, Tree, changed, compress, hash_of, large, nar_of, recipe,
};

#[test]
fn invalid_recipes_are_refused_and_nothing_is_stored() {
    let fixture = Fixture::new();
    let base = nar_of(&large());
    fixture.send(&base, Form::Seekable(MIB));
    let size = base.len();
    let whole = compress(format!("samovar-recipe 1\ncopy 0 {size}\nend {size}\n"));
    let mut longer = whole.clone();
    longer.extend(b"more");
    let copies = "copy 0 1\n".repeat(OPERATION_COUNT_MAX + 1);
    let zeros = [
        b"samovar-recipe 1\ndata 20000000\n".to_vec(),
        vec![0; 20_000_000],
    ]
    .concat();
    for (recipe, expected) in [
        (b"".to_vec(), "its zstd stream is cut short"),
        (
            b"samovar-recipe 1\nend 0\n".to_vec(),
            "not a valid zstd stream",
        ),
        (
            whole[..whole.len() - 1].to_vec(),
            "its zstd stream is cut short",
        ),
        (longer, "not a valid zstd stream"),
        (compress("samovar-recipe 2\nend 0\n"), "start with the line"),
        (
            compress("samovar-recipe 1\ncopy 0 8\n"),
            "before its line \"end\"",
        ),
        (
            compress("samovar-recipe 1\ndata 9\nabc"),
            "before its line \"end\"",
        ),
        (
            compress("samovar-recipe 1\nmove 0 8\n"),
            "operation 1 is not",
        ),
        (
            compress("samovar-recipe 1\nend 0\n\n"),
            "bytes follow the line \"end\"",
        ),
        (
            compress(format!("samovar-recipe 1\ncopy 0 {size}\nend 7\n")),
            "states a NAR of 7 bytes",
        ),
        (
            compress(format!("samovar-recipe 1\ncopy 8 {size}\nend {size}\n")),
            "operation 1 copies beyond the end",
        ),
        (
            compress(format!(
                "samovar-recipe 1\ndata 1\nxcopy {} 2\nend 3\n",
                u64::MAX
            )),
            "operation 2 copies beyond the end",
        ),
        (compress("samovar-recipe 1\nend 0\n"), "not a NAR"),
        (
            compress("samovar-recipe 1\ndata 3\nabcend 3\n"),
            "not a NAR",
        ),
        (
            compress("samovar-recipe 1\ncopy 0 100\nend 100\n"),
            "not a NAR",
        ),
        (
            compress(format!(
                "samovar-recipe 1\ncopy 0 {size}\ncopy 0 8\nend {}\n",
                size + 8
            )),
            "bytes follow the end of the NAR",
        ),
        (
            compress(format!("samovar-recipe 1\n{copies}end 0\n")),
            "more than 1000000",
        ),
        (compress(&zeros), "not a NAR"),
    ] {
        let refused = fixture.assemble(&base, &recipe).unwrap_err();
        let reason = refused.to_string();
        assert!(reason.contains(expected), "{expected:?} in {reason:?}");
        fixture.assert_only(1);
    }
}

#[test]
fn the_work_of_a_recipe_is_limited() {
    let fixture = Fixture::new();
    let base = nar_of(&large());
    fixture.send(&base, Form::Seekable(MIB));
    let size = base.len() as u64;
    // Returns a recipe of a file that contains these pieces of the base.
    let recipe = |pieces: &[(u64, u64)]| {
        let sum: u64 = pieces.iter().map(|(_, len)| len).sum();
        let (mut start, mut encoder) = (Vec::new(), Encoder::new());
        encoder.begin(&mut start).unwrap();
        encoder.file(&mut start, false, sum).unwrap();
        let mut writer = Writer::new(zstd::Encoder::new(Vec::new(), 1).unwrap()).unwrap();
        writer.data(&start).unwrap();
        for (offset, len) in pieces {
            writer.copy(*offset, *len).unwrap();
        }
        writer
            .data(&vec![0; usize::try_from(sum.wrapping_neg() % 8).unwrap()])
            .unwrap();
        writer.data(b"\x01\0\0\0\0\0\0\0)\0\0\0\0\0\0\0").unwrap();
        writer.finish().unwrap().finish().unwrap()
    };
    // Copies of 4 times the base and 64 MiB are the most.
    let max = 4 * size + 64 * MIB as u64;
    let mut pieces = vec![(0, size); usize::try_from(max / size).unwrap()];
    pieces.push((0, max % size));
    fixture.assemble(&base, &recipe(&pieces)).unwrap();
    pieces.push((7, 1));
    let refused = fixture.assemble(&base, &recipe(&pieces)).unwrap_err();
    assert!(
        matches!(refused, PushError::Assemble(AssembleError::Work)),
        "{refused:?}"
    );
    // Each of these copies decompresses a frame of 1 MiB.
    let scattered = |count: u64| -> Vec<(u64, u64)> {
        let piece = |index: u64| (index * 5 % 7 * MIB as u64, 1);
        (0..count).map(piece).collect()
    };
    let count = max / MIB as u64;
    fixture.assemble(&base, &recipe(&scattered(count))).unwrap();
    let refused = fixture
        .assemble(&base, &recipe(&scattered(count + 1)))
        .unwrap_err();
    assert!(
        matches!(refused, PushError::Assemble(AssembleError::Work)),
        "{refused:?}"
    );
}

#[test]
fn a_recipe_of_zeros_is_accepted() {
    let fixture = Fixture::new();
    let base = nar_of(&Tree::new());
    fixture.send(&base, Form::Plain);
    let len = 100 * MIB as u64;
    let (mut start, mut encoder) = (Vec::new(), Encoder::new());
    encoder.begin(&mut start).unwrap();
    encoder.file(&mut start, false, len).unwrap();
    let mut end = Vec::new();
    encoder.end_file(&mut end).unwrap();
    encoder.finish().unwrap();
    let nar_len = (start.len() + end.len()) as u64 + len;
    let mut recipe = zstd::Encoder::new(Vec::new(), 1).unwrap();
    write!(recipe, "samovar-recipe 1\ndata {nar_len}\n").unwrap();
    recipe.write_all(&start).unwrap();
    for _ in 0..100 {
        recipe.write_all(&vec![0; MIB]).unwrap();
    }
    recipe.write_all(&end).unwrap();
    writeln!(recipe, "end {nar_len}").unwrap();
    let recipe = recipe.finish().unwrap();
    let (_, nar_size) = fixture.assemble(&base, &recipe).unwrap();
    assert_eq!(nar_size, nar_len);
}

#[test]
fn a_damaged_or_lost_base_is_not_used() {
    let base = nar_of(&large());
    let new = nar_of(&changed(&large(), &Change::Edit(3, 7, b"changed".to_vec())));
    let recipe = recipe(&base, &new, true);
    for form in [Form::Plain, Form::Xz, Form::OneFrame, Form::Seekable(MIB)] {
        let fixture = Fixture::new();
        fixture.send(&base, form);
        let dir = fixture.dir.path().join("nar");
        let path = fs::read_dir(&dir).unwrap().next().unwrap().unwrap().path();
        let mut file = fs::read(&path).unwrap();
        let middle = file.len() / 2;
        file[middle] ^= 1;
        fs::write(&path, &file).unwrap();
        let refused = fixture.assemble(&base, &recipe).unwrap_err();
        assert!(
            matches!(refused, PushError::Assemble(AssembleError::Damaged)),
            "{form:?}: {refused:?}"
        );
        fs::write(&path, b"short").unwrap();
        let refused = fixture.assemble(&base, &recipe).unwrap_err();
        assert!(
            matches!(refused, PushError::Assemble(AssembleError::NoBase(_))),
            "{form:?}: {refused:?}"
        );
        fixture.assert_only(1);
    }
}

#[test]
fn the_quota_ends_an_assembly() {
    let mut fixture = Fixture::new();
    let base = nar_of(&large());
    fixture.send(&base, Form::Seekable(MIB));
    let new = nar_of(&changed(&large(), &Change::Remove(3)));
    let recipe = recipe(&base, &new, true);
    fixture.cache = fixture.cache.clone().with_quota(Some(MIB as u64));
    let refused = fixture.assemble(&base, &recipe).unwrap_err();
    assert!(
        matches!(refused, PushError::Put(PutError::Narinfo(_))),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("quota"), "{refused}");
    fixture.assert_only(1);
    fixture.cache = fixture.cache.clone().with_quota(Some(16 * MIB as u64));
    fixture.assembled(&base, &new, &recipe);
}

#[test]
fn files_that_no_path_uses_are_limited() {
    let base = nar_of(&large());
    let rules = Rules {
        loose_bytes_max: Form::Seekable(MIB).file(&base).1.len() as u64 * 3 / 2,
        ..Rules::default()
    };
    let fixture = Fixture::with_rules(rules);
    fixture.send(&base, Form::Seekable(MIB));
    let new = nar_of(&changed(&large(), &Change::Remove(3)));
    let refused = fixture
        .assemble(&base, &recipe(&base, &new, true))
        .unwrap_err();
    assert!(
        refused.to_string().contains("that no path uses"),
        "{refused}"
    );
    fixture.assert_only(1);
}

/// Records the reserved memory.
struct Reserved(Vec<u64>);

impl Memory for Reserved {
    fn reserve(&mut self, len: u64) -> Result<(), MemoryError> {
        self.0.push(len);
        Ok(())
    }
}

/// A server without free memory.
struct Nothing;

impl Memory for Nothing {
    fn reserve(&mut self, _len: u64) -> Result<(), MemoryError> {
        Err(MemoryError::Busy)
    }
}

/// The most memory that uploads with one token may use, in bytes.
const TOKEN_MEMORY: u64 = 160 << 20;

#[test]
fn memory_is_reserved_once_before_the_recipe_is_read() {
    let base = nar_of(&large());
    let recipe = recipe(&base, &base, true);
    for (form, window_len) in [
        (Form::Plain, 0),
        (Form::Xz, 64 << 20),
        (Form::LongWindow, 128 << 20),
        (Form::Seekable(MIB), 0),
        (Form::Frames(5 * MIB), 128 << 20),
    ] {
        let fixture = Fixture::new();
        fixture.send(&base, form);
        let push = push::find(&fixture.cache, &fixture.token, fixture.id).unwrap();
        let mut memory = Reserved(Vec::new());
        push::assemble(
            &push,
            &hash_of(&base),
            WINDOW_LOG,
            &mut &recipe[..],
            &mut memory,
        )
        .unwrap();
        assert_eq!(memory.0, [(32 << 20) + window_len], "{form:?}");
        assert!(memory.0[0] <= TOKEN_MEMORY);
        let mut source = &recipe[..];
        let busy = push::assemble(
            &push,
            &hash_of(&base),
            WINDOW_LOG,
            &mut source,
            &mut Nothing,
        );
        assert!(
            matches!(busy, Err(PushError::Put(PutError::Busy))),
            "{busy:?}"
        );
        assert_eq!(source.len(), recipe.len());
    }
}

#[test]
fn the_window_of_a_recipe_has_the_limit_that_the_client_states() {
    let base = nar_of(&large());
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(WINDOW_LOG_MAX).unwrap();
    let plain = zstd::decode_all(&recipe(&base, &base, true)[..]).unwrap();
    std::io::Write::write_all(&mut encoder, &plain).unwrap();
    let long = encoder.finish().unwrap();
    let assemble = |form, window_log| {
        let fixture = Fixture::new();
        fixture.send(&base, form);
        let push = push::find(&fixture.cache, &fixture.token, fixture.id).unwrap();
        push::assemble(
            &push,
            &hash_of(&base),
            window_log,
            &mut &long[..],
            &mut Unlimited,
        )
        .map_err(|error| error.to_string())
    };
    let largest = WINDOW_LOG_MAX;
    assert!(assemble(Form::Seekable(MIB), largest).is_ok());
    let refused = assemble(Form::Seekable(MIB), largest - 1).unwrap_err();
    assert!(
        refused.contains("window of more than 67108864"),
        "{refused}"
    );
    let refused = assemble(Form::LongWindow, largest).unwrap_err();
    assert!(refused.contains("need more than 136 MiB"), "{refused}");
}

/// A body that ends with an error.
struct Aborted<'a>(&'a [u8]);

impl Read for Aborted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buffer)? {
            0 => Err(io::ErrorKind::ConnectionReset.into()),
            len => Ok(len),
        }
    }
}

#[test]
fn an_aborted_request_leaves_nothing() {
    let fixture = Fixture::new();
    let base = nar_of(&large());
    fixture.send(&base, Form::Seekable(MIB));
    let new = nar_of(&changed(&large(), &Change::Remove(3)));
    let recipe = recipe(&base, &new, true);
    for len in [0, 1, recipe.len() / 2, recipe.len() - 1] {
        let push = push::find(&fixture.cache, &fixture.token, fixture.id).unwrap();
        let mut source = Aborted(&recipe[..len]);
        let aborted = push::assemble(
            &push,
            &hash_of(&base),
            WINDOW_LOG,
            &mut source,
            &mut Unlimited,
        );
        assert!(
            matches!(&aborted, Err(PushError::Put(PutError::Source(error)))
                if error.kind() == io::ErrorKind::ConnectionReset),
            "{aborted:?}"
        );
        fixture.assert_only(1);
    }
}

/// A body that arrives only after `rest` was sent.
struct Late<'a> {
    body: &'a [u8],
    is_waiting: mpsc::Sender<()>,
    rest: mpsc::Receiver<()>,
}

impl Read for Late<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Only the first call of each finds a receiver or a message.
        self.is_waiting.send(()).ok();
        self.rest.recv().ok();
        self.body.read(buffer)
    }
}

#[test]
fn a_push_assembles_one_nar_from_a_base_at_a_time() {
    let fixture = Fixture::new();
    let base = nar_of(&large());
    fixture.send(&base, Form::Seekable(MIB));
    let new = nar_of(&changed(&large(), &Change::Remove(3)));
    let recipe = recipe(&base, &new, true);
    let (is_waiting, waiting) = mpsc::channel();
    let (go_on, rest) = mpsc::channel();
    thread::scope(|scope| {
        let (fixture, base, body) = (&fixture, &base, &recipe);
        let first = scope.spawn(move || {
            let mut source = Late {
                body,
                is_waiting,
                rest,
            };
            let push = push::find(&fixture.cache, &fixture.token, fixture.id).unwrap();
            push::assemble(
                &push,
                &hash_of(base),
                WINDOW_LOG,
                &mut source,
                &mut Unlimited,
            )
            .unwrap()
        });
        waiting.recv().unwrap();
        let refused = fixture.assemble(base, body).unwrap_err();
        assert!(
            matches!(refused, PushError::Assemble(AssembleError::InProgress)),
            "{refused:?}"
        );
        drop(go_on);
        assert_eq!(first.join().unwrap().0, hash_of(&new));
    });
    fixture.assemble(&base, &recipe).unwrap();
}

#[test]
fn assemblies_are_counted_like_other_uploads() {
    let fixture = Fixture::new();
    let base = nar_of(&large());
    fixture.send(&base, Form::Seekable(MIB));
    let before = Statistics::of(&fixture.storage);
    let new = nar_of(&changed(&large(), &Change::Remove(3)));
    let good = recipe(&base, &new, true);
    fixture.assemble(&base, &good).unwrap();
    let bad = compress("samovar-recipe 1\nend 0\n");
    fixture.assemble(&base, &bad).unwrap_err();
    let wrong = compress("samovar-recipe 2\nend 0\n");
    fixture.assemble(&base, &wrong).unwrap_err();
    let push = push::find(&fixture.cache, &fixture.token, fixture.id).unwrap();
    let assemble = |source: &mut dyn Read, memory: &mut dyn Memory| {
        push::assemble(&push, &hash_of(&base), WINDOW_LOG, source, memory)
    };
    assemble(&mut Aborted(&good[..9]), &mut Unlimited).unwrap_err();
    assemble(&mut &good[..], &mut Nothing).unwrap_err();
    let after = Statistics::of(&fixture.storage);
    let uploads = |outcome: &str| {
        let count = |uploads: &[(&str, &str, u64)]| -> u64 {
            let found = uploads
                .iter()
                .find(|row| row.0 == "nar" && row.1 == outcome);
            found.unwrap().2
        };
        count(&after.uploads) - count(&before.uploads)
    };
    assert_eq!(
        ["accepted", "refused", "aborted"].map(uploads),
        [1, 3, 1],
        "{after:?}"
    );
    let refused = |reason: &str| {
        let found = after.refused.iter().find(|row| row.0 == reason);
        found.unwrap().1
    };
    assert_eq!(["nar", "busy"].map(refused), [2, 1], "{after:?}");
    let received = after.received_bytes - before.received_bytes;
    let sent = good.len() + bad.len() + wrong.len() + 9;
    assert_eq!(received, sent as u64);
    let verified = after.verified_bytes - before.verified_bytes;
    assert_eq!(verified, new.len() as u64);
}
