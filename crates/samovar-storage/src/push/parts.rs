//! Receives and joins parts: a large NAR file in several requests.
//!
//! Parts are not flushed to the disk, because a client can send a lost part again. A power cut may
//! damage parts, so a storage removes all parts when it is opened after a boot.

use crate::metadata::pushes;
use std::fmt;
use std::io::{self, Read};

use samovar_nix::narinfo::Compression;
use samovar_nix::{Hash, NarHash, nixbase32};
use samovar_protocol::names::PushId;
use samovar_protocol::push::{BODY_LEN_MAX, PackLine};
use samovar_text::human;
use sha2::{Digest as _, Sha256};

use super::pack::receive_nar;
use super::{Push, PushError, holds_known};
use crate::error::StorageError;
use crate::layout::PART_PREFIX;
use crate::objects::Objects;
use crate::receive::PutError;
use crate::storage::counters::{Kind, Reason, Received};
use crate::storage::{Storage, nar};
use crate::token::Token;
use crate::verify::Memory;

/// Maximum number that a part may have within its NAR file.
const PART_NUMBER_MAX: u32 = 10_000;

/// Minimum length of a part that is not the last of its file, in bytes. It is below what proxies
/// allow as a request body, and so large that [`PART_COUNT_MAX`] parts of few files are a gigabyte.
const PART_LEN_MIN: u64 = 64 << 10;

/// Maximum number of stored parts of one token. Each upload of a part lists all parts of its token.
const PART_COUNT_MAX: usize = 16_384;

/// Maximum total length of the parts of a token, in bytes.
const PARTS_LEN_MAX: u64 = 100 << 30;

/// Length of the buffer for receiving a part, in bytes.
const BUFFER_LEN: usize = 128 << 10;

/// Number of bytes of a NAR's hash in the keys of its parts: enough to tell the files of one push
/// apart. The joined file is compared with the whole hash.
const NAR_HASH_LEN: usize = 8;

/// The key of a stored part. It contains all that the server knows about the part. It is shorter
/// than 133 bytes, because S3 engines that keep objects in files may limit the length of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartKey {
    /// The push to which the part belongs.
    pub push: PushId,
    /// First bytes of the hash of the NAR to whose file the part belongs.
    pub nar_hash: [u8; NAR_HASH_LEN],
    /// Number of the part, from 1.
    pub number: u32,
    /// Length of the part, in bytes.
    pub len: u64,
    /// SHA-256 of the part.
    pub sha256: [u8; 32],
}

impl PartKey {
    /// Parses the key of an object. Returns `None` if it is not the key of a part.
    #[must_use]
    pub fn parse(key: &str) -> Option<Self> {
        let (push, name) = key.strip_prefix(PART_PREFIX)?.split_once('/')?;
        let mut words = name.split('-');
        let mut word = || words.next();
        let key_of = Self {
            push: PushId::parse(push)?,
            nar_hash: nixbase32::decode_array(word()?.as_bytes()).ok()?,
            number: word()?.parse().ok()?,
            len: word()?.parse().ok()?,
            sha256: nixbase32::decode_array(word()?.as_bytes()).ok()?,
        };
        (key_of.to_string() == key).then_some(key_of)
    }

    fn is_of(&self, push: PushId, nar_hash: &NarHash) -> bool {
        self.push == push && self.nar_hash == first_bytes(nar_hash)
    }
}

impl fmt::Display for PartKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (push, number, len) = (self.push, self.number, self.len);
        let nar_hash = nixbase32::encode(&self.nar_hash);
        let sha256 = nixbase32::encode(&self.sha256);
        write!(f, "{PART_PREFIX}{push}/{nar_hash}-{number}-{len}-{sha256}")
    }
}

/// Returns the part of a NAR's hash that is in the keys of its parts.
fn first_bytes(nar_hash: &NarHash) -> [u8; NAR_HASH_LEN] {
    std::array::from_fn(|at| nar_hash.as_bytes()[at])
}

