//! Answers to bulk queries: many narinfos in one response.
//!
//! # Grammar
//!
//! ```text
//! answer  = "narinfos 1 " count LF *record "end " found " " absent " " failed LF
//! record  = "path " hash-part " " length LF narinfo    ; length bytes, the last a LF
//!         / "absent " hash-part LF
//!         / "failed " hash-part LF
//! ```
//!
//! All numbers are decimal. `1` is the version of the format, `count` the number of records. The
//! manual for authors of clients is `docs/bulk-queries.md`.
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | a line | 128 bytes | the longest line has two numbers and a hash part |
//! | a narinfo | 16 MiB | enough for a hundred thousand references |

use std::io::{self, BufRead, Read};

use samovar_nix::HashPart;

use crate::line::number;

/// Media type of an answer. It is a `text/` type, so that proxies compress the answer: apart from
/// its signatures, it shrinks to a third.
pub const CONTENT_TYPE: &str = "text/x-nix-narinfos";

/// Maximum length of a narinfo that is read, in bytes.
pub const NARINFO_LEN_MAX: u64 = 16 << 20;

const LINE_LEN_MAX: u64 = 128;

/// Makes the lines of an answer, each with its LF. The caller appends each narinfo to its line.
#[derive(Debug, Default)]
pub struct Writer {
    /// Numbers of found, absent and failed records so far.
    counts: [u64; 3],
}

impl Writer {
    /// Returns the first line of an answer with `count` records.
    #[must_use]
    pub fn first_line(count: usize) -> String {
        format!("narinfos 1 {count}\n")
    }

    /// Returns the line of a path that the cache has. Its narinfo follows, which has `len` bytes.
    pub fn path(&mut self, hash_part: HashPart, len: usize) -> String {
        self.count(0);
        format!("path {hash_part} {len}\n")
    }

    /// Returns the line of a path that the cache does not have.
    pub fn absent(&mut self, hash_part: HashPart) -> String {
        self.count(1);
        format!("absent {hash_part}\n")
    }

    /// Returns the line of a path that could not be looked up.
    pub fn failed(&mut self, hash_part: HashPart) -> String {
        self.count(2);
        format!("failed {hash_part}\n")
    }

    /// Returns the last line.
    #[must_use]
    pub fn last_line(&self) -> String {
        let [found, absent, failed] = self.counts;
        format!("end {found} {absent} {failed}\n")
    }

    fn count(&mut self, kind: usize) {
        if let Some(count) = self.counts.get_mut(kind) {
            *count = count.saturating_add(1);
        }
    }
}

/// A record of an answer: the result for one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// The cache has the path; with its narinfo.
    Path(HashPart, Vec<u8>),
    /// The cache does not have the path.
    Absent(HashPart),
    /// The server failed to look the path up.
    Failed(HashPart),
}

/// The reason why an answer to a bulk query is rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordsError {
    /// The first line does not name version 1 of the format.
    #[error("not an answer in version 1 of the format")]
    Version,
    /// A line or a narinfo violates the grammar. Holds the number of the record, from 1.
    #[error("record {0} is malformed")]
    Malformed(u64),
    /// The counts in the last line differ from the records.
    #[error("the last line does not match the records")]
    End,
    /// The response is truncated, or cannot be read.
    #[error("truncated")]
    Cut(#[from] io::Error),
}

/// Reads the records of an answer. An answer that deviates from the grammar, or lacks its last
/// line, is rejected.
#[derive(Debug)]
pub struct Records<R> {
    reader: R,
    count: u64,
    /// Number of records read of each kind, in the order of the last line: found, absent, failed.
    counts: [u64; 3],
    is_ended: bool,
}

impl<R: BufRead> Records<R> {
    /// Reads the first line of the response.
    ///
    /// # Errors
    ///
    /// Any [`RecordsError`].
    pub fn begin(mut reader: R) -> Result<Self, RecordsError> {
        let line = read_line(&mut reader, RecordsError::Version)?;
        let count = line
            .strip_prefix("narinfos 1 ")
            .and_then(|count| number(count.as_bytes()))
            .ok_or(RecordsError::Version)?;
        Ok(Self {
            reader,
            count,
            counts: [0; 3],
            is_ended: false,
        })
    }

    /// Reads the next record. Returns `None` after the last record: only then has the whole
    /// response arrived.
    ///
    /// # Errors
    ///
    /// Any [`RecordsError`]. The whole response must then be discarded.
    pub fn read(&mut self) -> Result<Option<Record>, RecordsError> {
        let read_count: u64 = self.counts.iter().sum();
        if read_count == self.count {
            self.end()?;
            return Ok(None);
        }
        let malformed = || RecordsError::Malformed(read_count.saturating_add(1));
        let line = read_line(&mut self.reader, malformed())?;
        let (kind, rest) = line.split_once(' ').ok_or_else(malformed)?;
        let hash_part = |text: &str| text.parse().map_err(|_error| malformed());
        let [found, absent, failed] = &mut self.counts;
        let (record, count) = match kind {
            "path" => {
                let (name, len) = rest.split_once(' ').ok_or_else(malformed)?;
                let len = number(len.as_bytes()).filter(|len| (1..=NARINFO_LEN_MAX).contains(len));
                let hash_part = hash_part(name)?;
                let narinfo = read_exactly(&mut self.reader, len.ok_or_else(malformed)?)?;
                if narinfo.last() != Some(&b'\n') {
                    return Err(malformed());
                }
                (Record::Path(hash_part, narinfo), found)
            }
            "absent" => (Record::Absent(hash_part(rest)?), absent),
            "failed" => (Record::Failed(hash_part(rest)?), failed),
            _ => return Err(malformed()),
        };
        *count = count.saturating_add(1);
        Ok(Some(record))
    }

