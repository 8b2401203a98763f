//! Recipes: descriptions of a NAR as pieces of a base NAR and new bytes.
//!
//! # Grammar
//!
//! ```text
//! recipe = "samovar-recipe 1" LF *operation "end " size LF
//! operation = "copy " offset " " length LF / "data " length LF bytes
//! ```
//!
//! `copy` appends `length` bytes of the base NAR, from `offset` on. `data` appends the bytes that
//! follow it. `size` is the length of the new NAR. Numbers are decimal, below 2^64, without leading
//! zeros, and a `length` is at least 1. Nothing follows the last LF. The specification is
//! `docs/push-protocol.md`.

use std::io::{self, BufRead, Read, Write};

use crate::framed::Framed;
use crate::line::{number, words};

/// Maximum number of operations in a recipe.
pub const OPERATION_COUNT_MAX: usize = 1_000_000;

/// Maximum window of a compressed recipe, as a power of two, unless the client asks for a larger
/// one: 8 MiB, as of `zstd -19`.
pub const WINDOW_LOG: u32 = 23;

/// Least window that a client may ask for, as a power of two.
pub const WINDOW_LOG_MIN: u32 = 10;

/// Largest window that a client may ask for, as a power of two: 128 MiB, as of `zstd --long`.
pub const WINDOW_LOG_MAX: u32 = 27;

/// First line of a recipe.
const MAGIC: &str = "samovar-recipe 1";

/// Maximum length of a line, in bytes, without its LF.
const LINE_LEN_MAX: usize = 64;

/// Length of the buffer in which a [`Writer`] collects new bytes, in bytes.
const DATA_LEN: usize = 64 << 10;

/// Reason why a recipe is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecipeError {
    /// The first line does not begin a recipe.
    #[error("the recipe does not start with the line {MAGIC:?}")]
    Magic,
    /// An operation is malformed.
    #[error(
        "operation {0} is not \"copy <offset> <length>\", \"data <length>\" or \"end <size>\" with \
         a length of at least 1"
    )]
    Operation(usize),
    /// There are too many operations.
    #[error("the recipe has more than {OPERATION_COUNT_MAX} operations: upload the whole NAR")]
    TooMany,
    /// The recipe ends before its `end` line.
    #[error("the recipe ends before its line \"end\"")]
    Truncated,
    /// Bytes follow the `end` line.
    #[error("bytes follow the line \"end\" of the recipe")]
    BytesAfterEnd,
    /// The stated length of the new NAR is wrong.
    #[error("the recipe states a NAR of {stated} bytes, but its operations make {found} bytes")]
    Size {
        /// The stated length of the new NAR, in bytes.
        stated: u64,
        /// Total length of all operations, in bytes.
        found: u64,
    },
    /// The operations make a NAR of more than 2^64 bytes.
    #[error("the operations of the recipe make more than 2^64 bytes")]
    TooLong,
}

impl RecipeError {
    /// Returns the `RecipeError` inside an error of [`Reader`], even if other code has wrapped that
    /// error. Returns `None` for other errors.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl From<RecipeError> for io::Error {
    fn from(error: RecipeError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// An operation of a recipe. Lengths and offsets are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Appends a piece of the base NAR.
    Copy {
        /// Offset of the piece in the base NAR. It may be beyond the end of the base.
        offset: u64,
        /// Length of the piece.
        len: u64,
    },
    /// Appends new bytes, which the [`Reader`] returns.
    Data {
        /// Number of bytes.
        len: u64,
    },
}

/// Reads a recipe in bounded memory.
///
/// [`next_operation`](Self::next_operation) reads the line of an operation; after that of a
/// [`Data`](Operation::Data), [`Read`] returns its bytes. If the recipe is invalid, the error of
/// both contains a [`RecipeError`]; then the rest of the recipe must not be read.
#[derive(Debug)]
pub struct Reader<R> {
    body: Framed<R>,
    /// Number of operations whose line has been read.
    count: usize,
    /// Total length of these operations, in bytes.
    len: u64,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Start,
    Operations,
    End,
}

impl<R: BufRead> Reader<R> {
    /// Creates a reader of the recipe in `source`.
    pub fn new(source: R) -> Self {
        Self {
            body: Framed::new(source),
            count: 0,
            len: 0,
            state: State::Start,
        }
    }

