//! zlib streams, borrowed from a pool for one message at a time.

use std::sync::{Mutex, PoisonError};

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::{WINDOW_BITS_MAX, WINDOW_BITS_MIN};
use crate::ws::Failure;

/// Bytes that the sender omits at the end of a message (RFC 7692, 7.2.1).
const TAIL: [u8; 4] = [0x00, 0x00, 0xff, 0xff];
/// Increment of the output buffer during decompression, in bytes.
const GROWTH_LEN: usize = 16 * 1024;
/// Capacity of each pool, in streams; more are dropped.
const WAITING_MAX: usize = 8;

static INFLATERS: Mutex<Vec<Decompress>> = Mutex::new(Vec::new());
/// Compression streams, all with the maximum window.
static DEFLATERS: Mutex<Vec<Compress>> = Mutex::new(Vec::new());

fn lend<T>(waiting: &Mutex<Vec<T>>) -> Option<T> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).pop()
}

fn give_back<T>(waiting: &Mutex<Vec<T>>, stream: T) {
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    if waiting.len() < WAITING_MAX {
        waiting.push(stream);
    }
}

/// The window: the last bytes that messages may refer to.
#[derive(Debug, Default)]
struct Window {
    bytes: Vec<u8>,
    /// 0 without context takeover.
    len_max: usize,
}

impl Window {
    fn new(keeps_context: bool, bits: u8) -> Self {
        let bits = bits.clamp(WINDOW_BITS_MIN, WINDOW_BITS_MAX);
        Self {
            bytes: Vec::new(),
            len_max: if keeps_context { 1 << bits } else { 0 },
        }
    }

    fn add(&mut self, sent: &[u8]) {
        let sent = last(sent, self.len_max);
        let kept_len = self.len_max.saturating_sub(sent.len());
        let dropped_len = self.bytes.len().saturating_sub(kept_len);
        self.bytes.drain(..dropped_len);
        self.bytes.extend_from_slice(sent);
    }
}

/// Returns the last `len_max` bytes, or all.
fn last(bytes: &[u8], len_max: usize) -> &[u8] {
    let start = bytes.len().saturating_sub(len_max);
    bytes.get(start..).unwrap_or_default()
}

/// Decompressor of one connection.
#[derive(Debug)]
pub struct Inflater {
    window: Window,
    /// Set during a message; boxed to keep idle connections small.
    stream: Option<Box<Decompress>>,
}

impl Inflater {
    /// Creates a decompressor. `keeps_context`: messages may refer to earlier ones.
    pub fn new(keeps_context: bool, window_bits: u8) -> Self {
        Self {
            window: Window::new(keeps_context, window_bits),
            stream: None,
        }
    }

    /// Starts a message.
    pub(crate) fn begin(&mut self) {
        let mut stream = lend(&INFLATERS).unwrap_or_else(|| Decompress::new(false));
        restart(&mut stream, &self.window.bytes);
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
                // zlib ends the stream there, so restart it.
                Status::StreamEnd => {
                    let sent = last(message, 1 << WINDOW_BITS_MAX);
                    let mut before = Window::new(true, WINDOW_BITS_MAX);
                    before.add(&self.window.bytes);
                    before.add(sent);
                    restart(stream, &before.bytes);
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
        self.window.add(message);
        if let Some(stream) = self.stream.take() {
            give_back(&INFLATERS, *stream);
        }
        Ok(())
    }
}

fn restart(stream: &mut Decompress, window: &[u8]) {
    stream.reset(false);
    if !window.is_empty() {
        // A dictionary can be set at any time in raw DEFLATE.
        drop(stream.set_dictionary(window));
    }
}

/// Compressor of one connection.
#[derive(Debug)]
pub struct Deflater {
    window: Window,
    window_bits: u8,
}

impl Deflater {
    /// Creates a compressor. `keeps_context`: messages refer to earlier ones. `window_bits`: window
    /// size as a power of two, 9 to 15.
    pub fn new(keeps_context: bool, window_bits: u8) -> Self {
        Self {
            window: Window::new(keeps_context, window_bits),
            window_bits: window_bits.clamp(WINDOW_BITS_MIN, WINDOW_BITS_MAX),
        }
    }

    /// Compresses a message and appends it to `out`. Returns `false` and appends nothing if that
    /// does not make it shorter; then send the message uncompressed.
    pub fn deflate(&mut self, message: &[u8], out: &mut Vec<u8>) -> bool {
        let is_shorter = deflate(message, &self.window.bytes, self.window_bits, out);
        if is_shorter {
            self.window.add(message);
        }
        is_shorter
    }

    /// Whether a message from [`deflate_alone`] may be sent on this connection.
    pub fn takes_alone(&self) -> bool {
        self.window_bits == WINDOW_BITS_MAX
    }

