//! zlib streams, borrowed from a pool for one message at a time.

use std::sync::{Mutex, PoisonError};

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::WINDOW_BITS_MAX;
use crate::ws::Failure;

/// Bytes that the sender omits at the end of a message (RFC 7692, 7.2.1).
const TAIL: [u8; 4] = [0x00, 0x00, 0xff, 0xff];
/// Step by which the output buffer grows during decompression, in bytes.
const GROWTH_LEN: usize = 16 * 1024;
/// Maximum number of idle streams in each pool; further streams are freed.
const IDLE_MAX: usize = 8;

static INFLATERS: Mutex<Vec<Decompress>> = Mutex::new(Vec::new());
/// Compression streams, all with the maximum window.
static DEFLATERS: Mutex<Vec<Compress>> = Mutex::new(Vec::new());

fn take<T>(idle: &Mutex<Vec<T>>) -> Option<T> {
    idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
}

fn put_back<T>(idle: &Mutex<Vec<T>>, stream: T) {
    let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
    if idle.len() < IDLE_MAX {
        idle.push(stream);
    }
}

/// Decompressor of one connection.
#[derive(Debug)]
pub struct Inflater {
    /// zlib stream of the current message; boxed to keep idle connections small.
    stream: Option<Box<Decompress>>,
}

impl Inflater {
    /// Creates a decompressor; `None` in builds without compression.
    pub fn new() -> Option<Self> {
        Some(Self { stream: None })
    }

    /// Starts a message.
    pub(crate) fn begin(&mut self) {
        let mut stream = take(&INFLATERS).unwrap_or_else(|| Decompress::new(false));
        stream.reset(false);
        self.stream = Some(Box::new(stream));
    }

    /// Decompresses a piece of a message and appends it to `message`.
    pub(crate) fn feed(
        &mut self,
        mut piece: &[u8],
        message: &mut Vec<u8>,
        len_max: usize,
    ) -> Result<(), Failure> {
        let Some(stream) = &mut self.stream else {
            return Err(Failure::Deflate);
        };
        loop {
            // One byte beyond the limit shows that the message is too long.
            let room = len_max.saturating_add(1).saturating_sub(message.len());
            message.reserve(room.min(GROWTH_LEN.max(piece.len())));
            let (read_before, out_before) = (stream.total_in(), message.len());
            let status = stream
                .decompress_vec(piece, message, FlushDecompress::None)
                .map_err(|_damaged| Failure::Deflate)?;
            if message.len() > len_max {
                return Err(Failure::MessageTooLong);
            }
            let read = stream.total_in().saturating_sub(read_before);
            let read = usize::try_from(read).unwrap_or(usize::MAX);
            piece = piece.get(read..).unwrap_or_default();
            match status {
                // RFC 7692, 7.2.3.4: other blocks may follow a block that is marked as the last.
                // zlib ends the stream there, so restart it with the message so far as its window.
                Status::StreamEnd => {
                    stream.reset(false);
                    let window_start = message.len().saturating_sub(1 << WINDOW_BITS_MAX);
                    let window = message.get(window_start..).unwrap_or_default();
                    if !window.is_empty() {
                        // A dictionary can be set at any time in raw DEFLATE.
                        drop(stream.set_dictionary(window));
                    }
                    if piece.is_empty() {
                        return Ok(());
                    }
                }
                Status::Ok | Status::BufError => {
                    let has_room = message.len() < message.capacity();
                    if piece.is_empty() && has_room {
                        return Ok(());
                    }
                    if read == 0 && message.len() == out_before && has_room {
                        return Err(Failure::Deflate);
                    }
                }
            }
        }
    }

    /// Ends a message.
    pub(crate) fn end(&mut self, message: &mut Vec<u8>, len_max: usize) -> Result<(), Failure> {
        self.feed(&TAIL, message, len_max)?;
        if let Some(stream) = self.stream.take() {
            put_back(&INFLATERS, *stream);
        }
        Ok(())
    }
}

