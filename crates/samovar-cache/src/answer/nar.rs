//! Responses with a NAR or a range of it.

use std::io;
use std::sync::Arc;

use samovar_http::http::range::{self, RangeOutcome};
use samovar_http::http::{Method, Status};
use samovar_http::{Body, Head, Prepared, Response};
use samovar_nix::narinfo::NarCoding;
use samovar_nix::{HashPart, NarHash, StorePath};
use samovar_store::{Identity, NarReader, Tree};

use crate::answer::nar_body::{Check, Hashing, NarBody};
use crate::answer::zstd_nar;
use crate::known::gc_lease::SendingLease;
use crate::known::nar_cache::Candidate;
use crate::known::registration::{Registration, wrong_contents};
use crate::known::row::Row;
use crate::known::shared_store::SharedStore;
use crate::known::small_nars::{self, SmallNar};
use crate::narinfo::narinfos::Narinfos;
use crate::prepared::{AnswerHead, PreparedBody};
use crate::refusal::Refusal;

/// Answers `/nar/…`. `nar_hash`: the NAR hash in the URL, if any.
pub(crate) fn respond(
    narinfos: &Narinfos,
    head: Head<'_>,
    hash_part: HashPart,
    (nar_hash, coding): (Option<NarHash>, NarCoding),
) -> Result<Response, Refusal> {
    let shared = &*narinfos.reader.shared;
    let registration = narinfos.registration(hash_part)?;
    let row = &registration.row;
    if nar_hash.is_some_and(|nar_hash| nar_hash != row.nar_hash) {
        return Err(Refusal::WrongHash);
    }
    registration.admit()?;
    if coding == NarCoding::Zstd {
        return zstd_nar::respond(narinfos, head, &registration);
    }
    let (size, is_sent) = (row.nar_size, head.method() == Method::Get);
    let part = match Part::requested(head, size) {
        Ok(part) => part,
        Err(unsatisfiable) => return Ok(unsatisfiable),
    };
    let (start, end) = (part.start, part.end);
    let path = row.path.clone();
    let body = if size <= small_nars::LEN_MAX && is_sent {
        small_body(small_nar(shared, &registration)?, (start, end))
    } else if let Some(cache) = &shared.nar_cache
        && let Some(cached) = cache.get_of(row, || root_of(shared, row))
    {
        cached.body((start, end))
    } else {
        let Some(lease) = lease(shared, &registration, is_sent) else {
            return respond(narinfos, head, hash_part, (nar_hash, coding));
        };
        let tree = shared.store.tree(&row.path)?;
        let (nar, root) = open(shared, &registration, &tree, start)
            .map_err(|error| shared.unreadable(&registration, &error))?;
        let is_whole = is_sent && end - start == size;
        let check = is_whole.then(|| check_of(shared, row, root)).flatten();
        let body = NarBody::new(nar, (start, end), registration, check, lease);
        Body::Source(Box::new(body))
    };
    Ok(part.response(watched(shared, head, (&path, size), body)))
}

/// Lists a NAR of `nar_size` bytes among the transfers in progress. Small NARs are not listed: they
/// are sent too fast.
pub(super) fn watched(
    shared: &SharedStore,
    head: Head<'_>,
    (path, nar_size): (&StorePath, u64),
    body: Body,
) -> Body {
    let transfers = shared.observer.transfers();
    match transfers.filter(|_| nar_size > small_nars::LEN_MAX) {
        Some(transfers) => {
            let path = path.display(shared.store.store_dir()).to_string();
            transfers.watch(body, path, head.peer())
        }
        None => body,
    }
}

/// Leases the path of a NAR if its contents are sent (`is_sent`). Returns `None` if the path was
/// garbage-collected or registered again before the lease was granted. The path is leased from now
/// on, so the caller must start again.
pub(super) fn lease(
    shared: &SharedStore,
    registration: &Registration,
    is_sent: bool,
) -> Option<Option<SendingLease>> {
    let lease = is_sent.then(|| shared.leases.send(&registration.row.path));
    let has_waited = lease.as_ref().is_some_and(|lease| lease.has_waited);
    (!has_waited || registration.is_current() != Ok(false)).then_some(lease)
}

/// The part of a NAR, or of its compressed file, that a request asks for.
pub(crate) struct Part {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) status: Status,
    /// Length of the whole NAR or compressed file, in bytes.
    size: u64,
}

impl Part {
    /// Returns the requested part of `size` bytes, or the response if there is no such part.
    /// `If-Range` never matches, because responses have no validators (RFC 9110, 13.1.5).
    pub(crate) fn requested(head: Head<'_>, size: u64) -> Result<Self, Response> {
        Self::of_tagged(head, size, "", "Beyond the end.\n")
    }

