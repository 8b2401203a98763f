//! Trees, recipes of their NARs, and a storage that assembles NARs.
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write as _;
use std::sync::Arc;

use samovar_nix::nar::Encoder;
use samovar_nix::{HashPart, NarHash, SeekTable, StoreDir};
use samovar_protocol::names::PushId;
use samovar_protocol::push::OpenLine;
use samovar_protocol::recipe::{WINDOW_LOG, Writer};
use samovar_storage::gc::Rules;
use samovar_storage::metadata::{NewToken, tokens};
use samovar_storage::push;
use samovar_storage::push::{Answer, PushError};
use samovar_storage::token::{Rights, Token, TokenHash, now};
use samovar_storage::verify::Unlimited;
use samovar_storage::{Storage, StoredCache};
use sha2::{Digest, Sha256};

pub(crate) const KIB: usize = 1 << 10;
pub(crate) const MIB: usize = 1 << 20;

/// The files of a tree, by name.
pub(crate) type Tree = BTreeMap<String, Vec<u8>>;

pub(crate) fn nar_of(tree: &Tree) -> Vec<u8> {
    let (mut nar, mut encoder) = (Vec::new(), Encoder::new());
    encoder.begin(&mut nar).unwrap();
    encoder.begin_directory(&mut nar).unwrap();
    for (name, content) in tree {
        encoder.entry(&mut nar, name.as_bytes()).unwrap();
        encoder.file(&mut nar, false, content.len() as u64).unwrap();
        nar.extend(content);
        encoder.end_file(&mut nar).unwrap();
        encoder.end_entry(&mut nar).unwrap();
    }
    encoder.end_directory(&mut nar).unwrap();
    encoder.finish().unwrap();
    nar
}

pub(crate) fn hash_of(nar: &[u8]) -> NarHash {
    NarHash::from_bytes(Sha256::digest(nar).into())
}

/// Returns bytes that compress to about a half. They depend on `seed` alone.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut bytes: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        state.to_be_bytes()[0] & 0x0f
    })
    .take(len)
    .collect();
    bytes.iter_mut().step_by(64).for_each(|byte| *byte = b'x');
    bytes
}

/// Returns a recipe of `new` from pieces of `base`, compressed. It finds pieces of the base that
/// begin at multiples of 64 bytes, and at multiples of 8 bytes in the new NAR.
pub(crate) fn recipe(base: &[u8], new: &[u8], is_ascending: bool) -> Vec<u8> {
    const PIECE: usize = 64;
    let mut places = HashMap::new();
    for (index, piece) in base.chunks_exact(PIECE).enumerate() {
        places.entry(piece).or_insert(index * PIECE);
    }
    let mut writer = Writer::new(zstd::Encoder::new(Vec::new(), 1).unwrap()).unwrap();
    let (mut at, mut last) = (0, 0);
    while at < new.len() {
        let piece = new.get(at..at + PIECE);
        match piece.and_then(|piece| places.get(piece)) {
            Some(&offset) if offset >= last || !is_ascending => {
                let equal = base[offset..].iter().zip(&new[at..]);
                let len = equal.take_while(|(base, new)| base == new).count();
                writer.copy(offset as u64, len as u64).unwrap();
                (at, last) = (at + len, offset + len);
            }
            _ => {
                let len = (8 - at % 8).min(new.len() - at);
                writer.data(&new[at..at + len]).unwrap();
                at += len;
            }
        }
    }
    assert_eq!(writer.len(), new.len() as u64);
    writer.finish().unwrap().finish().unwrap()
}

/// Returns a recipe of `new` from the start and the end that it has in common with `base`.
pub(crate) fn recipe_of_edit(base: &[u8], new: &[u8]) -> Vec<u8> {
    let pairs = base.iter().zip(new);
    let start = pairs.take_while(|(base, new)| base == new).count();
    let pairs = base[start..].iter().rev().zip(new[start..].iter().rev());
    let end = pairs.take_while(|(base, new)| base == new).count();
    let mut writer = Writer::new(zstd::Encoder::new(Vec::new(), 1).unwrap()).unwrap();
    writer.copy(0, start as u64).unwrap();
    writer.data(&new[start..new.len() - end]).unwrap();
    writer.copy((base.len() - end) as u64, end as u64).unwrap();
    writer.finish().unwrap().finish().unwrap()
}

/// Compresses the text of a recipe.
pub(crate) fn compress(text: impl AsRef<[u8]>) -> Vec<u8> {
    zstd::encode_all(text.as_ref(), 1).unwrap()
}