/// Compresses a message independently of others and appends it to `out`. The peer's window is
/// `window_bits`, 9 to 15. Returns `false` and appends nothing if the result is not shorter; the
/// caller then sends the message uncompressed.
pub fn deflate(message: &[u8], window_bits: u8, out: &mut Vec<u8>) -> bool {
    let is_largest = window_bits == WINDOW_BITS_MAX;
    let idle = if is_largest { take(&DEFLATERS) } else { None };
    let mut stream = idle
        .unwrap_or_else(|| Compress::new_with_window_bits(Compression::fast(), false, window_bits));
    let start = out.len();
    // Reserve the maximum compressed length of any message: a stream that runs out of output space
    // cannot be reused.
    out.reserve(
        message
            .len()
            .saturating_add(message.len() >> 3)
            .saturating_add(64),
    );
    let status = stream.compress_vec(message, out, FlushCompress::Sync);
    let is_whole = status.is_ok()
        && stream.total_in() == message.len() as u64
        && out.len() < out.capacity()
        && out.ends_with(&TAIL);
    let end = out.len().saturating_sub(TAIL.len());
    let is_shorter = is_whole && end.saturating_sub(start) < message.len();
    out.truncate(if is_shorter { end } else { start });
    if is_largest && is_whole {
        stream.reset();
        put_back(&DEFLATERS, stream);
    }
    is_shorter
}

#[cfg(test)]
mod tests {
    use super::super::WINDOW_BITS_MIN;
    use super::*;

    fn inflate(inflater: &mut Inflater, bytes: &[u8], len_max: usize) -> Result<Vec<u8>, Failure> {
        let mut message = Vec::new();
        inflater.begin();
        for piece in bytes.chunks(7) {
            inflater.feed(piece, &mut message, len_max)?;
        }
        inflater.end(&mut message, len_max)?;
        Ok(message)
    }

    /// Text whose back-references reach as far as possible.
    fn text(len: usize) -> Vec<u8> {
        let line = |n: usize| format!("line {} of {}\n", n * 7919 % 1000, n % 13);
        (0..len)
            .flat_map(|n| line(n).into_bytes())
            .take(len)
            .collect()
    }

    #[test]
    fn examples_of_the_rfc() {
        // RFC 7692, 7.2.3.1: "Hello". 7.2.3.2: again with the context of the first, which was not
        // negotiated.
        let hello = b"\xf2\x48\xcd\xc9\xc9\x07\x00";
        let again = b"\xf2\x00\x11\x00\x00";
        let mut forgetting = Inflater::new().unwrap();
        assert_eq!(inflate(&mut forgetting, hello, 5), Ok(b"Hello".to_vec()));
        assert_eq!(inflate(&mut forgetting, again, 5), Err(Failure::Deflate));
        // 7.2.3.3: a block without compression. 7.2.3.4: a block that is marked as the last.
        let stored = b"\x00\x05\x00\xfa\xff\x48\x65\x6c\x6c\x6f\x00";
        assert_eq!(inflate(&mut forgetting, stored, 5), Ok(b"Hello".to_vec()));
        let last = b"\xf3\x48\xcd\xc9\xc9\x07\x00\x00";
        assert_eq!(inflate(&mut forgetting, last, 5), Ok(b"Hello".to_vec()));
        // 7.2.3.5: two blocks. 7.2.3.6: an empty message.
        let two = b"\xf2\x48\x05\x00\x00\x00\xff\xff\xca\xc9\xc9\x07\x00";
        assert_eq!(inflate(&mut forgetting, two, 5), Ok(b"Hello".to_vec()));
        assert_eq!(inflate(&mut forgetting, b"\x00", 5), Ok(Vec::new()));
    }

