//! The binary records of a plan.
//!
//! # Encoding
//!
//! | record | bytes |
//! | --- | --- |
//! | end of a directory | `0` |
//! | file | `1`, name, size |
//! | executable file | `2`, name, size |
//! | symbolic link | `3`, name, length of the target, target |
//! | directory | `4`, name, distance in bytes to the record of its parent |
//!
//! A name is a length byte and the bytes; the root's is empty. Numbers are little-endian base 128,
//! with the highest bit set in all bytes but the last.

use std::ops::Range;

use samovar_nix::nar::NAME_LEN_MAX;

const END: u8 = 0;
const FILE: u8 = 1;
const EXECUTABLE: u8 = 2;
const SYMLINK: u8 = 3;
const DIRECTORY: u8 = 4;

const _: () = assert!(NAME_LEN_MAX <= u8::MAX as usize);

/// A record. Names and targets are given as ranges of the record bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    File {
        name: Range<usize>,
        executable: bool,
        size: u64,
    },
    Symlink {
        name: Range<usize>,
        target: Range<usize>,
    },
    Directory {
        name: Range<usize>,
        /// Position of the parent's record; its own position for the root.
        parent: usize,
    },
    End,
}

/// Appends the record of a regular file.
pub(super) fn put_file(records: &mut Vec<u8>, name: &[u8], executable: bool, size: u64) {
    let kind = if executable { EXECUTABLE } else { FILE };
    put_name(records, kind, name);
    put_number(records, size);
}

/// Appends the record of a symbolic link.
pub(super) fn put_symlink(records: &mut Vec<u8>, name: &[u8], target: &[u8]) {
    put_name(records, SYMLINK, name);
    put_number(records, target.len() as u64);
    records.extend_from_slice(target);
}

/// Appends the record of a directory whose parent's record is at `parent`; `None` for the root.
pub(super) fn put_directory(records: &mut Vec<u8>, name: &[u8], parent: Option<usize>) {
    let at = records.len();
    put_name(records, DIRECTORY, name);
    put_number(records, (at - parent.unwrap_or(at)) as u64);
}

/// Appends the end of a directory.
pub(super) fn put_end(records: &mut Vec<u8>) {
    records.push(END);
}

/// Reads the record at `at`; returns it with the position of the next one. `None` if malformed.
pub(super) fn read(records: &[u8], at: usize) -> Option<(Record, usize)> {
    let mut cursor = Cursor { records, at };
    let kind = cursor.byte()?;
    if kind == END {
        return Some((Record::End, cursor.at));
    }
    let name_len = cursor.byte()?;
    let name = cursor.range(usize::from(name_len))?;
    let number = cursor.number()?;
    let record = match kind {
        FILE | EXECUTABLE => Record::File {
            name,
            executable: kind == EXECUTABLE,
            size: number,
        },
        SYMLINK => Record::Symlink {
            name,
            target: cursor.range(usize::try_from(number).ok()?)?,
        },
        DIRECTORY => Record::Directory {
            name,
            parent: at.checked_sub(usize::try_from(number).ok()?)?,
        },
        _ => return None,
    };
    Some((record, cursor.at))
}

fn put_name(records: &mut Vec<u8>, kind: u8, name: &[u8]) {
    // The fallback is unreachable: the encoder rejects longer names.
    let len = u8::try_from(name.len()).unwrap_or(u8::MAX);
    records.extend_from_slice(&[kind, len]);
    records.extend_from_slice(&name[..usize::from(len)]);
}

fn put_number(records: &mut Vec<u8>, mut number: u64) {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            return records.push(low);
        }
        records.push(low | 0x80);
    }
}

struct Cursor<'records> {
    records: &'records [u8],
    at: usize,
}

impl Cursor<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.records.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn range(&mut self, len: usize) -> Option<Range<usize>> {
        let range = self.at..self.at.checked_add(len)?;
        self.at = range.end;
        (range.end <= self.records.len()).then_some(range)
    }

    fn number(&mut self) -> Option<u64> {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(number);
            }
            shift += 7;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip() {
        let mut records = Vec::new();
        put_directory(&mut records, b"", None);
        let name = [b'n'; NAME_LEN_MAX];
        let sizes = [0, 1, 127, 128, 1 << 14, (1 << 62) - 1, u64::MAX];
        for size in sizes {
            put_file(&mut records, &name, size % 2 == 0, size);
        }
        let inner = records.len();
        put_directory(&mut records, b"d", Some(0));
        put_symlink(&mut records, b"l", &[b't'; 4095]);
        put_end(&mut records);
        put_end(&mut records);

        let mut at = 0;
        let mut next = || {
            let (record, next) = read(&records, at).unwrap();
            at = next;
            record
        };
        let root = Record::Directory {
            name: 2..2,
            parent: 0,
        };
        assert_eq!(next(), root);
        for expected in sizes {
            let Record::File {
                name: range,
                executable,
                size,
            } = next()
            else {
                unreachable!("a file was put");
            };
            assert_eq!((executable, size), (expected % 2 == 0, expected));
            assert_eq!(records[range], name);
        }
        let directory = next();
        let name = inner + 2..inner + 3;
        assert_eq!(directory, Record::Directory { name, parent: 0 });
        let Record::Symlink { name, target } = next() else {
            unreachable!("a link was put");
        };
        assert_eq!((&records[name], target.len()), (&b"l"[..], 4095));
        assert_eq!((next(), next()), (Record::End, Record::End));
        assert_eq!(read(&records, records.len()), None);
    }

    #[test]
    fn malformed_records_do_not_panic() {
        let mut records = Vec::new();
        put_file(&mut records, b"name", false, 1 << 40);
        for len in 0..records.len() {
            assert_eq!(read(&records[..len], 0), None);
        }
        for kind in 0..=255 {
            read(
                &[kind, 1, b'a', 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
                0,
            );
            read(&[kind, 0, 0x7f], 0);
            read(&[[0xff; 20], [kind; 20]].concat(), 3);
        }
    }
}