/// The forms of a base file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Form {
    Plain,
    Xz,
    OneFrame,
    /// One frame with the maximum window.
    LongWindow,
    /// Independent frames of this length.
    Frames(usize),
    /// Frames of this length, and a seek table.
    Seekable(usize),
}

pub(crate) const FORMS: [Form; 7] = [
    Form::Plain,
    Form::Xz,
    Form::OneFrame,
    Form::Frames(100 * KIB),
    Form::Frames(700 * KIB),
    Form::Seekable(MIB),
    Form::Frames(3 * MIB),
];

impl Form {
    /// Returns the name of the compression, and the file of a NAR.
    pub(crate) fn file(self, nar: &[u8]) -> (&'static str, Vec<u8>) {
        match self {
            Self::Plain => ("none", nar.to_owned()),
            Self::Xz => {
                let options = lzma_rust2::XzOptions::with_preset(0);
                let mut writer = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
                writer.write_all(nar).unwrap();
                ("xz", writer.finish().unwrap())
            }
            Self::OneFrame | Self::LongWindow => {
                let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
                if self == Self::LongWindow {
                    encoder.window_log(27).unwrap();
                }
                encoder.write_all(nar).unwrap();
                ("zstd", encoder.finish().unwrap())
            }
            Self::Frames(len) | Self::Seekable(len) => {
                let (mut file, mut table) = (Vec::new(), SeekTable::default());
                for content in nar.chunks(len) {
                    let frame = zstd::bulk::compress(content, 1).unwrap();
                    table.add(frame.len(), content.len());
                    file.extend(frame);
                }
                if matches!(self, Self::Seekable(_)) {
                    table.write(&mut file);
                }
                ("zstd", file)
            }
        }
    }
}

pub(crate) struct Fixture {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) storage: Arc<Storage>,
    pub(crate) cache: StoredCache,
    pub(crate) token: Token,
    pub(crate) id: PushId,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with_rules(Rules::default())
    }

    pub(crate) fn with_rules(rules: Rules) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store_dir = StoreDir::default();
        let storage = Storage::with_rules(dir.path(), &store_dir, rules, now).unwrap();
        let cache = storage.cache("default", true).unwrap();
        let rights = Rights {
            read: true,
            push: true,
            pin: false,
        };
        let new = NewToken {
            name: "tests".to_owned(),
            cache: None,
            names: None,
            rights,
            expires_at: None,
        };
        let text = b"smv1_a";
        let database = samovar_storage::open_database(dir.path()).unwrap();
        let hash = TokenHash::of(text).unwrap();
        tokens::add(&database, &hash, &new).unwrap();
        let token = cache.authorize(text, now()).unwrap().unwrap();
        let (id, _) = push::open(&cache, &token, &[]).unwrap();
        Self {
            dir,
            storage,
            cache,
            token,
            id,
        }
    }

    /// Uploads a NAR in this form.
    pub(crate) fn send(&self, nar: &[u8], form: Form) {
        let (compression, file) = form.file(nar);
        let hash = samovar_nix::nixbase32::encode(hash_of(nar).as_bytes());
        let head = format!("nar {hash} {compression} {}\n", file.len());
        let pack = [head.as_bytes(), &file, b"end 1\n"].concat();
        let push = push::find(&self.cache, &self.token, self.id).unwrap();
        let outcomes = push::put_pack(&push, &mut &pack[..], &mut Unlimited).unwrap();
        assert_eq!(outcomes[0].refusal, None);
    }

    pub(crate) fn assemble(&self, base: &[u8], recipe: &[u8]) -> Result<(NarHash, u64), PushError> {
        let push = push::find(&self.cache, &self.token, self.id).unwrap();
        push::assemble(
            &push,
            &hash_of(base),
            WINDOW_LOG,
            &mut &recipe[..],
            &mut Unlimited,
        )
    }

    /// Assembles a NAR, and checks it and its file. Returns the file.
    #[track_caller]
    pub(crate) fn assembled(&self, base: &[u8], new: &[u8], recipe: &[u8]) -> Vec<u8> {
        let before = self.files();
        let outcome = self.assemble(base, recipe).unwrap();
        assert_eq!(outcome, (hash_of(new), new.len() as u64));
        assert_eq!(self.answer(new), Answer::Link);
        let mut files = self.files();
        files.retain(|name, _| !before.contains_key(name));
        assert_eq!(files.len(), 1);
        let file = files.into_values().next().unwrap();
        assert!(zstd::decode_all(&*file).unwrap() == new);
        check_seek_table(&file, new.len());
        file
    }

    /// Returns what `open` answers for a path with this NAR.
    pub(crate) fn answer(&self, nar: &[u8]) -> Answer {
        let line = OpenLine {
            hash_part: HashPart::from_bytes([1; 20]),
            nar_hash: hash_of(nar),
            nar_size: nar.len() as u64,
            path: None,
        };
        let (_, answers) = push::open(&self.cache, &self.token, &[line]).unwrap();
        answers[0].clone()
    }

    /// Returns the contents of all NAR files, by name.
    pub(crate) fn files(&self) -> HashMap<String, Vec<u8>> {
        let files = fs::read_dir(self.dir.path().join("nar")).unwrap();
        let files = files.map(|entry| {
            let entry = entry.unwrap();
            let content = fs::read(entry.path()).unwrap();
            (entry.file_name().into_string().unwrap(), content)
        });
        files.collect()
    }

    /// Asserts that nothing of a refused recipe is stored.
    pub(crate) fn assert_only(&self, count: usize) {
        assert_eq!(self.files().len(), count);
        let unfinished = fs::read_dir(self.dir.path().join(".samovar/tmp")).unwrap();
        assert_eq!(unfinished.count(), 0);
    }
}