    #[test]
    fn a_final_block_keeps_the_window() {
        let mut inflater = Inflater::new().unwrap();
        let twice = b"\xf3\x48\xcd\xc9\xc9\x07\x00\xf2\x00\x11\x00\x00";
        assert_eq!(
            inflate(&mut inflater, twice, 10),
            Ok(b"HelloHello".to_vec())
        );
    }

    #[test]
    fn compressed_messages_round_trip() {
        for bits in WINDOW_BITS_MIN..=WINDOW_BITS_MAX {
            let mut inflater = Inflater::new().unwrap();
            for len in [100, 1000, 70_000, 300] {
                let (message, mut out) = (text(len), b"before".to_vec());
                assert!(
                    deflate(&message, bits, &mut out),
                    "{len} bytes, {bits} bits"
                );
                assert_eq!(inflate(&mut inflater, &out[6..], len), Ok(message));
            }
        }
    }

    #[test]
    fn the_window_size_is_respected() {
        let message = text(70_000);
        for bits in WINDOW_BITS_MIN..=WINDOW_BITS_MAX {
            let mut out = Vec::new();
            assert!(deflate(&message, bits, &mut out));
            out.extend(TAIL);
            // A decompressor with this window, given one byte of output space at a time, cannot
            // refer back any further.
            let mut stream = Decompress::new_with_window_bits(false, bits);
            let (mut byte, mut read) = ([0], Vec::new());
            while read.len() < message.len() {
                let at = usize::try_from(stream.total_in()).unwrap();
                let before = stream.total_out();
                stream
                    .decompress(&out[at..], &mut byte, FlushDecompress::None)
                    .unwrap();
                if stream.total_out() > before {
                    read.push(byte[0]);
                }
            }
            assert_eq!(read, message, "{bits} bits");
        }
    }

    #[test]
    fn incompressible_messages_are_not_compressed() {
        let mut out = b"before".to_vec();
        assert!(!deflate(b"", WINDOW_BITS_MAX, &mut out));
        assert!(!deflate(b"abc", WINDOW_BITS_MAX, &mut out));
        assert_eq!(out, b"before");
    }

    #[test]
    fn a_stream_is_reusable_after_an_incompressible_message() {
        let mut state = 88_172_645_463_325_252_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        };
        for len in [1000, 16_000, 32_768, 65_536, 300_000] {
            for modulus in [2, 16, 100, 230, 255] {
                let message: Vec<u8> = (0..len).map(|_| random() % modulus).collect();
                let mut out = Vec::new();
                if deflate(&message, WINDOW_BITS_MAX, &mut out) {
                    let mut inflater = Inflater::new().unwrap();
                    assert_eq!(inflate(&mut inflater, &out, len), Ok(message));
                }
            }
        }
    }

    #[test]
    fn decompression_stops_at_the_limit() {
        let zeros = vec![0; 10_000_000];
        let mut bomb = Vec::new();
        assert!(deflate(&zeros, WINDOW_BITS_MAX, &mut bomb));
        for (len_max, expected) in [
            (zeros.len(), Ok(zeros.len())),
            (zeros.len() - 1, Err(Failure::MessageTooLong)),
            (1000, Err(Failure::MessageTooLong)),
        ] {
            let mut message = Vec::new();
            let mut inflater = Inflater::new().unwrap();
            inflater.begin();
            let done = inflater
                .feed(&bomb, &mut message, len_max)
                .and_then(|()| inflater.end(&mut message, len_max));
            assert_eq!(done.map(|()| message.len()), expected);
            assert!(message.capacity() <= 2 * len_max + bomb.len() + GROWTH_LEN);
        }
    }

    #[test]
    fn garbage_is_refused() {
        let mut inflater = Inflater::new().unwrap();
        assert_eq!(
            inflate(&mut inflater, b"\xff\xff\xff\xff", 100),
            Err(Failure::Deflate)
        );
        // A back-reference to before the start.
        assert_eq!(
            inflate(&mut inflater, b"\xf2\x00\x11\x00\x00", 100),
            Err(Failure::Deflate)
        );
    }
}