    /// Skips the rest of the current operation, and reads the line of the next one. Returns `None`
    /// at the end of the recipe.
    ///
    /// # Errors
    ///
    /// An error of the source, or one that contains a [`RecipeError`].
    pub fn next_operation(&mut self) -> io::Result<Option<Operation>> {
        if self.state == State::Start {
            if self.read_line(RecipeError::Magic)? != MAGIC.as_bytes() {
                return Err(RecipeError::Magic.into());
            }
            self.state = State::Operations;
        }
        io::copy(self, &mut io::sink())?;
        if self.state == State::End {
            return Ok(None);
        }
        let malformed = RecipeError::Operation(self.count + 1);
        let line = self.read_line(malformed)?;
        if let Some(stated) = line.strip_prefix(b"end ") {
            let stated = number(stated).ok_or(malformed)?;
            return self.end(stated).map(|()| None);
        }
        if self.count >= OPERATION_COUNT_MAX {
            return Err(RecipeError::TooMany.into());
        }
        let (operation, len) = parse(&line).ok_or(malformed)?;
        self.count += 1;
        self.len = self.len.checked_add(len).ok_or(RecipeError::TooLong)?;
        if let Operation::Data { len } = operation {
            self.body.set_left(len);
        }
        Ok(Some(operation))
    }

    /// Checks the end of a recipe that states this length of its NAR.
    fn end(&mut self, stated: u64) -> io::Result<()> {
        if stated != self.len {
            let found = self.len;
            return Err(RecipeError::Size { stated, found }.into());
        }
        if !self.body.is_at_end()? {
            return Err(RecipeError::BytesAfterEnd.into());
        }
        self.state = State::End;
        Ok(())
    }

    /// Reads the next line. Returns it without its LF. `too_long`: the error for a line that is too
    /// long.
    fn read_line(&mut self, too_long: RecipeError) -> io::Result<Vec<u8>> {
        let truncated = RecipeError::Truncated;
        self.body.read_line(LINE_LEN_MAX, truncated, too_long)
    }
}

impl<R: BufRead> Read for Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.body.read(buffer, RecipeError::Truncated)
    }
}

/// Parses the line of an operation, without its LF. Returns the operation and its length.
fn parse(line: &[u8]) -> Option<(Operation, u64)> {
    let (operation, len) = if let Some([b"copy", offset, len]) = words(line) {
        let (offset, len) = (number(offset)?, number(len)?);
        (Operation::Copy { offset, len }, len)
    } else {
        let [b"data", len] = words(line)? else {
            return None;
        };
        let len = number(len)?;
        (Operation::Data { len }, len)
    };
    (len > 0).then_some((operation, len))
}

/// Writes a recipe. Joins successive copies of adjacent pieces, and successive short data.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    /// Offset and length of the copy that is not written yet; its length may be 0.
    copy: (u64, u64),
    /// New bytes that are not written yet. Empty if `copy` is not.
    data: Vec<u8>,
    /// Total length of all operations, in bytes.
    len: u64,
    /// Number of operations that are written.
    count: usize,
}

impl<W: Write> Writer<W> {
    /// Starts a recipe.
    ///
    /// # Errors
    ///
    /// Any error of `out`.
    pub fn new(mut out: W) -> io::Result<Self> {
        writeln!(out, "{MAGIC}")?;
        Ok(Self {
            out,
            copy: (0, 0),
            data: Vec::new(),
            len: 0,
            count: 0,
        })
    }

    /// Appends a piece of the base NAR to the new NAR.
    ///
    /// # Errors
    ///
    /// Any error of `out`.
    pub fn copy(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.write_data()?;
        self.len += len;
        let (start, copied) = self.copy;
        if copied > 0 && start + copied == offset {
            self.copy.1 += len;
            return Ok(());
        }
        if len > 0 {
            self.write_copy()?;
            self.copy = (offset, len);
        }
        Ok(())
    }

