//! [`Builder`]: builds and compresses the listing of a NAR.

use std::io::Write;
use std::sync::{Mutex, PoisonError};

use samovar_nix::nar::{Event, Listing};
use zstd::bulk::Compressor;
use zstd::stream::write::Encoder;

/// Maximum number of entries in a listing.
const ENTRIES_MAX: u32 = 2_000_000;

/// Maximum length of the compressed listing, in bytes.
const COMPRESSED_LEN_MAX: usize = 8 << 20;

/// Length of the uncompressed listing at which streaming compression starts, in bytes. Most
/// listings are shorter and need no streaming encoder.
const PENDING_LEN: usize = 64 << 10;

const LEVEL: i32 = 3;

/// Window of the encoder, as a power of two: 1 MiB, for which it needs less than 4 MiB of memory.
const WINDOW_LOG: u32 = 20;

/// Compresses listings below [`PENDING_LEN`]. Creating a compressor takes longer than using it: the
/// library asks for the features of the processor, which traps in a virtual machine.
static COMPRESSOR: Mutex<Option<Compressor<'static>>> = Mutex::new(None);

/// Builds the listing of a NAR from its parts, in bounded memory.
pub(super) struct Builder {
    /// The listing so far. `None` after a limit was exceeded.
    listing: Option<Listing>,
    encoder: Option<Encoder<'static, Vec<u8>>>,
    entries: u32,
    entries_max: u32,
    compressed_len_max: usize,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self::with_limits(ENTRIES_MAX, COMPRESSED_LEN_MAX)
    }

    pub(super) fn with_limits(entries_max: u32, compressed_len_max: usize) -> Self {
        Self {
            listing: Some(Listing::new()),
            encoder: None,
            entries: 0,
            entries_max,
            compressed_len_max,
        }
    }

    /// Adds a part of the NAR to the listing. Has no effect after a limit was exceeded.
    pub(super) fn event(&mut self, event: &Event<'_>) {
        if self.try_event(event).is_none() {
            self.listing = None;
            self.encoder = None;
        }
    }

    fn try_event(&mut self, event: &Event<'_>) -> Option<()> {
        let listing = self.listing.as_mut()?;
        listing.event(event).ok()?;
        if matches!(event, Event::Entry { .. }) {
            self.entries = self.entries.saturating_add(1);
            if self.entries > self.entries_max {
                return None;
            }
        }
        if listing.pending_len() < PENDING_LEN {
            return Some(());
        }
        let text = listing.take();
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder,
            none => none.insert(encoder()?),
        };
        encoder.write_all(text.as_bytes()).ok()?;
        (encoder.get_ref().len() <= self.compressed_len_max).then_some(())
    }

    /// Ends the NAR. Returns the compressed listing, or `None` if a limit was exceeded.
    pub(super) fn finish(self) -> Option<Vec<u8>> {
        let rest = self.listing?.finish().ok()?;
        let compressed = match self.encoder {
            Some(mut encoder) => {
                encoder.write_all(rest.as_bytes()).ok()?;
                encoder.finish().ok()?
            }
            None => compressed(rest.as_bytes())?,
        };
        (compressed.len() <= self.compressed_len_max).then_some(compressed)
    }
}

/// Compresses a short listing.
fn compressed(listing: &[u8]) -> Option<Vec<u8>> {
    let mut compressor = COMPRESSOR.lock().unwrap_or_else(PoisonError::into_inner);
    let compressor = match &mut *compressor {
        Some(compressor) => compressor,
        none => none.insert(Compressor::new(LEVEL).ok()?),
    };
    compressor.compress(listing).ok()
}

fn encoder() -> Option<Encoder<'static, Vec<u8>>> {
    let mut encoder = Encoder::new(Vec::new(), LEVEL).ok()?;
    encoder.window_log(WINDOW_LOG).ok()?;
    Some(encoder)
}
