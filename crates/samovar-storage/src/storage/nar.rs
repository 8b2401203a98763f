//! Receives and records NARs.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use samovar_protocol::names::FileName;

use crate::error::StorageError;
use crate::metadata::{Database, NewNar, OWN_LEN, nars, tokens};
use crate::objects::{NewObject, Placed};
use crate::receive::PutError;
use crate::receive::Refusal;
use crate::storage::counters::{Kind, Received};
use crate::storage::loose::{InFlight, NarOfToken};
use crate::storage::{Storage, StoredCache};
use crate::token::Token;
use crate::verify::{Memory, Verified, verify};
use crate::waiting::PATIENCE;

/// A new file.
pub(crate) struct NewFile {
    pub(crate) object: NewObject,
    /// The id of the token with which it was uploaded; `None`: an upstream cache has sent it.
    pub(crate) token: Option<i64>,
    /// Counts the file as one of the token.
    pub(crate) in_flight: Option<InFlight>,
}

/// Receives a NAR file and verifies it in one pass. When this returns, the file is stored durably.
/// Until a published narinfo refers to it, only clients with the same token can use it.
///
/// # Errors
///
/// Any [`PutError`]. Nothing of the upload is kept then.
pub fn put(
    stored: &StoredCache,
    token: &Token,
    name: &FileName,
    source: &mut dyn Read,
    memory: &mut dyn Memory,
) -> Result<(), PutError> {
    let counters = &stored.storage.counters;
    let mut source = Received { source, counters };
    let outcome = receive_new(stored, token, name, &mut source, memory);
    counters.count(Kind::Nar, outcome)
}

fn receive_new(
    stored: &StoredCache,
    token: &Token,
    name: &FileName,
    source: &mut dyn Read,
    memory: &mut dyn Memory,
) -> Result<(), PutError> {
    let storage = &*stored.storage;
    if let Some(nar) = stored.find_file(token.into(), name)? {
        // The file is stored already, so discard the body.
        io::copy(source, &mut io::sink()).map_err(PutError::Source)?;
        check_token(&storage.metadata, token)?;
        stored.renew_file(token, &nar)?;
        return Ok(());
    }
    let mut used = stored.used_of_quota()?;
    let verify = |object: &mut dyn Write| {
        verify(source, name, object, &storage.limits, memory)
            .map_err(|error| PutError::of_nar(error, &format!("nar/{name}")))
    };
    let (new, file) = receive(stored, token, &mut used, verify, |_| Ok(*name))?;
    Ok(store(storage, new, file)?)
}

/// Makes the file of a verified NAR durable, and records it, in one commit with others that arrive
/// at the same time. Each of them syncs its own file before. Fails if the collector has deleted the
/// NAR since the key was chosen. That takes the collector longer than `Rules::hold`.
pub(crate) fn store(storage: &Storage, new: NewNar, file: NewFile) -> Result<(), StorageError> {
    storage.check_place()?;
    let commit = |batch: &[&[NarOfToken]], patience| commit(storage, batch, patience);
    let waits = storage.metadata.waits();
    let outcomes = waits.lend(|| {
        let group = Arc::new(vec![NarOfToken {
            file: file
                .object
                .place_synced(&new.nar.object_key, new.is_stored)?,
            new: (file.token, new),
            _in_flight: file.in_flight,
        }]);
        waits.patiently(PATIENCE, |patience| {
            storage.nar_queue.publish(&group, patience, commit)
        })
    })?;
    // A group of one NAR has one outcome.
    outcomes
        .into_iter()
        .next()
        .unwrap_or(Err(StorageError::Busy))
}

