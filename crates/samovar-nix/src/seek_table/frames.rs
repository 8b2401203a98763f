//! [`Frames`]: where the content of a compressed file is, by its seek table.

use std::ops::Range;

use super::{FOOTER_MAGIC, SKIPPABLE_MAGIC};

/// Maximum length of the content of a frame, in bytes. Larger frames are not worth seeking.
const CONTENT_LEN_MAX: u64 = 32 << 20;

/// Length of the footer of a seek table, in bytes.
const FOOTER_LEN: usize = 9;

/// Length of the header of a skippable frame, in bytes.
const HEADER_LEN: usize = 8;

/// Bit of the footer's flags: each entry has a checksum of four bytes.
const HAS_CHECKSUMS: u8 = 1 << 7;

/// The independent frames of a compressed file, in order.
#[derive(Debug, PartialEq, Eq)]
pub struct Frames {
    list: Vec<Frame>,
}

/// A compressed frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Bytes of the compressed file.
    pub file: Range<u64>,
    /// Bytes of the content.
    pub content: Range<u64>,
}

impl Frames {
    /// Returns the length of the seek table at the end of a file, in bytes. Returns `None` if the
    /// file has none. `tail`: the last bytes of the file.
    #[must_use]
    pub fn table_len(tail: &[u8]) -> Option<u64> {
        let (count, entry_len) = footer(tail)?;
        let entries_len = u64::from(count).saturating_mul(entry_len as u64);
        Some(entries_len.saturating_add((HEADER_LEN + FOOTER_LEN) as u64))
    }

    /// Parses the seek table at the end of a file. Returns `None` if it does not describe a file of
    /// `file_len` bytes with `content_len` bytes of content. `tail`: the last bytes of the file,
    /// with the whole table.
    #[must_use]
    pub fn parse(tail: &[u8], file_len: u64, content_len: u64) -> Option<Self> {
        let (_, entry_len) = footer(tail)?;
        let table_len = Self::table_len(tail)?;
        let start = tail.len().checked_sub(usize::try_from(table_len).ok()?)?;
        let table = tail.get(start..)?;
        let skipped_len = u32::try_from(table.len().checked_sub(HEADER_LEN)?).ok()?;
        let entries_end = table.len().checked_sub(FOOTER_LEN)?;
        if number(table, 0)? != SKIPPABLE_MAGIC || number(table, 4)? != skipped_len {
            return None;
        }
        let (mut file, mut content) = (0_u64, 0_u64);
        let mut list = Vec::new();
        for entry in table.get(HEADER_LEN..entries_end)?.chunks(entry_len) {
            let frame_len = u64::from(number(entry, 0)?);
            let len = u64::from(number(entry, 4)?);
            if len > CONTENT_LEN_MAX || frame_len == 0 {
                return None;
            }
            let file_end = file.checked_add(frame_len)?;
            let content_end = content.checked_add(len)?;
            if len > 0 {
                list.push(Frame {
                    file: file..file_end,
                    content: content..content_end,
                });
            }
            (file, content) = (file_end, content_end);
        }
        let is_whole = file.checked_add(table_len) == Some(file_len) && content == content_len;
        is_whole.then_some(Self { list })
    }

    /// Returns the frames with these bytes of the content.
    #[must_use]
    pub fn covering(&self, content: &Range<u64>) -> &[Frame] {
        let start = self
            .list
            .partition_point(|frame| frame.content.end <= content.start);
        let end = self
            .list
            .partition_point(|frame| frame.content.start < content.end);
        self.list.get(start..end).unwrap_or_default()
    }
}

/// Returns the number of entries and the length of an entry.
fn footer(tail: &[u8]) -> Option<(u32, usize)> {
    let footer = tail.get(tail.len().checked_sub(FOOTER_LEN)?..)?;
    let flags = *footer.get(4)?;
    let is_known = flags & !HAS_CHECKSUMS == 0 && number(footer, 5)? == FOOTER_MAGIC;
    let entry_len = if flags & HAS_CHECKSUMS != 0 { 12 } else { 8 };
    is_known.then_some((number(footer, 0)?, entry_len))
}

/// Returns the little-endian number at an offset.
fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A seek table. `checksums`: with checksums, which are not compared.
    fn table(frames: &[(u32, u32)], checksums: bool) -> Vec<u8> {
        let entry_len = if checksums { 12 } else { 8 };
        let len = frames.len() * entry_len + FOOTER_LEN;
        let mut out = SKIPPABLE_MAGIC.to_le_bytes().to_vec();
        out.extend(u32::try_from(len).unwrap().to_le_bytes());
        for (file, content) in frames {
            out.extend(file.to_le_bytes());
            out.extend(content.to_le_bytes());
            out.extend(checksums.then_some([0_u8; 4]).into_iter().flatten());
        }
        out.extend(u32::try_from(frames.len()).unwrap().to_le_bytes());
        out.push(if checksums { HAS_CHECKSUMS } else { 0 });
        out.extend(FOOTER_MAGIC.to_le_bytes());
        out
    }

    #[test]
    fn frames_follow_each_other() {
        for checksums in [false, true] {
            let table = table(&[(10, 100), (7, 0), (20, 50)], checksums);
            let len = table.len() as u64;
            let tail = [&[1, 2, 3], &table[..]].concat();
            assert_eq!(Frames::table_len(&tail), Some(len));
            let frames = Frames::parse(&tail, 37 + len, 150).unwrap();
            let [first, second] = &frames.list[..] else {
                panic!("{frames:?}");
            };
            assert_eq!((&first.file, &first.content), (&(0..10), &(0..100)));
            assert_eq!((&second.file, &second.content), (&(17..37), &(100..150)));
            assert_eq!(frames.covering(&(99..100)), std::slice::from_ref(first));
            assert_eq!(frames.covering(&(100..101)), std::slice::from_ref(second));
            assert_eq!(frames.covering(&(99..101)).len(), 2);
            assert_eq!(frames.covering(&(0..0)).len(), 0);
            assert_eq!(frames.covering(&(150..160)).len(), 0);
        }
    }

    #[test]
    fn tables_that_do_not_match_the_file_are_refused() {
        let table = table(&[(10, 100), (20, 50)], false);
        let len = table.len() as u64;
        assert!(Frames::parse(&table, 30 + len, 150).is_some());
        assert_eq!(Frames::parse(&table, 31 + len, 150), None);
        assert_eq!(Frames::parse(&table, 30 + len, 151), None);
        assert_eq!(Frames::parse(&table[1..], 30 + len, 150), None);
        for at in [0, 4, table.len() - 9, table.len() - 5, table.len() - 1] {
            let mut wrong = table.clone();
            wrong[at] ^= 1;
            assert_eq!(Frames::parse(&wrong, 30 + len, 150), None, "{at}");
        }
        assert_eq!(Frames::table_len(b"no table here"), None);
    }

    #[test]
    fn frames_that_need_much_memory_are_refused() {
        let max = u32::try_from(CONTENT_LEN_MAX).unwrap();
        for (len, is_accepted) in [(max, true), (max + 1, false)] {
            let table = table(&[(10, len)], false);
            let file_len = 10 + table.len() as u64;
            let frames = Frames::parse(&table, file_len, len.into());
            assert_eq!(frames.is_some(), is_accepted);
        }
    }

    proptest! {
        #[test]
        fn any_tail_is_parsed_or_refused(tail in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(Frames::parse(&tail, 1000, 1000).is_none());
            let tail = [&tail[..], &[0], &FOOTER_MAGIC.to_le_bytes()].concat();
            prop_assert!(Frames::parse(&tail, 1000, 1000).is_none());
        }
    }
}
