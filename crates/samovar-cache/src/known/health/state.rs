//! The state file, which keeps verification records across restarts.
//!
//! # Format
//!
//! Numbers are little-endian.
//!
//! ```text
//! file     = magic:16 version:u32 verified-count:u64 damaged-count:u64
//!            *verified *damaged sha256:32                 ; of all preceding bytes
//! verified = hash-part:20 stamp:8 seconds:u32 nanoseconds:u32  ; verified files, and since when
//! damaged  = hash-part:20 stamp:8 fingerprint:16          ; quarantined files
//! ```
//!
//! A record is used only while row and root, or fingerprint, are unchanged. So with an old, lost or
//! foreign file, the paths are only verified again. A file that deviates from the format is ignored
//! completely.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use samovar_nix::HashPart;
use samovar_store::Fingerprint;
use sha2::{Digest, Sha256};

use super::damaged::{self, Record};
use super::stamp::Stamp;
use super::verified::{Entry, Moment};

const MAGIC: &[u8; 16] = b"samovar verdicts";
const VERSION: u32 = 2;

const HEAD_LEN: usize = 36;
const VERIFIED_LEN: usize = 36;
const DAMAGED_LEN: usize = 44;
const SUM_LEN: usize = 32;

/// Maximum size of a file that is read, in bytes: enough for ten million paths.
const LEN_MAX: u64 = 360 << 20;

const NAME: &str = "verified";
const NEW_NAME: &str = "verified.new";

/// The contents of the state file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) verified: Vec<(HashPart, Entry)>,
    pub(super) damaged: Vec<(HashPart, Record)>,
}

/// The reason why a state file is ignored.
#[derive(Debug, thiserror::Error)]
pub(super) enum StateError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("not a file of verification records")]
    Foreign,
    #[error("version {0} is not supported, only {VERSION}")]
    Version(u32),
    #[error("the file is damaged")]
    Damaged,
}

/// Reads the state file in `directory`; `None` if there is no such file.
pub(super) fn load(directory: &Path) -> Result<Option<State>, StateError> {
    // The file may not be ours: follow no link, and do not block on a pipe.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(directory.join(NAME), flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(io::Error::from(error).into()),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > LEN_MAX {
        return Err(StateError::Foreign);
    }
    let mut bytes = Vec::new();
    file.take(LEN_MAX).read_to_end(&mut bytes)?;
    decode(&bytes).map(Some)
}