/// Returns the compressed length and the content length of each frame in a seek table.
pub(crate) fn seek_table(file: &[u8]) -> Vec<(usize, usize)> {
    let number = |bytes: &[u8]| -> usize {
        let number = u32::from_le_bytes(bytes.try_into().unwrap());
        number.try_into().unwrap()
    };
    let (rest, footer) = file.split_at(file.len() - 9);
    assert_eq!(footer[4..], [0, 0xb1, 0xea, 0x92, 0x8f]);
    let count = number(&footer[..4]);
    let (rest, entries) = rest.split_at(rest.len() - 8 * count);
    let (_, head) = rest.split_at(rest.len() - 8);
    assert_eq!(head[..4], [0x5e, 0x2a, 0x4d, 0x18]);
    assert_eq!(number(&head[4..]), 8 * count + 9);
    let lens = entries
        .chunks(8)
        .map(|entry| (number(&entry[..4]), number(&entry[4..])));
    lens.collect()
}

/// Checks that the seek table describes independent frames, and that their lengths keep the rule.
pub(crate) fn check_seek_table(file: &[u8], nar_size: usize) {
    let frames = seek_table(file);
    let mut at = 0;
    for (index, (len, content_len)) in frames.iter().enumerate() {
        let content = zstd::bulk::decompress(&file[at..at + len], *content_len).unwrap();
        assert_eq!(content.len(), *content_len);
        at += len;
        assert!(
            *content_len <= 2 * MIB,
            "frame {index}: {content_len} bytes"
        );
        let is_last = index + 1 == frames.len();
        assert!(
            is_last || *content_len >= 256 * KIB,
            "frame {index}: {content_len} bytes"
        );
    }
    assert_eq!(file.len(), at + 8 + 8 * frames.len() + 9);
    let sum: usize = frames.iter().map(|(_, content_len)| content_len).sum();
    assert_eq!(sum, nar_size);
}

/// A tree with a change of one of its files.
pub(crate) fn changed(tree: &Tree, change: &Change) -> Tree {
    let mut tree = tree.clone();
    let name = |index: usize, tree: &Tree| tree.keys().nth(index % tree.len().max(1)).cloned();
    match change {
        Change::Add(name, content) => {
            tree.insert(name.clone(), content.clone());
        }
        Change::Remove(index) => {
            name(*index, &tree).and_then(|name| tree.remove(&name));
        }
        Change::Rename(index, to) => {
            if let Some(content) = name(*index, &tree).and_then(|name| tree.remove(&name)) {
                tree.insert(to.clone(), content);
            }
        }
        Change::Edit(index, at, bytes) => {
            let name = name(*index, &tree);
            if let Some(content) = name.and_then(|name| tree.get_mut(&name)) {
                let at = at % (content.len() + 1);
                content.splice(at..at, bytes.iter().copied());
            }
        }
    }
    tree
}

#[derive(Debug, Clone)]
pub(crate) enum Change {
    Add(String, Vec<u8>),
    Remove(usize),
    Rename(usize, String),
    Edit(usize, usize, Vec<u8>),
}

/// Returns a tree of 8 MiB.
pub(crate) fn large() -> Tree {
    let file = |index: u64| (format!("{index:02}"), noise(index, 512 * KIB));
    (0..16).map(file).collect()
}