/// Reason why a request about parts is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartError {
    /// The number of the part is out of range.
    #[error("the part has the number {0}; parts have numbers from 1 to {PART_NUMBER_MAX}")]
    Number(u32),
    /// The part is empty or too long.
    #[error("the part has {0} bytes; a part has at least one byte and at most {BODY_LEN_MAX}")]
    Len(u64),
    /// The SHA-256 of the part is not the one in its URL.
    #[error(
        "the URL states the SHA-256 {}, but the part has {}; upload the part again",
        Hash::sha256(.stated).base16(), Hash::sha256(.found).base16()
    )]
    Sha256 {
        /// SHA-256 in the URL.
        stated: [u8; 32],
        /// SHA-256 of the body.
        found: [u8; 32],
    },
    /// The lengths of two parts of the same file do not match.
    #[error(
        "part {number} has {len} bytes and part {other} has {other_len}; all parts of a file have \
         the same length, except that the last one may be shorter"
    )]
    OtherLen {
        /// Number of one part.
        number: u32,
        /// Length of this part, in bytes.
        len: u64,
        /// Number of another part.
        other: u32,
        /// Length of the other part, in bytes.
        other_len: u64,
    },
    /// A part that is not the last one of its file is too short.
    #[error(
        "part {number} has {len} bytes; each part of a file but the last has at least \
         {PART_LEN_MIN} bytes"
    )]
    Short {
        /// Number of the part.
        number: u32,
        /// Length of the part, in bytes.
        len: u64,
    },
    /// A part with this number but another length is already stored.
    #[error("part {number} has {len} bytes, but was uploaded with {stored_len} bytes before")]
    Replaced {
        /// Number of both parts.
        number: u32,
        /// Length of the refused part, in bytes.
        len: u64,
        /// Length of the stored part, in bytes.
        stored_len: u64,
    },
    /// The token has too many parts, or too many bytes in parts.
    #[error(
        "the parts of the token have {}, or are {count}; the limits are {} and {PART_COUNT_MAX}: \
         join the parts, or delete pushes that are not needed", human(*len), human(PARTS_LEN_MAX)
    )]
    TooMany {
        /// Number of the token's parts, including the refused one.
        count: usize,
        /// Total length of these parts, in bytes.
        len: u64,
    },
    /// A part to join was not uploaded.
    #[error("part {0} is missing: upload it, then repeat the request")]
    Missing(u32),
    /// A join of the same parts is in progress.
    #[error("a join of this NAR is in progress: repeat the request later")]
    Joining,
}

/// Returns the stored parts of a NAR file, sorted by number.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn parts(push: &Push<'_>, nar_hash: &NarHash) -> Result<Vec<PartKey>, StorageError> {
    let storage = &*push.stored.storage;
    let mut parts = Vec::new();
    let directory = format!("{}/", part_directory(&push.id.to_string()));
    storage.objects.list_states(&directory, &mut |key, state| {
        let part = PartKey::parse(key).filter(|part| part.is_of(push.id, nar_hash));
        parts.extend(part.filter(|part| state.len == part.len));
        Ok(())
    })?;
    parts.sort_by_key(|part| part.number);
    // Two simultaneous requests may have stored two parts with the same number: use one of them.
    parts.dedup_by_key(|part| part.number);
    Ok(parts)
}

/// Receives a part of `len` bytes. When this returns, the part survives a crash of the server, but
/// not a power cut.
///
/// # Errors
///
/// [`PushError::Part`] if the part is refused. Other errors.
pub fn put_part(
    push: &Push<'_>,
    nar_hash: NarHash,
    number: u32,
    len: u64,
    sha256: [u8; 32],
    source: &mut dyn Read,
) -> Result<(), PushError> {
    let part = PartKey {
        push: push.id,
        nar_hash: first_bytes(&nar_hash),
        number,
        len,
        sha256,
    };
    let outcome = receive_part(push, &nar_hash, &part, source);
    if let Err(PushError::Put(error)) = &outcome {
        let counters = &push.stored.storage.counters;
        counters.reject(Kind::Nar, Reason::of(error));
    }
    outcome
}