    fn end(&mut self) -> Result<(), RecordsError> {
        if self.is_ended {
            return Ok(());
        }
        let counts = self.counts;
        let line = read_line(&mut self.reader, RecordsError::End)?;
        let is_last = self.reader.fill_buf()?.is_empty();
        if line + "\n" != (Writer { counts }).last_line() || !is_last {
            return Err(RecordsError::End);
        }
        self.is_ended = true;
        Ok(())
    }
}

/// Reads a line and returns it without the line feed. `malformed`: the error for an invalid line.
fn read_line(reader: &mut impl BufRead, malformed: RecordsError) -> Result<String, RecordsError> {
    let mut line = Vec::new();
    reader.take(LINE_LEN_MAX).read_until(b'\n', &mut line)?;
    match line.pop() {
        Some(b'\n') => String::from_utf8(line).map_err(|_error| malformed),
        Some(_) if line.len() as u64 + 1 == LINE_LEN_MAX => Err(malformed),
        _ => Err(cut()),
    }
}

fn read_exactly(reader: &mut impl BufRead, len: u64) -> Result<Vec<u8>, RecordsError> {
    let mut bytes = Vec::new();
    let read = reader.take(len).read_to_end(&mut bytes)?;
    if u64::try_from(read) == Ok(len) {
        Ok(bytes)
    } else {
        Err(cut())
    }
}

fn cut() -> RecordsError {
    RecordsError::Cut(io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn read(mut bytes: &[u8]) -> Result<Vec<Record>, RecordsError> {
        let mut records = Records::begin(&mut bytes)?;
        let mut all = Vec::new();
        while let Some(record) = records.read()? {
            all.push(record);
        }
        // Reads after the end return the end again.
        assert!(matches!(records.read(), Ok(None)));
        Ok(all)
    }

    fn write(records: &[Record]) -> String {
        let mut writer = Writer::default();
        let mut text = Writer::first_line(records.len());
        for record in records {
            match record {
                Record::Path(hash_part, narinfo) => {
                    text += &writer.path(*hash_part, narinfo.len());
                    text += std::str::from_utf8(narinfo).unwrap();
                }
                Record::Absent(hash_part) => text += &writer.absent(*hash_part),
                Record::Failed(hash_part) => text += &writer.failed(*hash_part),
            }
        }
        text + &writer.last_line()
    }

    fn record() -> impl Strategy<Value = Record> {
        let hash_part = any::<[u8; 20]>().prop_map(HashPart::from_bytes);
        // Narinfos may contain lines that look like records.
        let line = prop_oneof!["[a-z: ]{0,20}", "end 0 0 0", "absent [0-9]{32}"];
        (hash_part, 0..4_u8, vec(line, 1..5)).prop_map(|(hash_part, kind, lines)| match kind {
            0 => Record::Absent(hash_part),
            1 => Record::Failed(hash_part),
            _ => Record::Path(hash_part, (lines.join("\n") + "\n").into_bytes()),
        })
    }

    proptest! {
        #[test]
        fn answers_round_trip(records in vec(record(), 0..20)) {
            prop_assert_eq!(read(write(&records).as_bytes()).unwrap(), records);
        }

        #[test]
        fn other_lengths_are_rejected(records in vec(record(), 0..6), more in "[a-z\n]{1,9}") {
            let text = write(&records);
            for len in 0..text.len() {
                prop_assert!(read(&text.as_bytes()[..len]).is_err());
            }
            prop_assert!(read((text + &more).as_bytes()).is_err());
        }

        #[test]
        fn no_bytes_panic(bytes in vec(any::<u8>(), 0..200), records in vec(record(), 0..4)) {
            let _outcome = read(&bytes);
            let mut text = write(&records).into_bytes();
            for (index, byte) in bytes.iter().enumerate() {
                let at = index * 7919 % text.len();
                text[at] = *byte;
            }
            let _outcome = read(&text);
        }
    }

    #[test]
    fn the_bytes_are_those_of_version_1() {
        let hash_part = HashPart::from_bytes([7; 20]);
        let records = [
            Record::Path(hash_part, b"StorePath: x\n".to_vec()),
            Record::Absent(hash_part),
            Record::Failed(hash_part),
        ];
        assert_eq!(
            write(&records),
            format!(
                "narinfos 1 3\npath {hash_part} 13\nStorePath: x\nabsent {hash_part}\n\
                 failed {hash_part}\nend 1 1 1\n"
            )
        );
    }

    #[test]
    fn limits() {
        let hash_part = HashPart::from_bytes([7; 20]);
        for (len, is_read) in [(0, false), (1, true), (NARINFO_LEN_MAX, true)] {
            let mut narinfo = vec![b'x'; usize::try_from(len).unwrap()];
            if let Some(last) = narinfo.last_mut() {
                *last = b'\n';
            }
            let text = write(&[Record::Path(hash_part, narinfo)]);
            assert_eq!(read(text.as_bytes()).is_ok(), is_read, "{len}");
        }
        let text = format!("narinfos 1 1\npath {hash_part} {}\n", NARINFO_LEN_MAX + 1);
        assert!(matches!(
            read(text.as_bytes()),
            Err(RecordsError::Malformed(1))
        ));
        let long = format!("narinfos 1 1\n{}", "x".repeat(200));
        assert!(matches!(
            read(long.as_bytes()),
            Err(RecordsError::Malformed(_))
        ));
        for other in [
            "",
            "narinfos 2 0\nend 0 0 0\n",
            "<html>\n",
            "narinfos 1 01\n",
        ] {
            assert!(read(other.as_bytes()).is_err(), "{other:?}");
        }
    }
}
