//! Receives packs: many NARs in one request.

use std::io::{BufReader, Read, Write};

use samovar_protocol::push::{PackLine, PackOutcome, Records};

use super::{Push, PushError, usable_nar};
use crate::error::StorageError;
use crate::metadata::{NewNar, nars, pushes};
use crate::objects::{ObjectGroup, Objects, Placed};
use crate::receive::PutError;
use crate::storage::Storage;
use crate::storage::counters::{Counters, Kind, Reason, Received};
use crate::storage::loose::InFlight;
use crate::storage::nar::{self, NewFile};
use crate::token::Token;
use crate::verify::{Memory, Refusal, Verified, verify_unnamed};
use samovar_protocol::names::FileName;

/// Length of the buffer between the body and its records, in bytes.
const BUFFER_LEN: usize = 64 << 10;

/// Number of NARs in a pack that are recorded in one transaction.
const BATCH_COUNT: usize = 1024;

/// Total length of listings and frame indexes, in bytes, at which the NARs received so far are
/// recorded.
const BATCH_LEN: usize = 1 << 20;

/// NARs of a pack that were verified and are not recorded yet.
struct Batch<'a> {
    group: ObjectGroup<'a>,
    new: Vec<NewNar>,
    /// The files of the NARs.
    files: Vec<Placed>,
    in_flight: Vec<InFlight>,
    /// Total length of the NARs' listings and frame indexes, in bytes.
    len: usize,
    /// NARs that were already stored: index of their outcome, and their row number.
    known: Vec<(usize, i64)>,
}

/// Receives a pack, and verifies each of its NARs. When this returns, all accepted NARs are stored
/// durably. Returns the outcomes in the order of the records.
///
/// # Errors
///
/// Any [`PushError`]; a [`PutError::Source`] may contain a
/// [`WireError`](samovar_protocol::push::WireError). Records before the fault may have been kept.
pub fn put_pack(
    push: &Push<'_>,
    source: &mut dyn Read,
    memory: &mut dyn Memory,
) -> Result<Vec<PackOutcome>, PushError> {
    let storage = &*push.stored.storage;
    let counters = &storage.counters;
    let source = Received { source, counters };
    let mut records = Records::<_, PackLine>::new(BufReader::with_capacity(BUFFER_LEN, source));
    let mut outcomes = Vec::new();
    let mut used = push.stored.used_of_quota()?;
    let mut batch = Batch::new(&storage.objects)?;
    while let Some(line) = records.next_record().map_err(PutError::Source)? {
        let mut refusal = None;
        if let Some(known) = usable_nar(push.stored, push.token, &line.nar_hash)? {
            batch.known.push((outcomes.len(), known.id));
        } else {
            match receive_nar(push, &mut records, &line, memory, &mut used) {
                Ok((new, file)) => {
                    let checked = storage.check_place();
                    counted(counters, checked.and_then(|()| batch.add(new, file)))?;
                }
                Err(PutError::File(reason)) => refusal = Some(reason.to_string()),
                Err(other) => return Err(other.into()),
            }
        }
        outcomes.push(PackOutcome::new(line.nar_hash, refusal.as_deref()));
        if batch.new.len() >= BATCH_COUNT || batch.len >= BATCH_LEN {
            let full = std::mem::replace(&mut batch, Batch::new(&storage.objects)?);
            counted(counters, record(storage, push.token, full, &mut outcomes))?;
        }
    }
    counted(counters, record(storage, push.token, batch, &mut outcomes))?;
    Ok(outcomes)
}

/// Receives and verifies the NAR of one record.
pub(super) fn receive_nar(
    push: &Push<'_>,
    source: &mut dyn Read,
    line: &PackLine,
    memory: &mut dyn Memory,
    used: &mut u64,
) -> Result<(NewNar, NewFile), PutError> {
    let storage = &*push.stored.storage;
    let limits = &storage.limits;
    let verify = |object: &mut dyn Write| {
        verify_unnamed(source, line.compression, object, limits, memory)
            .map_err(|error| PutError::of_nar(error, "a file of a pack"))
    };
    let name = |verified: &Verified| match verified.nar_hash == line.nar_hash {
        true => Ok(FileName::new(verified.file_hash, verified.compression)),
        false => Err(PutError::File(Box::new(Refusal::NarHash {
            stated: line.nar_hash,
            found: verified.nar_hash,
        }))),
    };
    let outcome = nar::receive(push.stored, push.token, used, verify, name);
    storage.counters.count(Kind::Nar, outcome)
}

/// Counts an error of the storage that occurred after NARs had been received.
fn counted<T>(counters: &Counters, outcome: Result<T, StorageError>) -> Result<T, PutError> {
    let outcome = outcome.map_err(PutError::from);
    if let Err(error) = &outcome {
        counters.reject(Kind::Nar, Reason::of(error));
    }
    outcome
}

/// Makes the files of a batch durable, then records its NARs.
fn record(
    storage: &Storage,
    token: &Token,
    mut batch: Batch<'_>,
    outcomes: &mut [PackOutcome],
) -> Result<(), StorageError> {
    if !batch.new.is_empty() {
        let files: Vec<&Placed> = batch.files.iter().collect();
        batch.group.sync(&files)?;
        for (new, file) in batch.new.iter_mut().zip(&files) {
            new.pack = file.pack().cloned();
        }
        if nars::add(&storage.metadata, token.id, &batch.new)? {
            storage.check_mirror();
        }
        storage.check_committed()?;
    }
    if !batch.known.is_empty() {
        let ids: Vec<i64> = batch.known.iter().map(|(_, id)| *id).collect();
        let held = pushes::hold_nars(&storage.metadata, token.id, &ids)?;
        let lost = batch.known.iter().zip(held).filter(|(_, held)| !held);
        for ((at, _), _) in lost {
            let reason = "the NAR was deleted meanwhile; upload it again";
            outcomes[*at].refusal = Some(reason.to_owned());
        }
    }
    Ok(())
}

impl<'a> Batch<'a> {
    fn new(objects: &'a Objects) -> Result<Self, StorageError> {
        Ok(Self {
            group: objects.start_group()?,
            new: Vec::new(),
            files: Vec::new(),
            in_flight: Vec::new(),
            len: 0,
            known: Vec::new(),
        })
    }

    /// Adds a verified NAR.
    fn add(&mut self, new: NewNar, file: NewFile) -> Result<(), StorageError> {
        let placed = file.object.place(&new.nar.object_key, new.is_stored)?;
        self.files.push(placed);
        self.in_flight.extend(file.in_flight);
        let lens = [&new.listing, &new.frames].map(|bytes| bytes.as_ref().map_or(0, Vec::len));
        self.len += lens.iter().sum::<usize>();
        self.new.push(new);
        Ok(())
    }
}