fn receive_part(
    push: &Push<'_>,
    nar_hash: &NarHash,
    part: &PartKey,
    source: &mut dyn Read,
) -> Result<(), PushError> {
    let storage = &*push.stored.storage;
    let &PartKey {
        number,
        len,
        sha256,
        ..
    } = part;
    if number == 0 || number > PART_NUMBER_MAX {
        return Err(PartError::Number(number).into());
    }
    if len == 0 || len > BODY_LEN_MAX {
        return Err(PartError::Len(len).into());
    }
    let stored = parts_of(&storage.objects, &push.id.to_string())?;
    if !stored.contains(part) {
        check_limits(storage, push.token, len)?;
        let of_file = stored.iter().filter(|other| other.is_of(push.id, nar_hash));
        check_len(part, of_file.clone())?;
        // The stored parts and this one are a lower bound of the file's length: if that exceeds the
        // quota, refuse this part, before the rest is uploaded. Do not count a stored part with the
        // same number, because this part replaces it.
        let file_len = of_file
            .filter(|other| other.number != number)
            .fold(len, |sum, other| sum.saturating_add(other.len));
        let used = push.stored.used_of_quota()?;
        let checked = push.stored.check_quota(used, file_len);
        checked.map_err(PutError::from)?;
    }
    let mut object = storage.objects.create()?;
    let counters = &storage.counters;
    let found = receive(&mut Received { source, counters }, &mut object)?;
    if found != sha256 {
        let stated = sha256;
        return Err(PartError::Sha256 { stated, found }.into());
    }
    let key = part.to_string();
    object.place_alone(&key)?;
    let is_replaced = |other: &&PartKey| {
        other.is_of(push.id, nar_hash) && other.number == number && *other != part
    };
    for other in stored.iter().filter(is_replaced) {
        storage.objects.remove(&other.to_string())?;
    }
    Ok(())
}

/// Checks that one more part of `len` bytes stays within the limits of the token.
fn check_limits(storage: &Storage, token: &Token, mut len: u64) -> Result<(), PushError> {
    let mut count = 1;
    for push in pushes::all(&storage.metadata, Some(token.id))? {
        let parts = parts_of(&storage.objects, &push)?;
        count += parts.len();
        let lens = parts.iter().map(|part| part.len);
        len = lens.fold(len, u64::saturating_add);
    }
    match count > PART_COUNT_MAX || len > PARTS_LEN_MAX {
        true => Err(PartError::TooMany { count, len }.into()),
        false => Ok(()),
    }
}

/// Joins the parts 1 to `count` of a NAR file, and verifies the file. When this returns, the NAR is
/// stored durably, and the parts are removed.
///
/// # Errors
///
/// [`PushError::Part`]. [`PutError::File`] if the file is refused; then the parts are removed.
/// Other errors.
pub fn join(
    push: &Push<'_>,
    nar_hash: NarHash,
    count: u32,
    compression: Compression,
    memory: &mut dyn Memory,
) -> Result<(), PushError> {
    let storage = &*push.stored.storage;
    let join = storage.joins.start((push.id.to_string(), nar_hash));
    let _join = join.ok_or(PartError::Joining)?;
    let outcome = join_parts(push, nar_hash, count, compression, memory);
    if matches!(outcome, Ok(()) | Err(PushError::Put(PutError::File(_)))) {
        remove(&storage.objects, push.id, &nar_hash)?;
    }
    outcome
}

fn join_parts(
    push: &Push<'_>,
    nar_hash: NarHash,
    count: u32,
    compression: Compression,
    memory: &mut dyn Memory,
) -> Result<(), PushError> {
    let storage = &*push.stored.storage;
    if holds_known(push.stored, push.token, &nar_hash)? {
        return Ok(());
    }
    if count == 0 || count > PART_NUMBER_MAX {
        return Err(PartError::Number(count).into());
    }
    let mut parts = parts(push, &nar_hash)?;
    let mut numbers = 1..=count;
    let is_there = |number: &u32| {
        parts
            .get(*number as usize - 1)
            .is_some_and(|part| part.number == *number)
    };
    if let Some(missing) = numbers.find(|number| !is_there(number)) {
        return Err(PartError::Missing(missing).into());
    }
    parts.truncate(count as usize);
    let mut file = JoinedParts {
        objects: &storage.objects,
        parts: parts.into_iter(),
        current: None,
        failure: None,
    };
    let line = PackLine {
        nar_hash,
        compression,
        len: 0,
    };
    let mut used = push.stored.used_of_quota()?;
    let received = receive_nar(push, &mut file, &line, memory, &mut used);
    if let Some(failure) = file.failure {
        return Err(failure.into());
    }
    let (new, file) = received?;
    Ok(nar::store(storage, new, file)?)
}

