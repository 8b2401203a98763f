//! Packed narinfos: the second level of the narinfo memory, for stores of very many paths.
//!
//! # Theory of operation
//!
//! A rendered narinfo takes about 1.2 KiB: its text, the head of its response, and its entry in a
//! table. Packed, it takes a third of that. Its text is compressed with zstd and a dictionary that
//! is trained on the first narinfos of the cache, because they have the same store directory, key
//! names and style of names as the others. Until the dictionary is trained, nothing is packed.
//!
//! Unpacking takes microseconds, so I/O threads do it. A look-up in the database takes ten times as
//! long, and needs a worker.
//!
//! A look-up does not move an entry, because narinfos that are used often are in the first level.
//! So entries are evicted in the order in which they were added.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use samovar_metrics::CacheStatus;
use samovar_nix::{HashPart, NarHash, StorePath};
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{CParameter, compress_bound};

use crate::known::row::Row;
use crate::known::sharded::{MemoryLen, PathCache, Sharded};
use crate::known::shared_store::PackedCounts;
use crate::narinfo::rendered::{Narinfo, Rendered, SHARD_COUNT, Stamp};
use crate::sync::Locked;

/// Compression level. Higher ones save two percent.
const LEVEL: i32 = 1;

/// Number of narinfos on which the dictionary is trained.
const SAMPLE_COUNT: usize = 1000;

/// Maximum length of a text on which the dictionary is trained, in bytes.
const SAMPLE_LEN_MAX: usize = 4096;

/// Maximum length of the dictionary, in bytes. Longer ones save one percent.
const DICTIONARY_LEN: usize = 4096;

/// Maximum length of a text that is packed, in bytes: hardly any narinfo is longer, and the memory
/// of idle compressors is limited by it.
const TEXT_LEN_MAX: usize = 64 * 1024;

/// Maximum number of idle coders of each kind: more threads rarely unpack at the same time.
const IDLE_COUNT_MAX: usize = 16;

/// The packed narinfos of one cache.
pub(crate) struct PackedCache {
    entries: Sharded<Packed>,
    counts: Arc<PackedCounts>,
    /// The trained dictionary; empty if training failed, and nothing is packed then.
    dictionary: OnceLock<Vec<u8>>,
    /// The texts on which the dictionary will be trained. Empty after the training.
    samples: Mutex<HashMap<HashPart, Vec<u8>>>,
    compressors: Mutex<Vec<Compressor<'static>>>,
    decompressors: Mutex<Vec<Decompressor<'static>>>,
}

impl fmt::Debug for PackedCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PackedCache").field(&self.entries).finish()
    }
}

/// A packed narinfo.
#[derive(Debug, Clone)]
struct Packed(Arc<Content>);

#[derive(Debug)]
struct Content {
    stamp: Stamp,
    /// As [`Rendered::until`].
    until: i64,
    registration: Option<i64>,
    registration_time: i64,
    /// As [`Rendered::leased`].
    leased: AtomicU32,
    unsigned_len: usize,
    text_len: usize,
    /// The compressed text.
    frame: Box<[u8]>,
}

impl MemoryLen for Packed {
    fn memory_len(&self) -> usize {
        /// Memory that an allocation takes besides its contents, in bytes.
        const ALLOCATION_LEN: usize = 16;
        let entry_len = 2 * (size_of::<HashPart>() + size_of::<Self>());
        entry_len + size_of::<Content>() + self.0.frame.len() + 2 * ALLOCATION_LEN
    }
}

impl PackedCache {
    /// Creates an empty cache of `memory_len` bytes.
    pub(crate) fn new(memory_len: usize, counts: Arc<PackedCounts>) -> Self {
        let evictions = Arc::clone(&counts.evictions);
        Self {
            entries: Sharded::new(SHARD_COUNT, memory_len, evictions),
            counts,
            dictionary: OnceLock::new(),
            samples: Mutex::default(),
            compressors: Mutex::default(),
            decompressors: Mutex::default(),
        }
    }

    /// Packs a narinfo that was just rendered and adds it, if it has a stamp. Counts a miss if it
    /// was rendered for a request.
    pub(crate) fn insert(&self, hash_part: HashPart, rendered: &Rendered) {
        if !rendered.is_prefetched {
            self.counts.misses.fetch_add(1, Ordering::Relaxed);
        }
        let text = rendered.narinfo.text();
        match self.dictionary.get() {
            None => self.add_sample(hash_part, text),
            Some(dictionary) if !dictionary.is_empty() => {
                // Without memory for a compressor, the narinfo is looked up again.
                if let Ok(Some(packed)) = self.pack(dictionary, rendered) {
                    self.entries.insert(hash_part, packed);
                }
            }
            Some(_) => {}
        }
    }

    /// Unpacks the narinfo of a path, if there is one that `is_valid` accepts by its stamp and by
    /// the time until which the policy permits it. Counts a hit then.
    pub(crate) fn find(
        &self,
        hash_part: &HashPart,
        is_valid: impl FnOnce(Stamp, i64) -> bool,
    ) -> Option<Rendered> {
        let Packed(content) = self.entries.peek(hash_part)?;
        if !is_valid(content.stamp, content.until) {
            return None;
        }
        let rendered = self.rendered(&content)?;
        self.counts.hits.fetch_add(1, Ordering::Relaxed);
        Some(rendered)
    }

    /// Whether there is a narinfo of a path that `is_valid` accepts, as in [`find`](Self::find).
    pub(crate) fn has(
        &self,
        hash_part: &HashPart,
        is_valid: impl FnOnce(Stamp, i64) -> bool,
    ) -> bool {
        let packed = self.entries.peek(hash_part);
        packed.is_some_and(|Packed(content)| is_valid(content.stamp, content.until))
    }