    /// Appends bytes to the new NAR.
    ///
    /// # Errors
    ///
    /// Any error of `out`.
    pub fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_copy()?;
        self.len += bytes.len() as u64;
        if self.data.len() + bytes.len() > DATA_LEN {
            self.write_data()?;
        }
        if bytes.len() > DATA_LEN {
            return self.write_bytes(bytes);
        }
        self.data.extend_from_slice(bytes);
        Ok(())
    }

    /// Returns the length of the new NAR so far, in bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the new NAR has no bytes so far.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Ends the recipe. Returns `out`, which is not flushed.
    ///
    /// # Errors
    ///
    /// Any error of `out`, or one that contains [`RecipeError::TooMany`].
    pub fn finish(mut self) -> io::Result<W> {
        self.write_copy()?;
        self.write_data()?;
        writeln!(self.out, "end {}", self.len)?;
        match self.count > OPERATION_COUNT_MAX {
            true => Err(RecipeError::TooMany.into()),
            false => Ok(self.out),
        }
    }

    fn write_copy(&mut self) -> io::Result<()> {
        let (offset, len) = std::mem::take(&mut self.copy);
        match len {
            0 => Ok(()),
            _ => {
                self.count += 1;
                writeln!(self.out, "copy {offset} {len}")
            }
        }
    }

    fn write_data(&mut self) -> io::Result<()> {
        let data = std::mem::take(&mut self.data);
        if !data.is_empty() {
            self.write_bytes(&data)?;
        }
        // Keep the allocation.
        self.data = data;
        self.data.clear();
        Ok(())
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.count += 1;
        writeln!(self.out, "data {}", bytes.len())?;
        self.out.write_all(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use proptest::prelude::*;

    use super::*;

    /// An operation with its bytes, if it is `data`.
    type Read1 = (Operation, Vec<u8>);

    /// Reads a recipe through a buffer of `step` bytes.
    fn read(recipe: &[u8], step: usize) -> Result<Vec<Read1>, RecipeError> {
        let of = |error: io::Error| RecipeError::of(&error).unwrap();
        let mut reader = Reader::new(BufReader::with_capacity(step, recipe));
        let mut operations = Vec::new();
        while let Some(operation) = reader.next_operation().map_err(of)? {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).map_err(of)?;
            operations.push((operation, bytes));
        }
        assert_eq!(reader.next_operation().unwrap(), None);
        Ok(operations)
    }

    #[test]
    fn a_recipe_has_copies_and_data() {
        let recipe =
            b"samovar-recipe 1\ncopy 0 96\ndata 3\na\nbcopy 18446744073709551615 1\nend 100\n";
        let expected = [
            (Operation::Copy { offset: 0, len: 96 }, vec![]),
            (Operation::Data { len: 3 }, b"a\nb".to_vec()),
            (
                Operation::Copy {
                    offset: u64::MAX,
                    len: 1,
                },
                vec![],
            ),
        ];
        for step in [1, 7, 1000] {
            assert_eq!(read(recipe, step).unwrap(), expected);
        }
        assert_eq!(read(b"samovar-recipe 1\nend 0\n", 9).unwrap(), []);
        // Bytes of `data` may be skipped.
        let mut reader = Reader::new(&recipe[..]);
        let mut count = 0;
        while reader.next_operation().unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, 3);
    }

    #[test]
    fn malformed_recipes_are_refused() {
        use RecipeError::*;
        let long = format!("copy 0 {}1\n", "0".repeat(100));
        for (recipe, expected) in [
            ("", Truncated),
            ("samovar-recipe 1", Truncated),
            ("samovar-recipe 2\nend 0\n", Magic),
            ("samovar-recipe 1\r\nend 0\n", Magic),
            (&"x".repeat(1000), Magic),
            ("-\n", Truncated),
            ("-\ncopy 0 1\n", Truncated),
            ("-\nend", Truncated),
            ("-\nend 0", Truncated),
            ("-\ndata 5\nabc", Truncated),
            ("-\nend 0\n\n", BytesAfterEnd),
            ("-\nend 0\nend 0\n", BytesAfterEnd),
            (
                "-\nend 1\n",
                Size {
                    stated: 1,
                    found: 0,
                },
            ),
            (
                "-\ndata 3\nabcend 2\n",
                Size {
                    stated: 2,
                    found: 3,
                },
            ),
            (
                "-\ncopy 5 3\nend 2\n",
                Size {
                    stated: 2,
                    found: 3,
                },
            ),
            ("-\n\n", Operation(1)),
            ("-\nend\n", Operation(1)),
            ("-\nend 00\n", Operation(1)),
            ("-\nend -1\n", Operation(1)),
            ("-\nend 0 \n", Operation(1)),
            ("-\ncopy 0 0\nend 0\n", Operation(1)),
            ("-\ndata 0\nend 0\n", Operation(1)),
            ("-\ncopy 0\n", Operation(1)),
            ("-\ncopy 0 1 2\n", Operation(1)),
            ("-\ncopy 01 1\n", Operation(1)),
            ("-\ncopy +1 1\n", Operation(1)),
            ("-\ncopy 0 18446744073709551616\n", Operation(1)),
            ("-\ncopy 0 1\ndata  1\n", Operation(2)),
            ("-\ndata 3\nabcd\n", Operation(2)),
            (&format!("-\n{long}"), Operation(1)),
            ("-\ncopy 0 18446744073709551615\ncopy 0 1\n", TooLong),
        ] {
            let recipe = recipe.replacen("-\n", "samovar-recipe 1\n", 1);
            for step in [1, 1000] {
                assert_eq!(read(recipe.as_bytes(), step), Err(expected), "{recipe:?}");
            }
        }
    }

    #[test]
    fn the_number_of_operations_is_limited() {
        let recipe = |count: usize| {
            let copies = "copy 0 1\n".repeat(count);
            format!("{MAGIC}\n{copies}end {count}\n").into_bytes()
        };
        let count = |recipe: &[u8]| -> io::Result<usize> {
            let mut reader = Reader::new(recipe);
            let mut count = 0;
            while reader.next_operation()?.is_some() {
                count += 1;
            }
            Ok(count)
        };
        let greatest = count(&recipe(OPERATION_COUNT_MAX)).unwrap();
        assert_eq!(greatest, OPERATION_COUNT_MAX);
        let refused = count(&recipe(OPERATION_COUNT_MAX + 1)).unwrap_err();
        assert_eq!(RecipeError::of(&refused), Some(RecipeError::TooMany));
        let written = |count: usize| {
            let mut writer = Writer::new(io::sink()).unwrap();
            for _ in 0..count {
                writer.copy(0, 1).unwrap();
            }
            writer.finish()
        };
        assert!(written(OPERATION_COUNT_MAX).is_ok());
        let refused = written(OPERATION_COUNT_MAX + 1).unwrap_err();
        assert_eq!(RecipeError::of(&refused), Some(RecipeError::TooMany));
    }

    #[test]
    fn a_writer_joins_adjacent_copies_and_short_data() {
        let mut writer = Writer::new(Vec::new()).unwrap();
        assert!(writer.is_empty());
        writer.copy(0, 10).unwrap();
        writer.copy(10, 5).unwrap();
        writer.copy(15, 0).unwrap();
        writer.copy(20, 0).unwrap();
        writer.copy(15, 1).unwrap();
        writer.copy(17, 1).unwrap();
        writer.data(b"a").unwrap();
        writer.data(b"").unwrap();
        writer.data(b"bc").unwrap();
        writer.copy(18, 2).unwrap();
        writer.copy(18, 2).unwrap();
        assert_eq!(writer.len(), 24);
        let recipe = String::from_utf8(writer.finish().unwrap()).unwrap();
        assert_eq!(
            recipe,
            "samovar-recipe 1\ncopy 0 16\ncopy 17 1\ndata 3\nabccopy 18 2\ncopy 18 2\nend 24\n"
        );
    }

    proptest! {
        /// A reader returns what a writer was given: the same bytes from the same places.
        #[test]
        fn written_recipes_are_read(
            parts in prop::collection::vec(
                prop_oneof![
                    (0_u64..40, 0_u64..20).prop_map(Ok),
                    prop::collection::vec(any::<u8>(), 0..20).prop_map(Err),
                    (0_u8.., DATA_LEN - 2..DATA_LEN + 2)
                        .prop_map(|(byte, len)| Err(vec![byte; len])),
                ],
                0..12,
            ),
            step in 1_usize..100,
        ) {
            let base: Vec<u8> = (0..60).collect();
            let piece = |offset: u64, len: u64| {
                base.iter().skip(offset.try_into().unwrap()).take(len.try_into().unwrap())
            };
            let mut writer = Writer::new(Vec::new()).unwrap();
            let mut expected = Vec::new();
            for part in &parts {
                match part {
                    Ok((offset, len)) => {
                        writer.copy(*offset, *len).unwrap();
                        expected.extend(piece(*offset, *len));
                    }
                    Err(bytes) => {
                        writer.data(bytes).unwrap();
                        expected.extend(bytes);
                    }
                }
            }
            prop_assert_eq!(writer.len(), expected.len() as u64);
            let recipe = writer.finish().unwrap();
            let mut found = Vec::new();
            for (operation, bytes) in read(&recipe, step).unwrap() {
                match operation {
                    Operation::Copy { offset, len } => {
                        found.extend(piece(offset, len));
                    }
                    Operation::Data { .. } => found.extend(bytes),
                }
            }
            prop_assert!(found == expected);
        }

        /// The result does not depend on where the input is split, and reading never panics.
        #[test]
        fn damaged_recipes_are_read_the_same_in_any_pieces(
            damage in (0_usize..60, any::<u8>()),
            end in 0_usize..70,
            step in 1_usize..20,
        ) {
            let mut recipe =
                b"samovar-recipe 1\ncopy 7 12\ndata 5\nabcdecopy 100 3\nend 20\n".to_vec();
            recipe.truncate(end);
            if let Some(byte) = recipe.get_mut(damage.0) {
                *byte = damage.1;
            }
            prop_assert_eq!(read(&recipe, step), read(&recipe, 1000));
        }
    }
}