/// Returns the stored parts of a push.
fn parts_of(objects: &Objects, push: &str) -> Result<Vec<PartKey>, StorageError> {
    let mut parts = Vec::new();
    let directory = format!("{}/", part_directory(push));
    objects.list(&directory, &mut |key| {
        parts.extend(PartKey::parse(key));
        Ok(())
    })?;
    Ok(parts)
}

/// Removes the parts of a NAR file of a push.
fn remove(objects: &Objects, push: PushId, nar_hash: &NarHash) -> Result<(), StorageError> {
    let parts = parts_of(objects, &push.to_string())?;
    let of_nar = parts.iter().filter(|part| part.is_of(push, nar_hash));
    objects.remove_all(&of_nar.map(PartKey::to_string).collect::<Vec<_>>())
}

/// Returns the key of the directory with the parts of a push.
pub(super) fn part_directory(push: &str) -> String {
    format!("{PART_PREFIX}{push}")
}

/// Refuses a part whose length does not match the stored parts of the file: all have the same
/// length, at least [`PART_LEN_MIN`], except that the last one may be shorter.
fn check_len<'a>(
    part: &'a PartKey,
    stored: impl Iterator<Item = &'a PartKey>,
) -> Result<(), PartError> {
    let mut all: Vec<&PartKey> = stored.collect();
    if let Some(same) = all.iter().find(|other| other.number == part.number) {
        return match same.len == part.len {
            true => Ok(()),
            false => Err(PartError::Replaced {
                number: part.number,
                len: part.len,
                stored_len: same.len,
            }),
        };
    }
    all.push(part);
    all.sort_by_key(|part| part.number);
    let (Some(first), Some(last)) = (all.first(), all.last()) else {
        return Ok(());
    };
    let fits = |other: &PartKey| match other.number == last.number && last.number != first.number {
        true => other.len <= first.len,
        false => other.len == first.len,
    };
    match all.iter().find(|other| !fits(other)) {
        Some(other) => Err(PartError::OtherLen {
            number: first.number,
            len: first.len,
            other: other.number,
            other_len: other.len,
        }),
        None if first.number != last.number && first.len < PART_LEN_MIN => Err(PartError::Short {
            number: first.number,
            len: first.len,
        }),
        None => Ok(()),
    }
}

/// Receives the body of a part and writes it to the part's object. Returns its SHA-256.
fn receive(source: &mut dyn Read, out: &mut dyn io::Write) -> Result<[u8; 32], PutError> {
    let mut hasher = Sha256::new();
    let mut piece = vec![0; BUFFER_LEN];
    loop {
        let read = source.read(&mut piece).map_err(PutError::Source)?;
        if read == 0 {
            return Ok(hasher.finalize().into());
        }
        hasher.update(&piece[..read]);
        out.write_all(&piece[..read])
            .map_err(|error| StorageError::file("cannot write", "a part", error))?;
    }
}

/// Reads the contents of several parts one after the other.
struct JoinedParts<'a> {
    objects: &'a Objects,
    parts: std::vec::IntoIter<PartKey>,
    current: Option<std::fs::File>,
    /// The error of the storage, if one has ended the reading. It is not the client's fault.
    failure: Option<StorageError>,
}

