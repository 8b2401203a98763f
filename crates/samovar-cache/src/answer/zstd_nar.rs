//! Responses with a NAR compressed with zstd.
//!
//! # Theory of operation
//!
//! The NAR is compressed frame by frame. Each frame is written to the NAR cache and sent from
//! there, so a slow client holds disk space and no memory. The NAR is hashed in the same pass, and
//! the last frame is sent only if the hash is right. Later responses send the copy, or a range of
//! it.
//!
//! Frames are compressed independently, on any worker, and a seek table ends the file: a reader can
//! decompress a part of it. The same NAR always has the same compressed bytes, so a client may
//! resume with a copy that was made again.
//!
//! A range of a NAR that is not cached needs the compressed length, so the NAR is compressed
//! completely before the response starts. If the copy cannot be cached, frames are short and sent
//! from memory, and the response does not accept ranges.

use std::io;
use std::sync::Arc;

use samovar_http::http::{Method, Status};
use samovar_http::{Batch, Body, Head, Progress, Response, Source};
use samovar_nix::SeekTable;
use samovar_nix::narinfo::NarCoding;
use samovar_store::NarReader;

use crate::answer::nar::{self, Part};
use crate::answer::nar_body::Check;
use crate::known::gc_lease::SendingLease;
use crate::known::nar_cache::{CachedNar, Form, NarCache, Recording, add_file};
use crate::known::registration::{Registration, wrong_size};
use crate::known::shared_store::SharedStore;
use crate::known::small_nars;
use crate::known::zstd_frames::{FRAME_LEN, FrameEncoder, MEMORY_FRAME_LEN, len_max};
use crate::narinfo::narinfos::Narinfos;
use crate::prepared::AnswerHead;
use crate::refusal::Refusal;

/// Answers `/nar/….nar.zst`. The caller has checked that the client may read the path.
pub(super) fn respond(
    narinfos: &Narinfos,
    head: Head<'_>,
    registration: &Registration,
) -> Result<Response, Refusal> {
    let (shared, row) = (&narinfos.reader.shared, &registration.row);
    let (key, size) = ((row.nar_hash, Form::Zstd), row.nar_size);
    let cache = shared.nar_cache.as_ref();
    let is_sent = head.method() == Method::Get;
    let wants_range = is_sent && head.header("Range").is_some();
    let mut cached = cache.and_then(|cache| cache.get(&key, size));
    if cached.is_none() && wants_range && cache.is_some_and(|cache| cache.is_in_progress(&key)) {
        let text = "The NAR is being compressed. Try again.\n";
        let response = Response::text(Status::SERVICE_UNAVAILABLE, text);
        return Ok(response.header("Retry-After", "1"));
    }
    if cached.is_none() {
        let Some(lease) = nar::lease(shared, registration, is_sent) else {
            let again = (Some(row.nar_hash), NarCoding::Zstd);
            return nar::respond(narinfos, head, row.path.hash_part(), again);
        };
        let unreadable = |error: &io::Error| shared.unreadable(registration, error);
        let body = ZstdBody::open(shared, cache, registration, lease);
        let mut body = body.map_err(|error| unreadable(&error))?;
        if !wants_range || body.recording.is_none() {
            let fields = match body.recording.is_some() {
                true => small_nars::HEAD.fields,
                false => &small_nars::HEAD.fields[..1],
            };
            let head_of_answer = AnswerHead {
                status: Status::OK,
                fields,
            };
            let body = nar::watched(
                shared,
                head,
                (&row.path, size),
                Body::Source(Box::new(body)),
            );
            return Ok(head_of_answer.response(body));
        }
        cached = body.complete().map_err(|error| unreadable(&error))?;
    }
    let Some(cached) = cached else {
        return Err(Refusal::Unreadable);
    };
    match Part::requested(head, cached.len()) {
        Ok(part) => {
            let body = cached.body((part.start, part.end));
            Ok(part.response(nar::watched(shared, head, (&row.path, size), body)))
        }
        Err(unsatisfiable) => Ok(unsatisfiable),
    }
}

/// The body of a response whose NAR is being compressed.
struct ZstdBody {
    shared: Arc<SharedStore>,
    reader: NarReader,
    /// Number of NAR bytes that are not compressed yet.
    nar_left: u64,
    /// Hashes the NAR and compares the hash with the registered one; `None` after the last frame.
    check: Option<Check>,
    /// The copy that is being written for the NAR cache; `None` if it is complete, or if frames are
    /// sent from memory.
    recording: Option<Recording>,
    /// The complete copy in the NAR cache; `None` before the last frame, and if frames are sent
    /// from memory.
    cached: Option<Arc<CachedNar>>,
    /// If there is no copy, the frame that is being sent from memory, and the number of its bytes
    /// that were sent.
    frame: (Vec<u8>, usize),
    /// Number of bytes of the copy that were sent.
    sent_len: u64,
    seek_table: SeekTable,
    registration: Registration,
    /// The GC lease of the path, held while the body is sent.
    _lease: Option<SendingLease>,
}