    /// Unpacks the narinfo of a path, valid or not, without counting a hit.
    pub(crate) fn peek(&self, hash_part: &HashPart) -> Option<Rendered> {
        self.rendered(&self.entries.peek(hash_part)?.0)
    }

    /// Sets the generation of the path's last GC lease.
    pub(crate) fn note_leased(&self, hash_part: &HashPart, generation: u32) {
        self.entries.update(hash_part, |Packed(content)| {
            content.leased.store(generation, Ordering::Relaxed);
        });
    }

    /// Drops all entries.
    pub(crate) fn clear(&self) {
        self.entries.clear();
        *self.samples.locked() = HashMap::new();
        drop(std::mem::take(&mut *self.compressors.locked()));
        drop(std::mem::take(&mut *self.decompressors.locked()));
    }

    fn rendered(&self, content: &Content) -> Option<Rendered> {
        let text = self.unpacked(content).ok()?;
        let row = Row {
            registration: content.registration,
            registration_time: content.registration_time,
            ..row_of(&text)?
        };
        Some(Rendered {
            stamp: Some(content.stamp),
            until: content.until,
            leased: content.leased.load(Ordering::Relaxed),
            is_prefetched: false,
            narinfo: Arc::new(Narinfo::new(row, &text, content.unsigned_len)),
        })
    }

    /// Trains the dictionary if there are enough samples, which takes about 0.1 s.
    pub(crate) fn train(&self) {
        let mut samples = self.samples.locked();
        if samples.len() < SAMPLE_COUNT || self.dictionary.get().is_some() {
            return;
        }
        let texts: Vec<Vec<u8>> = std::mem::take(&mut *samples).into_values().collect();
        drop(samples);
        let trained = zstd::dict::from_samples(&texts, DICTIONARY_LEN);
        self.dictionary.get_or_init(|| trained.unwrap_or_default());
        // Others may have been added during the training.
        *self.samples.locked() = HashMap::new();
    }

    pub(crate) fn status(&self) -> CacheStatus {
        CacheStatus {
            hit_count: self.counts.hits.load(Ordering::Relaxed),
            miss_count: self.counts.misses.load(Ordering::Relaxed),
            ..self.entries.status("packed_narinfos")
        }
    }

    fn add_sample(&self, hash_part: HashPart, text: &[u8]) {
        let mut samples = self.samples.locked();
        if samples.len() < SAMPLE_COUNT && text.len() <= SAMPLE_LEN_MAX {
            samples.insert(hash_part, text.to_vec());
        }
    }

    fn pack(&self, dictionary: &[u8], rendered: &Rendered) -> io::Result<Option<Packed>> {
        let text = rendered.narinfo.text();
        let Some(stamp) = rendered.stamp.filter(|_| text.len() <= TEXT_LEN_MAX) else {
            return Ok(None);
        };
        // Not in the `match`, so that the lock is released before a compressor is created.
        let idle = self.compressors.locked().pop();
        let mut compressor = match idle {
            Some(compressor) => compressor,
            None => compressor(dictionary)?,
        };
        let mut frame = Vec::with_capacity(compress_bound(text.len()));
        compressor.compress_to_buffer(text, &mut frame)?;
        give_back(&self.compressors, compressor);
        let narinfo = &rendered.narinfo;
        Ok(Some(Packed(Arc::new(Content {
            stamp,
            until: rendered.until,
            registration: narinfo.row.registration,
            registration_time: narinfo.row.registration_time,
            leased: AtomicU32::new(rendered.leased),
            unsigned_len: narinfo.unsigned_len,
            text_len: text.len(),
            frame: frame.into(),
        }))))
    }

    fn unpacked(&self, content: &Content) -> io::Result<Vec<u8>> {
        let dictionary = self.dictionary.get().map_or(&[][..], Vec::as_slice);
        let idle = self.decompressors.locked().pop();
        let mut decompressor = match idle {
            Some(decompressor) => decompressor,
            None => Decompressor::with_dictionary(dictionary)?,
        };
        let mut text = Vec::with_capacity(content.text_len);
        decompressor.decompress_to_buffer(&content.frame, &mut text)?;
        give_back(&self.decompressors, decompressor);
        Ok(text)
    }
}

impl PathCache for PackedCache {
    fn drop_path(&self, hash_part: &HashPart) {
        self.entries.remove(hash_part);
    }
}

/// Creates a compressor whose frames have neither a content size nor a dictionary ID.
fn compressor(dictionary: &[u8]) -> io::Result<Compressor<'static>> {
    let mut compressor = Compressor::with_dictionary(LEVEL, dictionary)?;
    compressor.set_parameter(CParameter::ContentSizeFlag(false))?;
    compressor.set_parameter(CParameter::DictIdFlag(false))?;
    Ok(compressor)
}

fn give_back<T>(idle: &Mutex<Vec<T>>, coder: T) {
    let mut idle = idle.locked();
    if idle.len() < IDLE_COUNT_MAX {
        idle.push(coder);
    }
}

/// Returns the columns that are fields of the narinfo; `None` if one is missing. `Signing::render`
/// has written the text, so it has no quirks.
fn row_of(text: &[u8]) -> Option<Row> {
    let text = std::str::from_utf8(text).ok()?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let (_, base_name) = field("StorePath: ")?.rsplit_once('/')?;
    Some(Row {
        path: StorePath::from_base_name(base_name).ok()?,
        nar_hash: NarHash::parse(field("NarHash: ")?).ok()?,
        nar_size: field("NarSize: ")?.parse().ok()?,
        registration: None,
        registration_time: 0,
    })
}