/// Receives the file of a NAR into a new object, within the quota of the cache and the limits of
/// the token. `verify` writes the file into the object. `name` accepts the verified file and
/// returns its name. Adds the length of the file to `used`, the used part of the quota in bytes.
pub(crate) fn receive(
    stored: &StoredCache,
    token: &Token,
    used: &mut u64,
    verify: impl FnOnce(&mut dyn Write) -> Result<Verified, PutError>,
    name: impl FnOnce(&Verified) -> Result<FileName, PutError>,
) -> Result<(NewNar, NewFile), PutError> {
    let storage = &*stored.storage;
    // If the quota is used up, refuse the file before it is received, because every file has at
    // least one byte.
    stored.check_quota(*used, 1)?;
    let mut object = storage.objects.create()?;
    let started = Instant::now();
    let verified = verify(&mut object)?;
    let counters = &storage.counters;
    counters.verified(verified.nar_size, started.elapsed());
    object.set_sha256(verified.file_hash);
    let name = name(&verified)?;
    // The path that will use the file counts, too.
    stored.check_quota(*used, verified.file_size.saturating_add(OWN_LEN))?;
    let in_flight = count_loose(storage, token, verified.file_size)?;
    // Check the token before the file is renamed into place. The transaction that records the NAR
    // checks the token again, but only after the rename.
    check_token(&storage.metadata, token)?;
    *used = used.saturating_add(verified.file_size);
    let (key, is_stored) = object_key(&storage.metadata, &name)?;
    let new = NewNar::new(verified, key, is_stored);
    let file = NewFile {
        object,
        token: Some(token.id),
        in_flight: Some(in_flight),
    };
    Ok((new, file))
}

/// Refuses an upload whose token was revoked or has expired since the upload began.
fn check_token(metadata: &Database, token: &Token) -> Result<(), PutError> {
    match tokens::is_valid(metadata, token.id)? {
        true => Ok(()),
        false => Err(Refusal::TokenInvalid.into()),
    }
}

/// Makes the synced files of a batch of NARs durable, then records the NARs.
fn commit(
    storage: &Storage,
    batch: &[&[NarOfToken]],
    patience: Duration,
) -> Result<Vec<Vec<Result<(), StorageError>>>, StorageError> {
    let nars = batch.iter().copied().flatten();
    let files: Vec<&Placed> = nars.clone().map(|nar| &nar.file).collect();
    storage.objects.sync_names(&files)?;
    let new: Vec<Cow<'_, (Option<i64>, NewNar)>> = nars.map(NarOfToken::to_record).collect();
    let new: Vec<&(Option<i64>, NewNar)> = new.iter().map(|new| &**new).collect();
    let outcomes = nars::add_of_tokens(&storage.metadata, &new, patience)?;
    if outcomes.iter().any(|outcome| matches!(outcome, Ok(true))) {
        storage.check_mirror();
    }
    storage.check_committed()?;
    let mut outcomes = outcomes
        .into_iter()
        .map(|outcome| outcome.map(|_was_lost| ()));
    let of_group = |group: &&[NarOfToken]| outcomes.by_ref().take(group.len()).collect();
    Ok(batch.iter().map(of_group).collect())
}

/// Returns the key for an uploaded file: the key of the recorded file, or else the first one that
/// is not garbage, because a deletion of its earlier object may still be in progress. Also returns
/// whether the file is stored and not lost.
pub(crate) fn object_key(
    metadata: &Database,
    name: &FileName,
) -> Result<(String, bool), StorageError> {
    if let Some((key, is_lost)) = nars::object_key(metadata, name.file_hash())? {
        return Ok((key, !is_lost));
    }
    let mut number = 1;
    loop {
        let key = format!("nar/{}", name.numbered(number));
        if !nars::is_garbage(metadata, &key)? {
            return Ok((key, false));
        }
        number += 1;
    }
}

/// Counts a file of this length. Refuses it if the token's files that no path uses would exceed
/// their limit.
fn count_loose(storage: &Storage, token: &Token, file_size: u64) -> Result<InFlight, PutError> {
    let limit = storage.rules.loose_bytes_max;
    let recorded = || nars::loose_bytes(&storage.metadata, token.id);
    storage.loose_bytes.count(token, file_size, limit, recorded)
}
