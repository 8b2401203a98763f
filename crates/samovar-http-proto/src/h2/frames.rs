//! Scanner for frame headers in a byte stream (RFC 9113, section 4.1).
//!
//! `h2` does not expose the frames that it reads. Parsing each nine-byte header a second time is
//! cheap.

/// Length of a frame header, in bytes.
const HEADER_LEN: usize = 9;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

const FLAG_END_STREAM: u8 = 1;
const FLAG_ACK: u8 = 1;
const FLAG_END_HEADERS: u8 = 4;

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: u8,
    flags: u8,
    pub(super) stream: u32,
    /// Length of the payload in bytes.
    pub(super) len: u32,
}

impl Frame {
    fn read(header: [u8; HEADER_LEN]) -> Self {
        let [a, b, c, kind, flags, s0, s1, s2, s3] = header;
        Self {
            kind,
            flags,
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff,
            len: u32::from_be_bytes([0, a, b, c]),
        }
    }

    /// Returns whether the frame has the `END_STREAM` flag.
    pub(super) fn ends_stream(self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & FLAG_END_STREAM != 0
    }

    /// Returns whether a CONTINUATION frame must follow.
    fn leaves_block_open(self) -> bool {
        matches!(self.kind, HEADERS | CONTINUATION) && self.flags & FLAG_END_HEADERS == 0
    }

    pub(super) fn is_ack(self) -> bool {
        matches!(self.kind, SETTINGS | PING) && self.flags & FLAG_ACK != 0
    }
}

/// Finds frame headers in a byte stream that is split at any byte.
#[derive(Debug, Clone)]
pub(super) struct Scanner {
    /// Number of bytes to skip: the rest of a payload, or of the preface.
    skip_len: usize,
    header: [u8; HEADER_LEN],
    header_len: usize,
    is_block_open: bool,
    /// The frame whose header was found last, even if its payload is complete; `None` before the
    /// first.
    frame: Option<Frame>,
    frame_count: u64,
}

impl Scanner {
    /// Creates a scanner; the first frame follows after `preface_len` bytes.
    pub(super) fn new(preface_len: usize) -> Self {
        Self {
            skip_len: preface_len,
            header: [0; HEADER_LEN],
            header_len: 0,
            is_block_open: false,
            frame: None,
            frame_count: 0,
        }
    }

    /// Returns whether the input ends within a unit that peers send in one piece: the preface, a
    /// header block, or any frame except DATA.
    pub(super) fn is_mid_block(&self) -> bool {
        let is_body = self.frame.is_some_and(|frame| frame.kind == DATA);
        self.header_len > 0 || self.is_block_open || (self.skip_len > 0 && !is_body)
    }

    /// Returns the number of frame headers found.
    pub(super) fn frame_count(&self) -> u64 {
        self.frame_count
    }

    /// Returns the frame whose payload has not arrived completely yet, if there is one.
    pub(super) fn unfinished(&self) -> Option<Frame> {
        self.frame.filter(|_| self.skip_len > 0)
    }

    /// Calls `found` for each frame whose header these bytes complete; its payload may be
    /// incomplete.
    pub(super) fn scan(&mut self, mut bytes: &[u8], mut found: impl FnMut(Frame)) {
        while !bytes.is_empty() {
            if self.skip_len > 0 {
                let len = self.skip_len.min(bytes.len());
                self.skip_len -= len;
                bytes = bytes.get(len..).unwrap_or_default();
                continue;
            }
            let len = (HEADER_LEN - self.header_len).min(bytes.len());
            let (part, rest) = bytes.split_at(len);
            if let Some(room) = self.header.get_mut(self.header_len..self.header_len + len) {
                room.copy_from_slice(part);
            }
            self.header_len += len;
            bytes = rest;
            if self.header_len < HEADER_LEN {
                return;
            }
            self.header_len = 0;
            let frame = Frame::read(self.header);
            self.skip_len = frame.len as usize;
            self.frame = Some(frame);
            self.frame_count += 1;
            self.is_block_open = frame.leaves_block_open();
            found(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: &[u8] = b"lead\
        \0\0\x02\x01\x01\0\0\0\x01hh\
        \0\0\0\x09\x04\0\0\0\x01\
        \0\0\x03\0\x01\x80\0\0\x01abc\
        \0\0\0\x04\x01\0\0\0\0";

    #[test]
    fn any_split_finds_the_same_frames() {
        let mut whole = Vec::new();
        Scanner::new(4).scan(BYTES, |frame| whole.push(frame));
        let kinds: Vec<_> = whole
            .iter()
            .map(|frame| (frame.kind, frame.stream))
            .collect();
        assert_eq!(kinds, [(1, 1), (9, 1), (0, 1), (4, 0)]);
        assert!(whole[0].ends_stream() && !whole[1].ends_stream());
        assert!(whole[3].is_ack());
        for first in 0..BYTES.len() {
            for second in first..BYTES.len() {
                let (mut scanner, mut found) = (Scanner::new(4), Vec::new());
                for part in [&BYTES[..first], &BYTES[first..second], &BYTES[second..]] {
                    scanner.scan(part, |frame| found.push(frame));
                }
                assert_eq!(found, whole, "split at {first} and {second}");
                assert!(!scanner.is_mid_block());
            }
        }
    }

    #[test]
    fn a_header_block_is_open_until_its_last_frame_arrives() {
        let mut scanner = Scanner::new(0);
        let mut feed = |bytes: &[u8]| {
            scanner.scan(bytes, |_| {});
            scanner.is_mid_block()
        };
        assert!(feed(b"\0\0\x02\x01"));
        assert!(feed(b"\x01\0\0\0\x01hh"));
        assert!(feed(b"\0\0\x01\x09\x04\0\0\0\x01"));
        assert!(!feed(b"h"));
        // The payload of a DATA frame may arrive slowly: request bodies have a throughput limit of
        // their own.
        assert!(!feed(b"\0\0\x03\0\0\0\0\0\x01a"));
    }
}