/// Replaces the state file in `directory` atomically.
pub(super) fn save(directory: &Path, state: &State) -> io::Result<()> {
    let new = directory.join(NEW_NAME);
    // The file may not be ours: do not block on a pipe.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let flags = flags | OFlags::NONBLOCK;
    let file = rustix::fs::open(&new, flags, Mode::RUSR | Mode::WUSR)?;
    let mut file = File::from(file);
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Another server that uses this directory may be writing the same file, or may just have
    // renamed it.
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    if fs::symlink_metadata(&new)?.ino() != file.metadata()?.ino() {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    file.set_len(0)?;
    let written = file
        .write_all(&encode(state))
        .and_then(|()| fs::rename(&new, directory.join(NAME)));
    if written.is_err() {
        // Remove the incomplete file: a full disk needs the space.
        fs::remove_file(PathBuf::from(&new)).ok();
    }
    written
}

fn encode(state: &State) -> Vec<u8> {
    let (verified, damaged) = (&state.verified, &state.damaged);
    let len = HEAD_LEN + verified.len() * VERIFIED_LEN + damaged.len() * DAMAGED_LEN + SUM_LEN;
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(verified.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&(damaged.len() as u64).to_le_bytes());
    for (hash_part, entry) in verified {
        bytes.extend_from_slice(hash_part.as_bytes());
        bytes.extend_from_slice(entry.stamp.as_bytes());
        bytes.extend_from_slice(&entry.began.seconds.to_le_bytes());
        bytes.extend_from_slice(&entry.began.nanoseconds.to_le_bytes());
    }
    for (hash_part, record) in damaged {
        bytes.extend_from_slice(hash_part.as_bytes());
        bytes.extend_from_slice(record.row.as_bytes());
        bytes.extend_from_slice(record.files.as_bytes());
    }
    let sum: [u8; SUM_LEN] = Sha256::digest(&bytes).into();
    bytes.extend_from_slice(&sum);
    bytes
}

fn decode(bytes: &[u8]) -> Result<State, StateError> {
    let mut rest = bytes.strip_prefix(MAGIC).ok_or(StateError::Foreign)?;
    let version = u32::from_le_bytes(take(&mut rest).ok_or(StateError::Damaged)?);
    if version != VERSION {
        return Err(StateError::Version(version));
    }
    records(bytes, rest).ok_or(StateError::Damaged)
}

fn records(bytes: &[u8], mut rest: &[u8]) -> Option<State> {
    let (summed, sum) = bytes.split_last_chunk::<SUM_LEN>()?;
    if Sha256::digest(summed).as_slice() != sum {
        return None;
    }
    let verified_count = usize::try_from(u64::from_le_bytes(take(&mut rest)?)).ok()?;
    let damaged_count = usize::try_from(u64::from_le_bytes(take(&mut rest)?)).ok()?;
    let verified_len = verified_count.checked_mul(VERIFIED_LEN)?;
    let damaged_len = damaged_count.checked_mul(DAMAGED_LEN)?;
    let len = verified_len
        .checked_add(damaged_len)?
        .checked_add(SUM_LEN)?;
    if rest.len() != len || damaged_count > damaged::COUNT_MAX {
        return None;
    }
    let mut state = State::default();
    for _ in 0..verified_count {
        let hash_part = HashPart::from_bytes(take(&mut rest)?);
        let entry = Entry {
            stamp: Stamp::from_bytes(take(&mut rest)?),
            began: Moment {
                seconds: u32::from_le_bytes(take(&mut rest)?),
                nanoseconds: u32::from_le_bytes(take(&mut rest)?),
            },
        };
        state.verified.push((hash_part, entry));
    }
    for _ in 0..damaged_count {
        let hash_part = HashPart::from_bytes(take(&mut rest)?);
        let record = Record {
            row: Stamp::from_bytes(take(&mut rest)?),
            files: Fingerprint::from_bytes(take(&mut rest)?),
        };
        state.damaged.push((hash_part, record));
    }
    Some(state)
}

fn take<const LEN: usize>(rest: &mut &[u8]) -> Option<[u8; LEN]> {
    let (first, others) = rest.split_first_chunk::<LEN>()?;
    *rest = others;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn state() -> impl Strategy<Value = State> {
        let began = (any::<u32>(), any::<u32>());
        let verified = (any::<[u8; 20]>(), any::<[u8; 8]>(), began);
        let damaged = (any::<[u8; 20]>(), any::<[u8; 8]>(), any::<[u8; 16]>());
        (vec(verified, 0..20), vec(damaged, 0..5)).prop_map(|(verified, damaged)| State {
            verified: verified
                .into_iter()
                .map(|(hash_part, stamp, (seconds, nanoseconds))| {
                    let stamp = Stamp::from_bytes(stamp);
                    let began = Moment {
                        seconds,
                        nanoseconds,
                    };
                    (HashPart::from_bytes(hash_part), Entry { stamp, began })
                })
                .collect(),
            damaged: damaged
                .into_iter()
                .map(|(hash_part, row, files)| {
                    let (row, files) = (Stamp::from_bytes(row), Fingerprint::from_bytes(files));
                    (HashPart::from_bytes(hash_part), Record { row, files })
                })
                .collect(),
        })
    }

    proptest! {
        #[test]
        fn a_written_state_is_read_back(state in state()) {
            prop_assert_eq!(decode(&encode(&state)).unwrap(), state);
        }

        #[test]
        fn arbitrary_bytes_are_refused(bytes in vec(any::<u8>(), 0..300)) {
            prop_assert!(decode(&bytes).is_err());
            let with_magic = [MAGIC.as_slice(), &bytes].concat();
            prop_assert!(decode(&with_magic).is_err());
        }

        /// Any counts with a valid checksum: lengths are checked before memory is allocated.
        #[test]
        fn wrong_counts_with_a_valid_checksum_do_not_panic(
            counts: [u64; 2],
            rest in vec(any::<u8>(), 0..200),
        ) {
            let mut bytes = encode(&State::default());
            bytes.truncate(HEAD_LEN - 16);
            bytes.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
            bytes.extend(rest);
            let sum: [u8; SUM_LEN] = Sha256::digest(&bytes).into();
            bytes.extend(sum);
            decode(&bytes).ok();
        }

        #[test]
        fn a_changed_byte_or_a_truncated_file_is_refused(
            state in state(),
            at: prop::sample::Index,
            change in 1..=255_u8,
        ) {
            let mut bytes = encode(&state);
            let at = at.index(bytes.len());
            prop_assert!(decode(&bytes[..at]).is_err());
            bytes[at] ^= change;
            prop_assert!(decode(&bytes).is_err());
        }
    }

    #[test]
    fn a_later_version_is_not_reported_as_damage() {
        let mut bytes = encode(&State::default());
        bytes[16] = 3;
        assert!(matches!(decode(&bytes), Err(StateError::Version(3))));
    }

    #[test]
    fn a_pipe_in_place_of_the_state_file_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let (kind, mode) = (rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR);
        rustix::fs::mknodat(rustix::fs::CWD, dir.path().join(NEW_NAME), kind, mode, 0).unwrap();
        save(dir.path(), &State::default()).unwrap_err();
        let reader = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(dir.path().join(NEW_NAME));
        save(dir.path(), &State::default()).unwrap_err();
        drop(reader);
        assert!(load(dir.path()).unwrap().is_none());
    }

    #[test]
    fn saving_replaces_the_state_file() {
        let dir = tempfile::tempdir().unwrap();
        assert!(load(dir.path()).unwrap().is_none());
        for _ in 0..2 {
            save(dir.path(), &State::default()).unwrap();
            assert_eq!(load(dir.path()).unwrap(), Some(State::default()));
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }
}