impl Read for JoinedParts<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(file) = &mut self.current {
                let read = file.read(buffer).inspect_err(|error| {
                    let error = io::Error::new(error.kind(), error.to_string());
                    self.failure = Some(StorageError::file("cannot read", "a part", error));
                })?;
                if read > 0 || buffer.is_empty() {
                    return Ok(read);
                }
            }
            let Some(part) = self.parts.next() else {
                return Ok(0);
            };
            let opened = self.objects.read(&part.to_string());
            let opened = opened.and_then(|file| {
                // The part is missing: meanwhile the push has ended.
                let missing =
                    || StorageError::file("cannot open", "a part", io::ErrorKind::NotFound.into());
                file.ok_or_else(missing)
            });
            match opened {
                Ok(file) => self.current = Some(file),
                Err(failure) => {
                    self.failure = Some(failure);
                    return Err(io::Error::other("cannot open a part"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(number: u32, len: u64) -> PartKey {
        PartKey {
            push: PushId::from_number(7),
            nar_hash: [1; NAR_HASH_LEN],
            number,
            len,
            sha256: [2; 32],
        }
    }

    fn fits(new: (u32, u64), stored: &[(u32, u64)]) -> bool {
        // Lengths are counted from the minimum.
        let of = |&(number, len): &(u32, u64)| part(number, PART_LEN_MIN - 1 + len);
        let stored: Vec<_> = stored.iter().map(of).collect();
        check_len(&of(&new), stored.iter()).is_ok()
    }

    #[test]
    fn only_the_last_part_may_be_shorter_than_the_minimum() {
        let (min, last) = (part(1, PART_LEN_MIN), part(2, 1));
        let short = |number| part(number, PART_LEN_MIN - 1);
        assert_eq!(check_len(&short(1), [].iter()), Ok(()));
        assert_eq!(check_len(&min, [last].iter()), Ok(()));
        assert_eq!(check_len(&last, [min].iter()), Ok(()));
        let len = PART_LEN_MIN - 1;
        let refused = Err(PartError::Short { number: 1, len });
        assert_eq!(check_len(&short(1), [last].iter()), refused);
        assert_eq!(check_len(&last, [short(1)].iter()), refused);
        assert_eq!(check_len(&short(9), [short(1)].iter()), refused);
    }

    #[test]
    fn only_the_last_part_may_be_shorter() {
        assert!(fits((5, 3), &[]));
        assert!(fits((1, 9), &[(2, 9), (3, 1)]));
        assert!(fits((1, 9), &[(3, 1)]));
        assert!(fits((4, 1), &[(1, 9), (2, 9)]));
        assert!(fits((2, 9), &[(1, 9)]));
        assert!(fits((2, 9), &[(2, 9), (1, 9)]));
        for (new, stored) in [
            ((1, 8), &[(2, 9)][..]),
            ((1, 10), &[(2, 9), (3, 9), (4, 1)]),
            ((4, 10), &[(1, 9), (2, 9)]),
            ((3, 9), &[(1, 9), (2, 4)]),
            ((3, 4), &[(1, 9), (2, 4)]),
            ((2, 8), &[(1, 9), (2, 9)]),
            ((2, 8), &[(1, 9), (3, 4)]),
        ] {
            assert!(!fits(new, stored), "{new:?} {stored:?}");
        }
    }

    proptest! {
        /// Parts of a file are accepted in any order.
        #[test]
        fn parts_of_a_file_fit_in_any_order(
            lens in (1_u64..50, 1_u64..50),
            order in Just((1_u32..9).collect::<Vec<_>>()).prop_shuffle(),
            count in 1_u32..9,
        ) {
            let (len, last_len) = (lens.0.max(lens.1), lens.0.min(lens.1));
            let mut stored: Vec<(u32, u64)> = Vec::new();
            for number in order.into_iter().filter(|number| *number <= count) {
                let new = (number, if number == count { last_len } else { len });
                prop_assert!(fits(new, &stored), "{new:?} {stored:?}");
                stored.push(new);
            }
        }

        #[test]
        fn keys_are_parsed(
            (push, nar_hash, sha256) in any::<(u128, [u8; NAR_HASH_LEN], [u8; 32])>(),
            (number, len) in any::<(u32, u64)>(),
        ) {
            let key = PartKey { push: PushId::from_number(push), nar_hash, number, len, sha256 };
            prop_assert_eq!(PartKey::parse(&key.to_string()), Some(key));
        }
    }

    #[test]
    fn other_names_are_no_keys() {
        let key = part(1, 2).to_string();
        assert_eq!(key.len(), ".samovar/tmp/push-".len() + 32 + 14 + 2 + 2 + 53);
        let longest = part(PART_NUMBER_MAX, BODY_LEN_MAX).to_string();
        assert!(longest.len() < 133, "{longest}");
        for other in [
            key.replace("push-", ""),
            key.replace("-1-2-", "-01-2-"),
            key.replace("-1-2-", "-1-+2-"),
            key.replace("-1-2-", "-1-"),
            // This letter is not in the alphabet.
            format!("{}e", &key[..key.len() - 1]),
            format!("{key}-"),
            format!("{key}0"),
        ] {
            assert_eq!(PartKey::parse(&other), None, "{other}");
        }
    }
}