    /// Records that a message from [`deflate_alone`] was sent, for the peer's window.
    pub fn sent_alone(&mut self, message: &[u8]) {
        self.window.add(message);
    }
}

/// Compresses a message without context, for any peer with the maximum window, and appends it to
/// `out`. Returns `false` and appends nothing if that does not make it shorter.
pub fn deflate_alone(message: &[u8], out: &mut Vec<u8>) -> bool {
    deflate(message, &[], WINDOW_BITS_MAX, out)
}

fn deflate(message: &[u8], window: &[u8], window_bits: u8, out: &mut Vec<u8>) -> bool {
    let is_largest = window_bits == WINDOW_BITS_MAX;
    let waiting = if is_largest { lend(&DEFLATERS) } else { None };
    let mut stream = waiting
        .unwrap_or_else(|| Compress::new_with_window_bits(Compression::fast(), false, window_bits));
    let start = out.len();
    // Upper bound of the output for any message: a stream that runs out of space is not reusable.
    out.reserve(
        message
            .len()
            .saturating_add(message.len() >> 3)
            .saturating_add(64),
    );
    let is_ready = window.is_empty() || stream.set_dictionary(window).is_ok();
    let status = stream.compress_vec(message, out, FlushCompress::Sync);
    let is_whole = status.is_ok()
        && stream.total_in() == message.len() as u64
        && out.len() < out.capacity()
        && out.ends_with(&TAIL);
    let end = out.len().saturating_sub(TAIL.len());
    let is_shorter = is_ready && is_whole && end.saturating_sub(start) < message.len();
    out.truncate(if is_shorter { end } else { start });
    if is_largest && is_whole {
        stream.reset();
        give_back(&DEFLATERS, stream);
    }
    is_shorter
}

#[cfg(test)]
mod tests {
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
        // RFC 7692, 7.2.3.1 and 7.2.3.2: "Hello", and again with the context of the first.
        let hello = b"\xf2\x48\xcd\xc9\xc9\x07\x00";
        let mut keeping = Inflater::new(true, 15);
        assert_eq!(inflate(&mut keeping, hello, 5), Ok(b"Hello".to_vec()));
        let again = b"\xf2\x00\x11\x00\x00";
        assert_eq!(inflate(&mut keeping, again, 5), Ok(b"Hello".to_vec()));
        let mut forgetting = Inflater::new(false, 15);
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
        let mut keeping = Inflater::new(true, 15);
        inflate(&mut keeping, b"\xf3\x48\xcd\xc9\xc9\x07\x00\x00", 5).unwrap();
        assert_eq!(
            inflate(&mut keeping, b"\xf2\x00\x11\x00\x00", 5),
            Ok(b"Hello".to_vec())
        );
    }

    #[test]
    fn compressed_messages_round_trip() {
        for keeps_context in [false, true] {
            for bits in WINDOW_BITS_MIN..=WINDOW_BITS_MAX {
                let mut deflater = Deflater::new(keeps_context, bits);
                let mut inflater = Inflater::new(keeps_context, bits);
                for len in [100, 1000, 70_000, 300] {
                    let (message, mut out) = (text(len), b"before".to_vec());
                    assert!(
                        deflater.deflate(&message, &mut out),
                        "{len} bytes, {bits} bits"
                    );
                    assert_eq!(inflate(&mut inflater, &out[6..], len), Ok(message));
                }
            }
        }
    }

    #[test]
    fn context_shrinks_later_messages() {
        let mut deflater = Deflater::new(true, 15);
        let mut inflater = Inflater::new(true, 15);
        let (message, mut first, mut alone, mut third) = (text(2000), vec![], vec![], vec![]);
        assert!(deflater.deflate(&message, &mut first));
        assert!(deflate_alone(b"alone alone alone alone", &mut alone));
        deflater.sent_alone(b"alone alone alone alone");
        assert!(deflater.deflate(&message, &mut third));
        assert!(
            third.len() * 4 < first.len(),
            "{} {}",
            first.len(),
            third.len()
        );
        for (bytes, expected) in [
            (&first, &message[..]),
            (&alone, b"alone alone alone alone"),
            (&third, &message),
        ] {
            assert_eq!(inflate(&mut inflater, bytes, 2000).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn the_window_size_is_respected() {
        let message = text(70_000);
        for bits in WINDOW_BITS_MIN..=WINDOW_BITS_MAX {
            let mut out = Vec::new();
            assert!(Deflater::new(false, bits).deflate(&message, &mut out));
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
        assert!(!deflate_alone(b"", &mut out));
        assert!(!deflate_alone(b"abc", &mut out));
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
                if deflate_alone(&message, &mut out) {
                    let mut inflater = Inflater::new(false, 15);
                    assert_eq!(inflate(&mut inflater, &out, len), Ok(message));
                }
            }
        }
    }

    #[test]
    fn decompression_stops_at_the_limit() {
        let zeros = vec![0; 10_000_000];
        let mut bomb = Vec::new();
        assert!(deflate_alone(&zeros, &mut bomb));
        for (len_max, expected) in [
            (zeros.len(), Ok(zeros.len())),
            (zeros.len() - 1, Err(Failure::MessageTooLong)),
            (1000, Err(Failure::MessageTooLong)),
        ] {
            let mut message = Vec::new();
            let mut inflater = Inflater::new(false, 15);
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
        let mut inflater = Inflater::new(false, 15);
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