impl ZstdBody {
    fn open(
        shared: &Arc<SharedStore>,
        cache: Option<&Arc<NarCache>>,
        registration: &Registration,
        lease: Option<SendingLease>,
    ) -> io::Result<Self> {
        let row = &registration.row;
        let tree = shared.store.tree(&row.path).map_err(io::Error::other)?;
        let root = tree.identity()?;
        let recording = cache.and_then(|cache| {
            Recording::start_zstd(cache, &row.nar_hash, row.nar_size, len_max(row.nar_size))
        });
        Ok(Self {
            shared: Arc::clone(shared),
            reader: shared.plans.nar_from(registration, &tree, 0)?,
            nar_left: row.nar_size,
            check: Some(Check::hashing(root)),
            recording,
            cached: None,
            frame: (Vec::new(), 0),
            sent_len: 0,
            seek_table: SeekTable::default(),
            registration: registration.clone(),
            _lease: lease,
        })
    }

    /// Compresses the whole NAR without sending it. Returns its copy, if it could be cached.
    fn complete(&mut self) -> io::Result<Option<Arc<CachedNar>>> {
        while self.check.is_some() && self.recording.is_some() {
            self.compress()?;
        }
        Ok(self.cached.take())
    }

    /// Compresses the next frame. With the last one, checks the NAR and adds the seek table.
    fn compress(&mut self) -> io::Result<()> {
        let mut encoder = self.shared.frame_encoders.take()?;
        let compressed = self.compress_by(&mut encoder);
        self.shared.frame_encoders.give_back(encoder);
        compressed
    }

    fn compress_by(&mut self, encoder: &mut FrameEncoder) -> io::Result<()> {
        let frame_len = match self.recording {
            Some(_) => FRAME_LEN,
            None => MEMORY_FRAME_LEN,
        };
        let len = usize::try_from(self.nar_left).unwrap_or(usize::MAX);
        let (nar, frame, compressor) = encoder.parts();
        let nar = &mut nar[..len.min(frame_len)];
        fill(&mut self.reader, nar)?;
        if let Some(check) = &mut self.check {
            check.hash(nar);
        }
        self.nar_left -= nar.len() as u64;
        compressor.compress_to_buffer(nar, frame)?;
        self.seek_table.add(frame.len(), nar.len());
        let mut is_last = false;
        if self.nar_left == 0
            && let Some(check) = self.check.take()
        {
            if self.reader.fill(&mut [0])? != 0 {
                return Err(wrong_size("longer"));
            }
            check.settle(&self.registration, None)?;
            self.seek_table.write(frame);
            is_last = true;
        }
        match self
            .recording
            .take()
            .and_then(|recording| recording.append(frame))
        {
            Some(recording) if is_last => self.cached = recording.finish(None),
            Some(recording) => {
                self.recording = Some(recording);
                return Ok(());
            }
            None => {}
        }
        if self.cached.is_none() {
            self.frame = (frame.clone(), 0);
        }
        Ok(())
    }

    fn fill(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        loop {
            let (frame, sent) = &mut self.frame;
            if *sent < frame.len() {
                *sent += batch.put(&frame[*sent..]);
                break;
            }
            let written = match (&self.recording, &self.cached) {
                (Some(recording), _) => Some(recording.written()),
                (None, Some(cached)) => Some(cached.written()),
                (None, None) => None,
            };
            if let Some((file, len)) = written
                && self.sent_len < len
            {
                self.sent_len = add_file(batch, file, self.sent_len, len)?;
                break;
            }
            if self.check.is_none() {
                return Ok(Progress::End);
            }
            self.compress()?;
        }
        Ok(Progress::More)
    }
}

impl Source for ZstdBody {
    fn len(&self) -> Option<u64> {
        None
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        self.fill(batch)
            .inspect_err(|error| self.registration.report(error))
    }
}

/// Reads exactly the next bytes of a NAR.
fn fill(reader: &mut NarReader, mut nar: &mut [u8]) -> io::Result<()> {
    while !nar.is_empty() {
        let len = reader.fill(nar)?;
        if len == 0 {
            return Err(wrong_size("shorter"));
        }
        nar = &mut nar[len..];
    }
    Ok(())
}