    /// Returns the requested part of `size` bytes, or a 416 with `text` if there is no such part. A
    /// range is ignored if `If-Range` has another entity tag than `tag`. Ranges are defined for GET
    /// only (RFC 9110, 14.2).
    pub(crate) fn of_tagged(
        head: Head<'_>,
        size: u64,
        tag: &str,
        text: &'static str,
    ) -> Result<Self, Response> {
        let if_range = head.header("If-Range");
        let is_same = if_range.is_none_or(|have| have == tag.as_bytes());
        let range = head.header("Range");
        let range = range.filter(|_| head.method() == Method::Get && is_same);
        Self::of_range(range, size, text)
    }

    /// Returns the part of `size` bytes that a `Range` field names, or a 416 with `text` if there
    /// is no such part. `None`: there is no field, or it is ignored.
    pub(crate) fn of_range(
        range: Option<&[u8]>,
        size: u64,
        text: &'static str,
    ) -> Result<Self, Response> {
        let outcome = range.map_or(RangeOutcome::Whole, |value| range::resolve(value, size));
        let (status, start, end) = match outcome {
            RangeOutcome::Whole => (Status::OK, 0, size),
            RangeOutcome::Part { start, end } => (Status::PARTIAL_CONTENT, start, end),
            RangeOutcome::Unsatisfiable => {
                let response = Response::text(Status::RANGE_NOT_SATISFIABLE, text);
                return Err(response.header("Content-Range", format!("bytes */{size}")));
            }
        };
        Ok(Self {
            start,
            end,
            status,
            size,
        })
    }

    /// Makes the response with this part as its body.
    pub(crate) fn response(&self, body: Body) -> Response {
        let head = AnswerHead {
            status: self.status,
            ..small_nars::HEAD
        };
        self.with_range(head.response(body))
    }

    /// Adds `Content-Range` to a 206.
    pub(crate) fn with_range(&self, response: Response) -> Response {
        if self.status != Status::PARTIAL_CONTENT {
            return response;
        }
        let (start, last, size) = (self.start, self.end - 1, self.size);
        response.header("Content-Range", format!("bytes {start}-{last}/{size}"))
    }
}

/// Opens the NAR at offset `start`. Also returns the identity of the root, read before the NAR was
/// opened.
fn open(
    shared: &SharedStore,
    registration: &Registration,
    tree: &Tree,
    start: u64,
) -> io::Result<(NarReader, Identity)> {
    let root = tree.identity()?;
    Ok((shared.plans.nar_from(registration, tree, start)?, root))
}

/// Returns the identity of a path's root; `None` if it cannot be read.
fn root_of(shared: &SharedStore, row: &Row) -> Option<Identity> {
    shared.store.tree(&row.path).ok()?.identity().ok()
}

/// Creates the check of a whole NAR, which hashes it, copies it to the NAR cache, or both. Returns
/// `None` if neither is needed.
fn check_of(shared: &SharedStore, row: &Row, root: Identity) -> Option<Check> {
    let health = &shared.health;
    let nar_cache = shared.nar_cache.as_ref();
    let candidate =
        nar_cache.and_then(|cache| Candidate::reserve(cache, &row.nar_hash, row.nar_size));
    let hashing = match health.is_verified(row, &root) {
        true => Hashing::Never,
        false if health.is_to_hash(row, &root) => Hashing::Always,
        false => Hashing::WhileCopying,
    };
    Check::new(root, hashing, candidate, health.drop_count())
}

/// Returns a small NAR from the small-NAR cache, or reads it and adds it.
fn small_nar(shared: &SharedStore, registration: &Registration) -> Result<Arc<Prepared>, Refusal> {
    let row = &registration.row;
    let hash_part = row.path.hash_part();
    let snapshot = registration.snapshot.as_ref();
    let epoch = snapshot.map(|snapshot| snapshot.epoch);
    let known = shared.small_nars.find(&hash_part);
    let nar = match known.filter(|known| known.is_of(row)) {
        Some(known) if known.epoch == epoch => return Ok(known.prepared),
        Some(known) => SmallNar { epoch, ..known },
        None => {
            let opened = shared.store.tree(&row.path)?.nar();
            opened
                .map_err(io::Error::from)
                .and_then(|nar| small_nars::read_whole(nar, row.nar_size))
                .and_then(|nar| SmallNar::new(row.nar_hash, epoch, &nar).ok_or_else(wrong_contents))
                .map_err(|error| shared.unreadable(registration, &error))?
        }
    };
    let prepared = Arc::clone(&nar.prepared);
    shared.small_nars.insert(hash_part, nar);
    // No response for a marked path may stay in memory, even if the path was marked a moment ago.
    if shared.health.is_marked(&hash_part) {
        shared.small_nars.remove(&hash_part);
    }
    Ok(prepared)
}

fn small_body(prepared: Arc<Prepared>, (start, end): (u64, u64)) -> Body {
    let within = |offset| usize::try_from(offset).unwrap_or(usize::MAX);
    PreparedBody::range(prepared, (within(start), within(end)))
}
